"""The broker: numbers each room's messages and keeps the recent ones.

A thin shell: everything that touches a packet is in `muster._core.BrokerEngine`.
"""

from muster import _core
from plane.role import Role
from plane.rooms.options import arena_bytes, link_options, name_key
from plane.spec import Spec


def build(spec: Spec) -> Role:
    """Make the engine, which binds its sockets. Raises `SpecError`, and `OSError` when an address is taken."""
    engine = _core.BrokerEngine(**link_options(spec), name_key=name_key(spec), arena_bytes=arena_bytes(spec))
    return Role(engine)

"""The proxy: takes what clients publish to the room's broker.

A thin shell: everything that touches a packet is in `muster._core.ProxyEngine`.
"""

from muster import _core
from plane.auth import answering, embedded
from plane.role import Role
from plane.rooms.options import age_every, client_options, link_options
from plane.spec import Spec


def build(spec: Spec) -> Role:
    """Make the engine, which binds its sockets. Raises `SpecError`, and `OSError` when an address is taken."""
    engine = _core.ProxyEngine(**link_options(spec), **client_options(spec), age_every=age_every(spec))
    return answering(engine, embedded(spec))

"""The router: tells brokers which gateway wants which room.

A thin shell: everything that touches a packet is in `muster._core.RouterEngine`.
"""

from muster import _core
from plane.role import Role
from plane.rooms.options import link_options, memberships_max
from plane.spec import Spec


def build(spec: Spec) -> Role:
    """Make the engine, which binds its sockets. Raises `SpecError`, and `OSError` when an address is taken."""
    engine = _core.RouterEngine(**link_options(spec), memberships_max=memberships_max(spec))
    return Role(engine)

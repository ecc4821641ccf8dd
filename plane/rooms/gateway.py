"""The gateway: clients join rooms here, and it carries each room to its members.

A thin shell: everything that touches a packet is in `muster._core.GatewayEngine`.
"""

from muster import _core
from plane.auth import answering, embedded
from plane.role import Role
from plane.rooms.options import arena_bytes, client_options, history_max, link_options, membership_again_ms
from plane.spec import Spec


def build(spec: Spec) -> Role:
    """Make the engine, which binds its sockets. Raises `SpecError`, and `OSError` when an address is taken."""
    engine = _core.GatewayEngine(
        **link_options(spec),
        **client_options(spec),
        paced_namespaces=spec.paced_namespaces,
        arena_bytes=arena_bytes(spec),
        history_max=history_max(spec),
        membership_again_ms=membership_again_ms(spec),
    )
    return answering(engine, embedded(spec))

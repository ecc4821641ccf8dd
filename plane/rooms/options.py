"""What the engines of the room plane are made with, from a spec."""

from typing import Any

from plane.keys import cluster_keys
from plane.spec import Spec, SpecError, secret


def link_options(spec: Spec) -> dict[str, Any]:
    """What every engine is made with. Raises `SpecError`."""
    keys = cluster_keys(spec)
    return {
        "node": spec.node,
        "epoch": spec.epoch,
        "link_bind": spec.link_bind,
        "cluster_key": keys.current,
        "cluster_other": keys.other,
        "cluster_allow": keys.allow,
        "seed": spec.seed,
        "recv_buffer": spec.recv_buffer,
        "send_buffer": spec.send_buffer,
        "payload_bytes": spec.payload_bytes,
        "faults": spec.faults,
    }


def client_options(spec: Spec) -> dict[str, Any]:
    """What the engines that clients speak to are made with besides."""
    return {
        "bind": spec.bind,
        "name_key": name_key(spec),
        "keepalive_ms": spec.keepalive_ms,
        "idle_timeout_ms": spec.idle_timeout_ms,
        "server_key": secret(spec.server_key_file, 32),
        "reset_secret": secret(spec.reset_secret_file, 32),
    }


def name_key(spec: Spec) -> bytes:
    """The key of the hash that maps room names to ids. Raises `SpecError`."""
    return secret(spec.name_key_file, 16)


def arena_bytes(spec: Spec) -> int:
    """Memory for the rings, of the roles that have some. Raises `SpecError`."""
    if spec.arena_bytes is None:
        raise SpecError(f"a {spec.role} needs arena_bytes")
    return spec.arena_bytes


def age_every(spec: Spec) -> int:
    """Of how many publish frames one carries its messages' age; 0: none. Raises `SpecError`."""
    if spec.age_every is None:
        raise SpecError(f"a {spec.role} needs age_every")
    return spec.age_every


def membership_again_ms(spec: Spec) -> int:
    """After which a router is told once more what it has not acknowledged; 0: it is not. Raises `SpecError`."""
    if spec.membership_again_ms is None:
        raise SpecError(f"a {spec.role} needs membership_again_ms")
    return spec.membership_again_ms


def memberships_max(spec: Spec) -> int:
    """Memberships that a router holds. Raises `SpecError`."""
    if spec.memberships_max is None:
        raise SpecError(f"a {spec.role} needs memberships_max")
    return spec.memberships_max


def history_max(spec: Spec) -> int:
    """Messages that a join may ask to come first. Raises `SpecError`."""
    if spec.history_max is None:
        raise SpecError(f"a {spec.role} needs history_max")
    return spec.history_max

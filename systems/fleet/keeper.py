"""A Redis for an installation without one, for the fleet's sessions. `muster up` runs it beside its nodes.

Owns its configuration. It must not know what is stored there.
"""

from typing import Any, Final

from muster_server.plane.kind import Launch, Program
from muster_server.plane.redis import server

NAME: Final = "redis"
BYTES_MAX: Final = "512mb"  # a session has about 0.4 kB, an event 0.2 kB


def prepare(launch: Launch) -> list[str]:
    """Write its configuration, and return its arguments."""
    lines = ("appendonly yes", "appendfsync everysec", f"maxmemory {BYTES_MAX}", "maxmemory-policy volatile-ttl")
    return server.prepare(launch, *lines)


def _wanted(section: Any) -> bool:
    return not section("fleet").redis


def _bind(_: Any) -> str:
    return "127.0.0.1:0"


PROGRAM: Final = Program(
    name=NAME,
    about="sessions of the fleet are stored there",
    binary=server.BINARY,
    mend=f"to mend: {server.INSTALL}; or name a Redis: fleet.redis = redis://HOST:PORT/0; or use none: fleet.redis = "
    "none",
    wanted=_wanted,
    bind=_bind,
    prepare="muster_server.systems.fleet.keeper:prepare",
)

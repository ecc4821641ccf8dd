"""The Redis of an installation that has none: what keeps its sessions. `muster up` runs it beside its nodes.

Owns what it is told. It must not know what is kept there.
"""

from typing import Any, Final

from muster_server.plane.kind import Launch, Program
from muster_server.plane.redis import server

NAME: Final = "redis"
BYTES_MAX: Final = "512mb"  # a session has about 0.4 kB, an event 0.2 kB


def prepare(launch: Launch) -> list[str]:
    """Write its file, and give its arguments."""
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
    mend=f"to mend: {server.INSTALL}, name a Redis: fleet.redis = redis://HOST:PORT/0, or do without: none",
    wanted=_wanted,
    bind=_bind,
    prepare="muster_server.systems.fleet.keeper:prepare",
)

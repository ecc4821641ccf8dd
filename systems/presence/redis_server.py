"""The redis-servers of `muster up`: one for each site, without data on disk.

Owns their configuration. Must not know what is stored there. Writers rewrite a store that comes back empty, so a copy
on disk would only be older.
"""

from typing import Any, Final

from muster_server.plane.kind import Launch, Program
from muster_server.plane.redis import server
from muster_server.systems.presence.options import PROGRAM, SITES_MAX

BYTES_MAX: Final = "2gb"  # a million users with one device take 36 MB


def prepare(launch: Launch) -> list[str]:
    """Write its configuration, and return its arguments."""
    packed = ("hash-max-listpack-entries 512", "hash-max-listpack-value 256")
    return server.prepare(launch, "appendonly no", f"maxmemory {BYTES_MAX}", "maxmemory-policy noeviction", *packed)


def _program(site: int) -> Program:
    def wanted(section: Any) -> bool:
        presence = section("presence")
        return not presence.redis and site <= presence.sites

    return Program(
        name=PROGRAM.format(site),
        about=f"presence of site {site} is stored there",
        binary=server.BINARY,
        mend=f"to mend: {server.INSTALL}, or name your own stores: presence.redis = redis://HOST:PORT/0,…",
        wanted=wanted,
        bind=lambda section: "127.0.0.1:0",
        prepare="muster_server.systems.presence.redis_server:prepare",
    )


PROGRAMS: Final = tuple(_program(site) for site in range(1, SITES_MAX + 1))

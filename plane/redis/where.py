"""Where a Redis is, as a URL says it. Each system has its own rule of the forms that it takes.

It must not know the library.
"""

from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

PORT: Final = 6_379
SENTINEL_PORT: Final = 26_379


class Where(msgspec.Struct, frozen=True):
    """One server, the master that sentinels name, or a cluster."""

    kind: Literal["one", "sentinel", "cluster"]
    places: tuple[tuple[str, int], ...]
    """Addresses of Redis, of the sentinels, or of members of the cluster."""
    tls: bool = False
    user: str = ""
    database: int = 0
    master: str = ""
    """Its name among the sentinels."""


def parsed(url: str) -> Where:
    """The place that a URL of a right form names. Raises `ValueError` for a bad number."""
    scheme, _, rest = url.partition("://")
    way, _, suffix = scheme.partition("+")
    kind: Literal["one", "sentinel", "cluster"]
    kind = "sentinel" if suffix == "sentinel" else "cluster" if suffix else "one"
    named, _, path = rest.partition("/")
    user, _, hosts = named.rpartition("@")
    words = [word for word in path.split("/") if word]
    master = words.pop(0) if kind == "sentinel" else ""
    database = int(words[0]) if words else 0
    found = places(hosts.split(","), SENTINEL_PORT if kind == "sentinel" else PORT)
    return Where(kind, found, way == "rediss", unquote(user), database, master)


def places(servers: list[str], port: int) -> tuple[tuple[str, int], ...]:
    """Hosts and ports; `port` where none is named. Raises `ValueError`."""
    split = [urlsplit(f"//{each}") for each in servers]
    return tuple((parts.hostname or "", parts.port or port) for parts in split)

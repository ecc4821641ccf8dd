"""The address of a Redis, as a URL names it: one server, the master that sentinels name, or a cluster.

It must not know the client's library.
"""

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

PORT: Final = 6_379
SENTINEL_PORT: Final = 26_379
FORMS: Final = (
    "redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,…/MASTER or redis+cluster://HOST:PORT,…, each also as rediss"
)


@dataclass(frozen=True, slots=True)
class Where:
    """One server, the master that sentinels name, or a cluster."""

    kind: Literal["one", "sentinel", "cluster"]
    places: tuple[tuple[str, int], ...]
    """Addresses of the Redis, of the sentinels, or of members of the cluster."""
    tls: bool = False
    user: str = ""
    database: int = 0
    master: str = ""
    """The master's name among the sentinels."""


def parsed(url: str) -> Where:
    """Parse a URL of a known form. Raises `ValueError` for a bad number."""
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
    """Hosts and ports; `port` is the default. Raises `ValueError`."""
    split = [urlsplit(f"//{each}") for each in servers]
    return tuple((parts.hostname or "", parts.port or port) for parts in split)


def checked(url: str) -> Where:
    """Parse any text. Raises `ValueError`, whose text never has a password."""
    scheme, _, rest = url.partition("://")
    way, plus, kind = scheme.partition("+")
    named, _, path = rest.partition("/")
    user = named.rpartition("@")[0]
    words = [word for word in path.split("/") if word]
    if ":" in user:
        raise ValueError("the URL of the Redis has a password; give the password separately")
    masters = 1 if kind == "sentinel" else 0
    databases = 0 if kind == "cluster" else 1
    known = way in {"redis", "rediss"} and kind in {"", "sentinel", "cluster"} and (not plus or bool(kind))
    fits = masters <= len(words) <= masters + databases and all(word.isdigit() for word in words[masters:])
    try:
        where = parsed(url) if known and fits else None
    except ValueError:
        where = None
    if where is None or not all(host for host, _ in where.places) or (kind == "" and len(where.places) > 1):
        raise ValueError(f"invalid URL of a Redis {scheme + '://…' if rest else ''} (expected {FORMS})")
    return where

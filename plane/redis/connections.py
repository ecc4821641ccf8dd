"""Clients of a Redis: the one file that makes them for one server, for sentinels and for a cluster.

Owns their options. It must not know keys nor scripts.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from muster_server.plane.redis.endings import tell_endings
from muster_server.plane.redis.where import Where

NO_RETRY: Final = {"retry": Retry(NoBackoff(), 0)}
"""A call that was cut off may have been done: its caller decides."""


class Opened(NamedTuple):
    """A client, and how all of its connections are closed."""

    client: Any
    close: Callable[[], Awaitable[None]]


def server(url: str = "", **options: Any) -> Redis:
    """A client of one server, which tries nothing twice. `options` are those of `Redis`, beside what a `url` says."""
    known: dict[str, Any] = NO_RETRY | options
    client: Redis = Redis.from_url(url, **known) if url else Redis(**known)
    tell_endings(client)
    return client


def opened(where: Where, password: str, seconds: float) -> Opened:
    """Connects with the first call. `seconds`: for a connection, and for an answer."""
    waits: dict[str, Any] = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "ssl": where.tls}
    known = waits | {"username": where.user or None, "password": password or None}
    if where.kind == "cluster":
        cluster = RedisCluster(startup_nodes=[ClusterNode(*place) for place in where.places], **known)
        tell_endings(cluster)
        return Opened(cluster, cluster.aclose)
    known |= NO_RETRY | {"db": where.database}
    if where.kind == "sentinel":
        untyped: Any = Sentinel
        sentinel = untyped(list(where.places), sentinel_kwargs=waits, **known)
        master = sentinel.master_for(where.master)
        for each in (master, *sentinel.sentinels):
            tell_endings(each)

        async def close() -> None:
            await master.aclose()
            await sentinel.aclose()

        return Opened(master, close)
    ((host, port),) = where.places
    one = server(host=host, port=port, **known)
    return Opened(one, one.aclose)

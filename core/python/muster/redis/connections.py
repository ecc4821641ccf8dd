"""Clients of a Redis: only this file makes them, for one server, for sentinels and for a cluster.

Owns their options. It must not know keys nor scripts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from .endings import Connected, tell_endings
from .where import Where

NO_RETRY: Final = {"retry": Retry(NoBackoff(), 0)}
"""No retry: a call that was cut off may have been executed, so its caller decides."""


class Opened(NamedTuple):
    """A client, and how all of its connections are closed."""

    client: Any
    close: Callable[[], Awaitable[None]]


def server(url: str = "", **options: Any) -> Redis:
    """A client of one server, without retries. `options` are those of `Redis`, besides what `url` sets."""
    known: dict[str, Any] = NO_RETRY | options
    client: Redis = Redis.from_url(url, **known) if url else Redis(**known)
    tell_endings(client)
    return client


def opened(where: Where, password: str, seconds: float, connected: Connected | None = None) -> Opened:
    """Make a client that connects with its first call.

    `seconds`: limit of connecting, and of each answer. `connected` is called with each connection to a data server
    before its first command."""
    waits: dict[str, Any] = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "ssl": where.tls}
    known = waits | {"username": where.user or None, "password": password or None}
    if where.kind == "cluster":
        cluster = RedisCluster(startup_nodes=[ClusterNode(*place) for place in where.places], **known)
        made = tell_endings(cluster, connected)

        async def close_all() -> None:
            await cluster.aclose()
            # The client closes the nodes that it knows; one that left the cluster may still have connections.
            await asyncio.gather(*(each.disconnect() for each in tuple(made)), return_exceptions=True)

        return Opened(cluster, close_all)
    known |= NO_RETRY | {"db": where.database}
    if where.kind == "sentinel":
        untyped: Any = Sentinel
        sentinel = untyped(list(where.places), sentinel_kwargs=waits, **known)
        master = sentinel.master_for(where.master)
        tell_endings(master, connected)
        for each in sentinel.sentinels:
            tell_endings(each)

        async def close() -> None:
            await master.aclose()
            await sentinel.aclose()

        return Opened(master, close)
    ((host, port),) = where.places
    one = Redis(host=host, port=port, **known)
    tell_endings(one, connected)
    return Opened(one, one.aclose)


async def apart(client: Any) -> Any:
    """Open a connection to a data server outside the client's pool, for pushed messages. The caller closes it with
    `cut`."""
    connection: Any
    if isinstance(client, RedisCluster):
        await client.initialize()
        node: Any = client.get_random_primary_node()
        connection = node.connection_class(**node.connection_kwargs)
    else:
        connection = client.connection_pool.make_connection()
    await connection.connect()
    return connection


async def cut(connection: Any) -> None:
    """End a connection at once, even if its peer does not answer."""
    if connection._writer is not None:
        connection._writer.transport.abort()
    await connection.disconnect(nowait=True)

"""Connections of redis-py that ended, told as its own error.

uvloop raises RuntimeError for a write to a socket that was closed before; asyncio does not, so redis-py lets it through
to callers who expect `RedisError`. It must not know keys nor scripts.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as Unreachable


class _Ends:
    """In front of a connection class of redis-py."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """As redis-py's, which has closed the connection when an error comes here."""
        above: Any = super()
        try:
            await above.send_packed_command(command, check_health)
        except RuntimeError as error:
            raise Unreachable(f"the connection ended: {error}") from error


def tell_endings(client: Redis | RedisCluster) -> None:
    """Let a client that has not connected yet raise redis-py's `ConnectionError` where a connection has ended."""
    if isinstance(client, RedisCluster):
        known = client.connection_kwargs
        known["connection_class"] = _with_ends(known["connection_class"])
        for node in client.startup_nodes:
            node.connection_class = known["connection_class"]
    else:
        pool: Any = client.connection_pool
        pool.connection_class = _with_ends(pool.connection_class)


@cache
def _with_ends(kind: type[Any]) -> type[Any]:
    return type(f"Ends{kind.__name__}", (_Ends, kind), {})

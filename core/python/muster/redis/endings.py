"""Connections of redis-py that have ended: the pool replaces them, and a call that meets the end raises redis-py's own
error.

redis-py 8.1 asks a pooled connection whether it is readable, but uses it even after its end: the first call on each one
failed after the server was back. Also, uvloop raises RuntimeError for a write to a closed socket, and redis-py itself
AttributeError for a write to a connection that another task has just closed; both reach callers that expect
`RedisError`. And redis-py sends by `asyncio.wait_for`, which before Python 3.12 swallows a cancellation if the command is
sent at this moment: a loop that was to end went on. It must not know keys nor scripts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as Unreachable

Connected = Callable[[Any], Awaitable[None]]
"""Called with each new connection before its first command."""


class _Ends:
    """Mixin for a connection class of redis-py."""

    connected: Connected | None = None
    made: "WeakSet[Any] | None" = None
    """All connections of the client."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.made is not None:
            self.made.add(self)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Runs after redis-py has greeted the server."""
        above: Any = super()
        await above.on_connect_check_health(check_health)
        if self.connected is not None:
            await self.connected(self)

    async def can_read(self) -> bool:
        """Raises after the end of the connection, so that redis-py's pool connects again."""
        above: Any = super()
        stream = getattr(self, "_reader", None)
        if stream is not None and (stream.at_eof() or stream.exception() is not None):
            raise Unreachable("the connection to the Redis ended")
        return bool(await above.can_read())

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Turns the errors of a closed socket into redis-py's error. redis-py has closed the connection by then. Raises
        `CancelledError` if the task was cancelled meanwhile, and closes the connection, as its answer is not read."""
        above: Any = super()
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            await above.send_packed_command(command, check_health)
        except RuntimeError as error:
            raise Unreachable(f"the connection to the Redis ended: {error}") from error
        except AttributeError as error:
            if getattr(self, "_writer", None) is not None:
                raise
            raise Unreachable("the connection to the Redis was closed by another task") from error
        if task is not None and task.cancelling() > before:
            await above.disconnect(nowait=True)
            raise asyncio.CancelledError


def tell_endings(client: Redis | RedisCluster, connected: Connected | None = None) -> "WeakSet[Any]":
    """Make a client that has not connected yet detect ended connections. Returns all that it will make."""
    made: WeakSet[Any] = WeakSet()
    if isinstance(client, RedisCluster):
        known = client.connection_kwargs
        known["connection_class"] = _seen(_with_ends(known["connection_class"]), connected, made)
        for node in client.startup_nodes:
            node.connection_class = known["connection_class"]
    else:
        pool: Any = client.connection_pool
        pool.connection_class = _seen(_with_ends(pool.connection_class), connected, made)
    return made


@cache
def _with_ends(kind: type[Any]) -> type[Any]:
    return type(f"Ends{kind.__name__}", (_Ends, kind), {})


def _seen(kind: type[Any], connected: Connected | None, made: "WeakSet[Any]") -> type[Any]:
    sees = {} if connected is None else {"connected": staticmethod(connected)}
    return type(kind.__name__, (kind,), {"made": made} | sees)

"""A Redis as a store: scripts, each whole or not at all there, and commands. One server, one behind Sentinels, or a Cluster.

Owns the client, the limit of concurrent calls, and the errors. It must not know keys: the scripts of a system compare the
fence of their owner in the step that writes. If a caller is cancelled, redis-py closes the connection of its call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError, ResponseError

from muster.redis.connections import opened
from muster.redis.scripts import run
from muster.redis.where import parsed
from muster_server.plane.causes import cause
from muster_server.plane.ownership.errors import Away, Full

CALLS_MAX: Final = 32
"""Limit of concurrent calls, each with a connection; further ones wait their turn. redis-py's pool refuses the 101st."""


class RedisStore:
    """Connects with its first call. All calls come from one loop, and raise `Away` and `Full`; `close` ends it."""

    def __init__(self, url: str, password: str, name: str, wait_s: float) -> None:
        """`name` begins the texts of errors; `wait_s`: limit of connecting, and of each answer."""
        self._name = name
        self._client, self._close = opened(parsed(url), password, wait_s)
        self._free = asyncio.Semaphore(CALLS_MAX)
        self._scripts: set[asyncio.Task[Any]] = set()

    async def run(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Run a script on the server that has `keys`."""
        async with self._free:
            return await self._done(run, self._client.execute_command, script, keys, arguments)

    async def finish(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """As `run`; if the caller is cancelled, the script ends by itself, and `close` waits for it. It costs 10 us."""
        await self._free.acquire()
        call = asyncio.create_task(self._done(run, self._client.execute_command, script, keys, arguments))
        self._scripts.add(call)
        call.add_done_callback(self._ended)
        return await asyncio.shield(call)

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._scripts.discard(call)
        self._free.release()

    async def call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Run a command by its name in the library."""
        async with self._free:
            return await self._done(getattr(self._client, command), *arguments, **options)

    async def after(
        self, stream: str, place: str, count: int, wait_s: float | None
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Entries of a stream after a place, as soon as there is one, or none after a while. It takes nobody's turn.
        `wait_s` None: without waiting."""
        block = None if wait_s is None else max(1, round(wait_s * 1_000))  # 0 waits for ever
        found = await self._done(self._client.xread, {stream: place}, count=count, block=block)
        parts = found.values() if isinstance(found, dict) else (part for _, part in found or [])
        return [(at, entry) for part in parts for at, entry in part if entry]

    async def _done(self, work: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        try:
            return await work(*arguments, **options)
        except (RedisError, RedisClusterException, OSError) as error:
            said = cause(error)
            if isinstance(error, OutOfMemoryError) or said.startswith("MISCONF"):
                raise Full(f"{self._name} has no room: {said}") from None
            raise Away(f"{self._name} does not answer: {said}") from None

    async def forgets(self) -> bool | None:
        """Whether a server writes nothing to its disk. None: it does not tell."""
        nodes = {"target_nodes": self._client.get_primaries()} if isinstance(self._client, RedisCluster) else {}
        try:
            said = await self.call("config_get", "appendonly", **nodes)
        except Away as away:
            if isinstance(away.__context__, ResponseError):  # a managed Redis does not tell
                return None
            raise
        return "no" in str(said)

    async def close(self) -> None:
        """Close all connections, after the scripts that finish."""
        await asyncio.gather(*self._scripts, return_exceptions=True)
        await self._close()

"""The Redis of a configuration: one server, one behind Sentinels, or a Cluster.

Owns every call of the library. It must not know messages.
No call is cut off and its connection used again: if a caller is cancelled, the call ends by itself.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from muster.redis.connections import Opened, opened
from muster.redis.scripts import run
from muster.redis.where import parsed
from muster_server.plane.causes import cause
from muster_server.plane.ownership.errors import Away, Full

CALL_S: Final = 5.0


class Place(Protocol):
    """One data set, on any server."""

    async def run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script on the server that has `key`. Raises `Away` and `Full`."""

    async def forgets(self) -> bool | None:
        """Whether a server writes nothing to its disk. None: it does not tell. Raises `Away`."""

    async def close(self) -> None:
        """Close all connections."""


def connect(url: str, password: str) -> Place:
    """The Redis of a valid URL. Nothing is opened yet."""
    return _Connected(opened(parsed(url), password, CALL_S))


class _Connected:
    def __init__(self, opened: Opened) -> None:
        self._library, self._close = opened
        self._calls: set[asyncio.Task[Any]] = set()

    async def run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        return await run(self._called, script, [key], arguments)

    async def forgets(self) -> bool | None:
        nodes = {"target_nodes": self._library.get_primaries()} if isinstance(self._library, RedisCluster) else {}
        try:
            said = await self._finished(self._library.config_get("appendonly", **nodes))
        except Away as away:
            if isinstance(away.__context__, ResponseError):  # a managed Redis does not tell
                return None
            raise
        return "no" in str(said)

    async def _called(self, *command: Any) -> Any:
        return await self._finished(self._library.execute_command(*command))

    async def _finished(self, work: Coroutine[Any, Any, Any]) -> Any:
        call = asyncio.create_task(work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except NoScriptError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            said = cause(error)
            if isinstance(error, OutOfMemoryError) or said.startswith("MISCONF"):
                raise Full(said) from None
            raise Away(said) from None

    async def close(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._close()

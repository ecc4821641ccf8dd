"""The Redis that a configuration names: one server, one behind Sentinels, or a Cluster.

Owns every use of the library's connections. It must not know messages.

No call is cut off and its connection used again: a caller that is cancelled leaves the call to end by itself.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import redis.asyncio as client
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from plane.messages.redis_url import PORT, SENTINEL_PORT, hosts

CALL_S: Final = 5.0


class Away(Exception):
    """Redis does not answer, or refuses: what was asked may be done. One line."""


class Full(Exception):
    """It has no room, and nothing was changed."""


class Place(Protocol):
    """One data set, wherever its server is now."""

    async def run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script on the server that has `key`. Raises `Away` and `Full`."""

    async def forgets(self) -> bool | None:
        """Whether a server writes nothing to its disk. None: it does not tell. Raises `Away`."""

    async def close(self) -> None:
        """Close all connections."""


def connect(url: str, password: str | None) -> Place:
    """The place of a URL without a `mistake`. Nothing is opened yet."""
    parts = urlsplit(url)
    common: dict[str, Any] = {
        "socket_timeout": CALL_S,
        "socket_connect_timeout": CALL_S,
        "retry": Retry(NoBackoff(), 0),
    }
    secret: dict[str, Any] = {} if not password else {"password": password}
    if parts.username:
        secret["username"] = parts.username
    if parts.scheme == "redis+cluster":
        nodes = [ClusterNode(host, port) for host, port in hosts(parts.netloc, PORT)]
        cluster = RedisCluster(startup_nodes=nodes, socket_timeout=CALL_S, socket_connect_timeout=CALL_S, **secret)
        return _Connected(cluster, cluster.aclose)
    if parts.scheme == "redis+sentinel":
        name, _, database = parts.path.strip("/").partition("/")
        sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
            hosts(parts.netloc, SENTINEL_PORT), socket_timeout=CALL_S, socket_connect_timeout=CALL_S
        )
        master = sentinels.master_for(name, db=int(database or 0), **common, **secret)

        async def close() -> None:
            await master.aclose()
            for each in sentinels.sentinels:
                await each.aclose()

        return _Connected(master, close)
    bare = url.replace(f"{parts.username}@", "", 1) if parts.username else url
    one = client.Redis.from_url(bare, **common, **secret)
    return _Connected(one, one.aclose)


class _Connected:
    def __init__(self, library: Any, close: Any) -> None:
        self._library, self._close = library, close
        self._known: dict[str, str] = {}
        self._calls: set[asyncio.Task[Any]] = set()

    async def run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        known = self._known.get(script)
        try:
            if known is None:
                raise NoScriptError
            return await self._called("EVALSHA", known, 1, key, *arguments)
        except NoScriptError:
            answer = await self._called("EVAL", script, 1, key, *arguments)
            self._known[script] = _digest(script)
            return answer

    async def forgets(self) -> bool | None:
        nodes = {"target_nodes": self._library.get_primaries()} if isinstance(self._library, RedisCluster) else {}
        try:
            said = await self._finished(self._library.config_get("appendonly", **nodes))
        except Away as away:
            if isinstance(away.__context__, ResponseError):  # a managed Redis tells nobody
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
            said = " ".join(str(error).split())[:200] or type(error).__name__
            if isinstance(error, OutOfMemoryError) or said.startswith("MISCONF"):
                raise Full(said) from None
            raise Away(said) from None

    async def close(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._close()


def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()

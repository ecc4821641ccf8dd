"""Imports of bitmaps over HTTP: one at a time, in the background, with its progress. `muster likes import` is the same.

Nothing is stored: an import that ended early is begun again, and sets the same likes once more, which changes nothing.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.http.problems import Problem

if TYPE_CHECKING:
    from muster_server.systems.likes.client import Likes

KEPT_MAX: Final = 20
"""Limit of imports that are listed; the oldest go."""
SCHEMES: Final = ("redis", "rediss")
STOPPED: Final = "stopped by a request"


class ImportAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Redis to read, `redis://[USER:PASSWORD@]HOST:PORT/DB`, and the pattern of its keys, as for SCAN."""

    url: Annotated[str, Meta(min_length=1, max_length=1_024)]
    pattern: Annotated[str, Meta(min_length=1, max_length=512)]


class Import(msgspec.Struct, kw_only=True):
    """An import. `source`: the Redis, without its password; `keys` of all matching keys `of` are moved; `new`: likes that
    did not exist before. Times in seconds since 1970."""

    id: str
    source: str
    pattern: str
    state: Literal["running", "done", "failed"] = "running"
    began: float
    ended: float | None = None
    of: int = 0
    keys: int = 0
    likes: int = 0
    new: int = 0
    error: str = ""


class Imports(msgspec.Struct, frozen=True):
    """The last imports of this process, the newest first."""

    imports: list[Import]


class Moved:
    """The moved keys of one import, in memory."""

    def __init__(self) -> None:
        self._keys = set[bytes]()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> None:
        """Add a key."""
        self._keys.add(key)


class Importer:
    """The imports of one process."""

    def __init__(self, node: "Callable[[], AbstractAsyncContextManager[Likes]]") -> None:
        self._node = node
        self._last: list[Import] = []
        self._task: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)

    def all(self) -> Imports:
        """The last ones."""
        return Imports(list(reversed(self._last)))

    def begin(self, asked: ImportAsked) -> Import:
        """Begin one. Raises `Problem`."""
        if self._task is not None and not self._task.done():
            raise Problem("conflict", "an import is running; wait until it has ended, or stop it")
        try:
            parts = urlsplit(asked.url)
            source = f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"
        except ValueError as error:
            raise Problem("bad_body", f"url: {error}") from None
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise Problem("bad_body", "url: expected redis://HOST:PORT/DB or rediss://HOST:PORT/DB")
        made = Import(id=str(next(self._numbers)), source=source, pattern=asked.pattern, began=time.time())
        self._last = [*self._last, made][-KEPT_MAX:]
        self._task = asyncio.create_task(self._run(made, asked))
        return made

    async def stop(self, id: str = "") -> None:
        """Stop the running import, if it has this id. Raises `Problem`."""
        running = self._last[-1] if self._last and self._last[-1].state == "running" else None
        if id and (running is None or running.id != id):
            raise Problem("not_found", f"no running import {id!r:.20}")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, made: Import, asked: ImportAsked) -> None:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        from muster.redis.endings import tell_endings
        from muster_server.systems.likes.cli.importing import Moving

        source: Redis | None = None
        try:
            source = Redis.from_url(asked.url)
            tell_endings(source)
            async with self._node() as node:
                moving = Moving(source, node, Moved())

                def progress() -> None:
                    made.of, made.keys, made.likes, made.new = moving.of, moving.keys, moving.likes, moving.new

                await moving.run(asked.pattern, progress)
                progress()
            made.state = "done"
        except (RedisError, ValueError) as error:
            made.error = f"the source Redis: {error}"[:400].replace(asked.url, made.source)
        except StoreError as error:
            made.error = str(error)[:400]
        except Problem as problem:
            made.error = (problem.detail or problem.kind.title)[:400]
        except asyncio.CancelledError:
            made.error = STOPPED
            raise
        finally:
            if made.state == "running":
                made.state = "failed"
            made.ended = time.time()
            if source is not None:
                await source.aclose()

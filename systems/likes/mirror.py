"""Counts and rankings for web servers, in a Redis: `GET PREFIXcount:ITEM`, `ZREVRANGE PREFIXrank:FIELD`.

A copy, never the truth, at most a second old while that Redis answers. At the start, and after more changes than the
limit of waiting ones, all items are written again.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from muster.redis.connections import server
from muster_server._engines import LikesEngine
from muster_server.plane.causes import cause
from muster_server.plane.service import Figure
from muster_server.systems.likes.changes import Waiting

EVERY_S: Final = 1.0
BATCH: Final = 500
"""Number of items in one pipeline: some milliseconds."""
WAIT_S: Final = 5.0
Item = tuple[bytes, int | None]


@dataclass(frozen=True, slots=True)
class Target:
    """The target Redis."""

    url: str
    password: str | None
    prefix: str


class Mirror:
    """Writes while `run` runs."""

    def __init__(
        self,
        engine: LikesEngine,
        target: Target,
        log: structlog.typing.FilteringBoundLogger,
        mine: Callable[[bytes], bool] = lambda key: True,
    ) -> None:
        """`mine`: whether an item belongs to this engine, if other engines write to the same Redis."""
        self.waiting = Waiting()
        self.waiting.lost = True  # it may have the copy of an earlier life
        self.written = self.failed = 0
        self.error = ""
        """The error of the last attempt; empty after a success."""
        self._engine, self._log, self._mine = engine, log, mine
        self._prefix = target.prefix.encode()
        more: dict[str, Any] = {} if target.password is None else {"password": target.password}
        self._redis = server(target.url, socket_timeout=WAIT_S, socket_connect_timeout=WAIT_S, **more)
        self._ranked: dict[bytes, tuple[bytes, ...]] = {}
        """The fields in which an item is ranked in Redis, if there are others than its kind's."""

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                due = loop.time() + EVERY_S
                await self.tried()
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def tried(self) -> bool:
        """Write what waits; returns False if that failed, which is logged."""
        try:
            if self.waiting.lost:
                self.waiting.lost = False
                try:
                    await self._write_all()
                except (RedisError, OSError):
                    self.waiting.lost = True
                    raise
            while items := self.waiting.take(BATCH):
                try:
                    await self._write(items)
                except (RedisError, OSError):
                    self.waiting.back(items)
                    raise
        except (RedisError, OSError) as error:
            self.failed += 1
            if not self.error:
                self._log.warning("cannot write counts to Redis; they wait", reason=cause(error))
            self.error = cause(error)
            return False
        if self.error:
            self._log.info("writing counts to Redis again")
        self.error = ""
        return True

    async def _write_all(self) -> None:
        """Write all items, and delete those that the engine lacks."""
        await self._forget()
        cursor = 0
        while True:
            cursor, items = self._engine.scan(cursor, BATCH)
            await self._write(items)
            if not cursor:
                return

    async def _forget(self) -> None:
        """Delete counts and rankings of items that the engine lacks."""
        counts = self._prefix + b"count:"
        async for key in self._redis.scan_iter(match=_escaped(counts) + b"*", count=BATCH):
            item = key.removeprefix(counts)
            if self._mine(item) and not self._engine.modification(item):
                await self._redis.delete(key)
        async for key in self._redis.scan_iter(match=_escaped(self._prefix + b"rank") + b"*", count=BATCH):
            field = key.removeprefix(self._prefix + b"rank").removeprefix(b":")
            wrong = [
                item
                async for item, _ in self._redis.zscan_iter(key, count=BATCH)
                if self._mine(item)
                and (not self._engine.count(item) or (field and field not in self._engine.fields(item)))
            ]
            for at in range(0, len(wrong), BATCH):
                await self._redis.zrem(key, *wrong[at : at + BATCH])

    async def _write(self, items: Sequence[Item]) -> None:
        if not items:
            return
        rankings: dict[bytes, dict[bytes, int]] = {}
        async with self._redis.pipeline(transaction=False) as pipe:
            for item, count in items:
                fields = tuple(self._engine.fields(item))
                kind, colon, _ = item.partition(b":")
                usual = (kind,) if colon else ()
                former = self._ranked.get(item, usual)
                for field in former if not count else set(former) - set(fields):
                    pipe.zrem(self._ranking(field), item)
                if count:
                    pipe.set(self._prefix + b"count:" + item, count)
                    for ranking in (self._prefix + b"rank", *map(self._ranking, fields)):
                        rankings.setdefault(ranking, {})[item] = count
                else:
                    pipe.delete(self._prefix + b"count:" + item)
                    pipe.zrem(self._prefix + b"rank", item)
                if count and fields != usual:
                    self._ranked[item] = fields
                else:
                    self._ranked.pop(item, None)
            for ranking, scores in rankings.items():
                pipe.zadd(ranking, scores)
            await pipe.execute()
        self.written += len(items)

    def _ranking(self, field: bytes) -> bytes:
        return self._prefix + b"rank:" + field

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        return {"connected": not self.error, "error": self.error, "items_behind": len(self.waiting)}

    def note(self) -> str:
        """The same as text, for `muster status`."""
        if self.error:
            return f"Redis: {len(self.waiting)} items not written: {self.error}"
        return f"Redis: {len(self.waiting)} items wait"

    def counters(self) -> list[Figure]:
        """As `Service.counters`."""
        return [
            ("likes_redis_items", "Counts written to Redis", self.written),
            ("likes_redis_failed", "Failed attempts to write to Redis", self.failed),
        ]

    def gauges(self) -> list[Figure]:
        """As `Service.gauges`."""
        return [("likes_redis_waiting", "Items whose count waits for Redis", len(self.waiting))]


def _escaped(text: bytes) -> bytes:
    """A pattern that matches only the text itself."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", text)

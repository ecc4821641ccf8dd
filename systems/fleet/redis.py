"""Sessions, counts per minute and events of a fleet in Redis: only this file knows its library.

Owns keys and one connection for writing, which is opened again after a loss. It must not know brokers, picks or runs,
none of which waits for it. A batch is one transaction with a number of its node: a batch whose answer was lost is not
written twice. A node that finds Redis without its `life` concludes that Redis was wiped; a node that finds another
number than its last one concludes that a lagging replica took over. In both cases it writes its sessions again. All
keys are in one slot of a cluster.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, cast

import msgspec
import structlog
from redis.exceptions import RedisClusterException, RedisError

from muster.redis.connections import opened
from muster_server.plane.causes import cause
from muster_server.plane.ownership.errors import Away
from muster_server.systems.fleet.index import Update
from muster_server.systems.fleet.options import redis_url
from muster_server.systems.fleet.questions import MinuteCounts
from muster_server.systems.fleet.sessions import Batch, Session, Waiting

CALL_S: Final = 5.0
EVERY_S: Final = 0.5
AGAIN_S: Final = 1.0
EVENTS_MAX: Final = 1_000_000
COUNTS_S: Final = 31 * 24 * 3600
"""Lifetime of counts per minute, in seconds."""
WAYS: Final = ("came", "went")
FAILURES: Final = (RedisError, RedisClusterException, OSError, TimeoutError, msgspec.MsgspecError)


class Sessions:
    """Writes what waits, from `start` to `stop`."""

    def __init__(
        self,
        url: str,
        password: str,
        instance: str,
        node: int,
        waiting: Waiting,
        records: Callable[[], Iterable[Update]],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """`records`: returns the records of all clients for which this node speaks now."""
        self.connected = False
        self.stale = True
        """True: Redis may have sessions of clients that went, which `sweep` removes."""
        self.written = self.failed = 0
        self._prefix, self._node = f"muster:{{{instance}}}:fleet", node
        self._waiting, self._records, self._log = waiting, records, log.bind(redis=url)
        self._redis, self._close = opened(redis_url(url), password, CALL_S)
        self._number = secrets.randbits(32) << 20
        """Number of the last batch, ascending; a random start distinguishes processes."""
        self._wrote: int | None = None
        """The number of the last batch that is known to be written."""
        self._doubted: Batch | None = None
        """A batch that may have been written."""
        self._life: bytes | None = None
        self._said = ""
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writing = asyncio.create_task(self._run(), name="writes sessions")

    async def stop(self) -> None:
        """Stop without a last write: sessions of a node that ends stay in Redis."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._close()

    async def load(self) -> list[Update]:
        """All stored sessions; none if Redis does not answer."""
        try:
            return await self._all()
        except FAILURES as error:
            self._log.info("starting without the sessions in Redis", cause=_told(error))
            return []

    async def sweep(self, there: Callable[[str], bool]) -> None:
        """Remove sessions of clients that went unrecorded. For a node that has received messages for a whole lease."""
        try:
            known = await self._all()
        except FAILURES:
            return  # Redis does not answer; try later
        gone = [each.client for each in known if not there(each.client)]
        self._waiting.rewrite(Update(name, 0, 0, None) for name in gone if not there(name))
        self.stale = False

    async def _all(self) -> list[Update]:
        found: list[Update] = []
        async with asyncio.timeout(CALL_S):
            async for name, value in self._redis.hscan_iter(self._key("sessions"), count=5_000):
                said = msgspec.json.decode(value, type=Session)
                found.append(Update(name.decode(), said.epoch, said.version, said.attributes))
        return found

    async def minutes(self, first: int, last: int) -> list[MinuteCounts]:
        """Counts of these minutes. Raises `Away`."""
        try:
            pipe = self._redis.pipeline(transaction=False)
            for minute in range(first, last + 1):
                pipe.hgetall(self._key(f"minute:{minute}"))
            rows = await cast(Awaitable[list[dict[bytes, bytes]]], pipe.execute())
        except FAILURES as error:
            raise Away(f"redis: {_told(error)}") from None
        return [_minute(first + at, row) for at, row in enumerate(rows) if row]

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
                self._is_connected()
                await asyncio.sleep(EVERY_S)
            except FAILURES as error:
                self._is_away(error)
                await asyncio.sleep(AGAIN_S)

    async def _step(self) -> None:
        """Check whether it is the same Redis, and write what waits."""
        life, number = await self._redis.mget(self._key("life"), self._key(f"batch:{self._node}"))
        there = None if number is None else int(number)
        if self._doubted is not None:  # its answer was lost: the number tells whether it was written
            if there == self._number:
                self._is_written(self._doubted)
            else:
                self._waiting.put_back(self._doubted)
            self._doubted = None
        if life is None:
            await self._redis.set(self._key("life"), secrets.token_hex(8), nx=True)
            life = await self._redis.get(self._key("life"))
        if life != self._life or self._wrote not in {None, there}:
            if self._life is not None:
                self._log.warning("writing all sessions again: Redis was wiped, or a replica that took over lacks some")
            self._waiting.rewrite(self._records())
            self._life, self._wrote, self.stale = life, None, True
        batch = self._waiting.take()
        if batch.empty:
            return
        self._number += 1
        self._doubted = batch
        await self._write(batch)
        self._doubted = None
        self._is_written(batch)

    def _is_written(self, batch: Batch) -> None:
        self._wrote = self._number
        self.written += len(batch.events)

    async def _write(self, batch: Batch) -> None:
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(self._key(f"batch:{self._node}"), self._number)
        key = self._key("sessions")
        there = {name: msgspec.json.encode(each) for name, each in batch.sessions.items() if each is not None}
        gone = [name for name, each in batch.sessions.items() if each is None]
        if there:
            pipe.hset(key, mapping=there)
        if gone:
            pipe.hdel(key, *gone)
        for (minute, mark, what), count in batch.counts.items():
            pipe.hincrby(self._key(f"minute:{minute}"), f"{what} {mark}", count)
            pipe.expire(self._key(f"minute:{minute}"), COUNTS_S)
        for event in batch.events:
            fields = {"client": event.client, "what": event.what, "epoch": event.epoch, "mark": event.mark}
            pipe.xadd(self._key("events"), {**fields, "at_ms": event.at_ms}, maxlen=EVENTS_MAX, approximate=True)
        await pipe.execute()

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _is_connected(self) -> None:
        if not self.connected:
            self._log.info("writing sessions again", waiting=len(self._waiting))
        self.connected, self._said = True, ""

    def _is_away(self, error: BaseException) -> None:
        self.failed += 1
        if self._said != (said := _told(error)):
            self._log.warning("cannot write sessions; clients and runs continue", cause=said)
        self.connected, self._said = False, said


def _minute(minute: int, row: dict[bytes, bytes]) -> MinuteCounts:
    by: dict[str, dict[str, int]] = {way: {} for way in WAYS}
    for field, count in row.items():
        way, _, mark = field.decode(errors="replace").partition(" ")
        if way in by:
            by[way][mark] = int(count)
    return MinuteCounts(minute, by["came"], by["went"])


def _told(error: BaseException) -> str:
    return cause(error)

"""A copy of one shard's store in its reader, which answers without a trip to the store.

Owns when the copy may be asked. It is filled by the store: pages of all users first, then each batch as its writer wrote
it, in the order of their numbers. Once a second and more often the store is asked for its clock, the shard's keepalive and
the number of batches: a copy that has these batches was the store's content then, so the rule of freshness is that of a
look-up in the store. The store's clock goes on by this process's one, counted from before the question: a late answer
makes the copy look older than it is, never younger.

Whatever is in doubt goes to the store: a writer that claimed the shard, or a store that was written again (another life), or
that went back (fewer batches), and a batch that is missing, load the copy again. A store that does not answer leaves the
copy, which grows old. Must not know requests.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import structlog

from muster_server._engines import PresenceTable
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.presence.questions import CopyStats
from muster_server.systems.presence.store import BUCKETS, Head, Shard, Written, seconds

HEAD_S: Final = 0.5
"""Interval of questions for the state of the store, in seconds."""
AGAIN_S: Final = 0.25
"""Seconds between tries while the store does not answer."""
AGAIN_MAX_S: Final = 10.0
"""Longest pause before a copy is loaded again, if it could not follow or does not fit: a load takes a second of the
store's time for each million users."""
SEEN_BUCKETS: Final = 64
"""Buckets of last-seen times in one page: at most 16,384 users, for which the store takes about 10 ms."""


class Table(Protocol):
    """What `Standing` reads of a `PresenceTable`."""

    @property
    def is_whole(self) -> bool:
        """Whether it is loaded and misses no batch."""

    @property
    def batches(self) -> int:
        """Number of its last batch."""


class Fresh(NamedTuple):
    """The times of a copy that may be asked, in ms of the store's clock."""

    now: int
    alive: int
    """The shard's keepalive."""


class Standing:
    """Whether a copy may be asked. No I/O; its owner tells the time."""

    def __init__(self, table: Table, fresh_ms: int) -> None:
        self._table, self._fresh_ms = table, fresh_ms
        self._waiting: tuple[Head, float] | None = None
        """A state of the store whose batches the copy has not, and when it was asked for."""
        self._head: Head | None = None
        """The last state of the store whose batches the copy has."""
        self._asked_at = 0.0

    def clear(self) -> None:
        """The copy is loaded again."""
        self._waiting = self._head = None

    def take(self, head: Head, asked_at: float) -> None:
        """The state of the store, and when it was asked for."""
        self._advance()
        if self._waiting is None:  # else the copy lags behind, and is younger by the earlier state sooner
            self._waiting = (head, asked_at)
        if not head.alive:  # its writer takes back that the shard is whole
            self._waiting, self._head = (head, asked_at), None

    def _advance(self) -> None:
        if self._waiting is not None and self._table.batches >= self._waiting[0].batches:
            (self._head, self._asked_at), self._waiting = self._waiting, None

    def fresh(self, now: float) -> Fresh | None:
        """The times of the copy; None: it must not be asked."""
        if not self._table.is_whole:
            return None
        self._advance()
        if self._head is None or not self._head.alive:
            return None
        at = self._head.now + round((now - self._asked_at) * 1_000)
        return Fresh(at, self._head.alive) if abs(at - self._head.alive) <= self._fresh_ms else None


class Lost(Exception):
    """The copy must be loaded again. The text is one line."""


class Behind(Lost):
    """The stream has dropped batches that the copy has not."""


class Near:
    """The copy of one shard. `run` fills it."""

    def __init__(
        self,
        shard: Shard,
        fresh_ms: int,
        log: structlog.typing.FilteringBoundLogger,
        clock: Callable[[], float] = seconds,
    ) -> None:
        """`clock`: the seconds of this process."""
        self._shard, self._log, self._clock = shard, log, clock
        self.table = PresenceTable(shards=shard.shards, buckets=BUCKETS, seed=secrets.randbits(64))
        self._standing = Standing(self.table, fresh_ms)
        self._life, self._place = "", ""
        self._why = "the store was not read yet"
        """Why the copy is not followed; empty: it is."""
        self.loads = 0
        """Times that the copy was loaded."""

    def fresh(self) -> Fresh | None:
        """The times of the copy; None: it must not be asked."""
        return self._standing.fresh(self._clock())

    def stats(self) -> CopyStats:
        """The state of the copy."""
        why = self._why or "the shard's keepalive is old, or batches are missing"
        return CopyStats("" if self.fresh() else why, self.table.users, self.table.bytes, self.loads)

    # ---- Filling

    async def run(self) -> None:
        """Fill the copy until cancelled."""
        pause = AGAIN_S
        while True:
            try:
                await self._load()
                while True:
                    await self._follow()
            except (StoreError, Lost, ValueError) as error:
                self._standing.clear()
                if str(error) != self._why:
                    self._log.info("look-ups go to the store of a shard", shard=self._shard.name, cause=str(error))
                self._why = str(error)
                pause = min(2 * pause, AGAIN_MAX_S) if isinstance(error, (Behind, ValueError)) else AGAIN_S
            await asyncio.sleep(pause)

    async def _load(self) -> None:
        """Read all of the store. Raises `StoreError`, `Lost`, `ValueError`."""
        head = await self._shard.head()
        if not head.life:
            raise Lost("no writer has claimed it, or presence.near is off there")
        began = self._clock()
        self._standing.clear()
        self._life, self._place = head.life, head.place or "0-0"
        self.table.begin(head.batches)
        async for page in self._shard.pages():
            self.table.page(page)
            await self._catch_up()
        for first in range(0, BUCKETS, SEEN_BUCKETS):
            self.table.seen_page(await self._shard.seen(first, first + SEEN_BUCKETS - 1))
            await self._catch_up()
        self.table.loaded()
        self.loads += 1
        self._why = ""
        took = round(self._clock() - began, 3)
        self._log.info("a shard was copied", shard=self._shard.name, users=self.table.users, seconds=took)
        await self._look()

    async def _follow(self) -> None:
        """Take batches for a while, then the state of the store; an absent store is asked again. Raises `Lost`,
        `ValueError`."""
        try:
            until = self._clock() + HEAD_S
            while (left := until - self._clock()) > 0:
                self._take(await self._shard.written(self._place, left))
            await self._look()
            self._why = ""
        except StoreError as error:
            self._why = str(error)
            await asyncio.sleep(AGAIN_S)

    async def _look(self) -> None:
        asked_at = self._clock()
        head = await self._shard.head()
        if head.life != self._life:
            raise Lost("a writer claimed the shard, or wrote its store again")
        if head.batches < self.table.batches:
            raise Lost("the store went back")
        self._standing.take(head, asked_at)

    async def _catch_up(self) -> None:
        while batches := await self._shard.written(self._place, None):
            self._take(batches)

    def _take(self, batches: list[Written]) -> None:
        for each in batches:
            if each.life != self._life:
                raise Lost("a writer claimed the shard, or wrote its store again")
            if not self.table.batch(each.number, each.users, each.gone, each.at_s):
                raise Behind(f"batch {self.table.batches + 1} is missing")
            self._place = each.place

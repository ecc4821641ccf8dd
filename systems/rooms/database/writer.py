"""Changes on their way to the database: accepted or dropped at once, written in batches, retried after errors.

The waiting changes are bounded, one per (gateway, room): while the database does not answer, a newer change replaces
the older one. Beyond the limit a change of another key is dropped, counted, and logged: the next warm start lacks it.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from muster_server.control.cluster.child import Backoff
from muster_server.plane.database.errors import told
from muster_server.systems.rooms.database.records import Change, Ended, Membership

WAITING_MAX: Final = 1 << 17
"""Limit of waiting changes; about 300 B each."""
LIVES_MAX: Final = 4_096
"""Limit of ended lives: as many nodes as a router knows."""
BATCH: Final = 500
DELAY_S: Final = 0.2
"""Seconds for which the first change of a batch waits for others."""
PRUNE_S: Final = 60.0
CANCEL_S: Final = 0.5
"""Limit of closing, in seconds: a driver may wait for the server then too."""


class Store(Protocol):
    """The target of changes; see `systems/rooms/database/store.py`."""

    where: str

    async def open(self) -> None:
        """Test the connection."""

    async def write(self, changes: Sequence[Change]) -> None:
        """Write changes, ended lives first. Raises `DatabaseError`."""

    async def prune(self) -> None:
        """Delete old rows. Raises `DatabaseError`."""


class Writer:
    """Writes from `start` to `close`."""

    def __init__(
        self,
        store: Store,
        log: structlog.typing.FilteringBoundLogger,
        *,
        waiting_max: int = WAITING_MAX,
        batch: int = BATCH,
        delay_s: float = DELAY_S,
        prune_s: float = PRUNE_S,
    ) -> None:
        self.connected = False
        self.error = ""
        """The error of the last attempt; empty after a success."""
        self.written = self.dropped = self.failed = 0
        self._store, self._log = store, log.bind(database=store.where.partition(":")[0])
        self._waiting_max, self._batch, self._delay_s, self._prune_s = waiting_max, batch, delay_s, prune_s
        self._waiting: dict[tuple[int, int], Membership] = {}
        self._ended: dict[int, Ended] = {}
        self._dropped_said = 0
        self._since = time.monotonic()
        self._backoff = Backoff(random.Random())
        self._some, self._full, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Changes that are not in the database yet."""
        return len(self._waiting) + len(self._ended)

    def put(self, change: Change) -> None:
        """Accept a change; it replaces an older one of the same key."""
        if isinstance(change, Ended):
            self._end(change)
        elif (known := self._waiting.get(change.key)) is not None:
            if known.age <= change.age:
                self._waiting[change.key] = change
        elif len(self._waiting) < self._waiting_max:
            self._waiting[change.key] = change
        else:
            self._drop()
        self._some.set()
        if self.waiting >= self._batch:
            self._full.set()

    def _end(self, ended: Ended) -> None:
        over = [each for each in self._waiting.values() if each.gateway == ended.gateway and each.epoch <= ended.epoch]
        for each in over:
            del self._waiting[each.key]
        known = self._ended.get(ended.gateway)
        if known is None and len(self._ended) >= LIVES_MAX:
            self._drop()
        elif known is None or known.epoch < ended.epoch:
            self._ended[ended.gateway] = ended

    def _drop(self) -> None:
        self.dropped += 1
        if not self._dropped_said:
            self._log.warning("too many changes wait for the database; dropping further ones", waiting=self.waiting)
            self._dropped_said = self.dropped

    def start(self) -> None:
        """Start writing."""
        self._task = asyncio.create_task(self._run())

    async def close(self, seconds: float) -> None:
        """Write the waiting changes, for at most `seconds`; log the number of unwritten ones."""
        self._closing.set()
        self._some.set()
        self._full.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_S)
            self._task = None
        if self.waiting:
            self._log.warning("some changes were not written in time", waiting=self.waiting, seconds=seconds)

    async def _run(self) -> None:
        pruned = time.monotonic()
        await self._try(())
        while self.waiting or not self._closing.is_set():
            if self.connected:
                await _within(self._some, self._prune_s)
            if self.waiting:
                await _within(self._full, self._delay_s)
                await self._try(self._next())
            elif not self.connected:
                await self._try(())
            if not self.waiting and not self._closing.is_set():
                self._some.clear()
            if self.waiting < self._batch and not self._closing.is_set():
                self._full.clear()
            if self.connected and time.monotonic() - pruned >= self._prune_s:
                pruned = time.monotonic()
                await self._try(None)

    def _next(self) -> list[Change]:
        """The next batch, the oldest first. It keeps waiting until it is written."""
        changes = itertools.chain[Change](self._ended.values(), self._waiting.values())
        return list(itertools.islice(changes, self._batch))

    async def _try(self, changes: Sequence[Change] | None) -> None:
        """Write a batch (`None`: prune instead). After an error, pause before the next attempt."""
        try:
            if changes is None:
                await self._store.prune()
            elif changes:
                await self._store.write(changes)
            else:
                await self._store.open()
        except Exception as error:  # raised by another library too: the changes must still be written
            await self._did_fail(told(error))
        else:
            self._did_go(changes or ())

    def _did_go(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Ended):
                if self._ended.get(change.gateway) is change:
                    del self._ended[change.gateway]
            elif self._waiting.get(change.key) is change:
                del self._waiting[change.key]
        self.written += len(changes)
        if not self.connected:
            self._log.info("writing to the database again", waiting=self.waiting, after_s=self._for_s())
            self.connected, self.error, self._since = True, "", time.monotonic()
        if self._dropped_said and self.waiting < self._waiting_max // 2:
            self._log.warning("changes were dropped: the next warm start lacks them", dropped=self.dropped)
            self._dropped_said = 0

    async def _did_fail(self, error: str) -> None:
        self.failed += 1
        healthy_s = self._for_s() if self.connected else 0.0
        if self.connected:
            self._since = time.monotonic()
        if self.connected or not self.error:
            self._log.warning("cannot write to the database; changes wait", reason=error, waiting=self.waiting)
        self.connected, self.error = False, error
        delay_s = self._backoff.delay(healthy_s)
        await (asyncio.sleep(delay_s) if self._closing.is_set() else _within(self._closing, delay_s))

    def _for_s(self) -> float:
        return round(time.monotonic() - self._since, 3)


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return

"""Items of many rooms on their way into the store: written together, each room in order, and again after errors.

Owns the queue and its bound. While the store does not answer, readers of rooms wait here and the library keeps what
comes; beyond its buffer it leaves a gap, which is written like messages. So no message of a room waits for the archive.
It must not know SQL, and how rooms are read.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

import muster
from muster_server.control.cluster.child import Backoff
from muster_server.plane.database.errors import BadValue
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.rooms.archive.blocks import ENDLESS, Block, packed, size_of
from muster_server.systems.rooms.archive.keyed import Keyed, keyed
from muster_server.systems.rooms.archive.records import State, Store, Write

WAITING_BYTES_MAX: Final = 64 << 20
"""Limit of bytes that wait, besides one batch of each room."""
TOGETHER_BYTES: Final = 8 << 20
"""Limit of bytes of one transaction, besides the last room's."""
TOGETHER_ROOMS: Final = 500
GATHER_S: Final = 0.02
"""How long the first item of a transaction waits for others, in seconds."""
SAME_MS: Final = 1_000
"""Items that came within this time share one: a block has one time."""
ITEM_BYTES: Final = 64
_Pending = tuple[int, list[muster.Item]]
"""Items, and when they came."""


class Overtaken(Exception):
    """Another node has written to the room, or the fate of a write was unknown: read from the stored position on."""


class Course:
    """One room on its way into the store. `state`: how far it is written."""

    def __init__(self, room: str, state: State, begun: bool) -> None:
        self.room, self.state, self.begun = room, state, begun
        self.positions = state.positions
        """Behind the newest item that waits."""
        self.pending: list[_Pending] = []
        self.bytes = 0
        self.error: Exception | None = None
        """Why nothing more is written."""
        self.over = asyncio.Event()
        """Set with `error`."""

    def fail(self, error: Exception) -> None:
        """Write no more."""
        self.error = error
        self.pending, self.bytes = [], 0
        self.over.set()


class Writer:
    """Writes while `run` runs."""

    def __init__(self, store: Store, log: structlog.typing.FilteringBoundLogger) -> None:
        self._store, self._log = store, log
        self._ready: dict[str, Course] = {}
        """Rooms with items that wait, in turn."""
        self._some, self._space = asyncio.Event(), asyncio.Event()
        self._space.set()
        self._backoff = Backoff(random.Random())
        self.bytes = 0
        """Bytes that wait."""
        self.messages = self.gaps = self.lost = self.failed = 0
        """Written messages and gaps; messages that these gaps stand for, as far as known; failed writes."""
        self.error = ""
        """Why the last write failed; empty: it did not."""

    @property
    def waiting(self) -> int:
        """Rooms that wait."""
        return len(self._ready)

    async def put(self, course: Course, items: Sequence[muster.Item], positions: bytes, at_ms: int) -> None:
        """Hand over a batch. Waits while too much waits. Raises `Overtaken`, `StoreError`."""
        while self.bytes > WAITING_BYTES_MAX and course.error is None:
            self._space.clear()
            await self._space.wait()
        if course.error is not None:
            raise course.error
        kept: list[muster.Item] = [item for item in items if not isinstance(item, muster.Command)]
        if not kept:
            return
        messages = (item for item in kept if isinstance(item, muster.Message))
        size = sum(size_of(item.data, item.headers) for item in messages) + ITEM_BYTES * len(kept)
        course.pending.append((at_ms, kept))
        course.positions = positions
        course.bytes += size
        self.bytes += size
        self._ready[course.room] = course
        self._some.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            some = self._next()
            await self._write([self._taken(course) for course in some], some)

    async def flushed(self) -> None:
        """Wait until nothing waits."""
        while self._ready or self.bytes:  # noqa: ASYNC110 - another task's queue
            await asyncio.sleep(GATHER_S)

    def drop(self, course: Course) -> None:
        """Forget what waits of a room: it is read again."""
        if self._ready.get(course.room) is course:
            del self._ready[course.room]
        self._free(course.bytes)
        course.pending, course.bytes = [], 0

    def _next(self) -> list[Course]:
        some: list[Course] = []
        size = 0
        while self._ready and len(some) < TOGETHER_ROOMS and size < TOGETHER_BYTES:
            course = self._ready.pop(next(iter(self._ready)))
            some.append(course)
            size += course.bytes
        if not self._ready:
            self._some.clear()
        return some

    def _taken(self, course: Course) -> tuple[Write, int, State]:
        """The waiting messages of a room, as a write with its bytes, and the room's state behind it."""
        seq, at_ms = course.state.last_seq + 1, course.state.at_ms
        blocks: list[Block] = []
        latest: dict[str, Keyed] = {}
        for came_ms, items in _merged(course.pending):
            at_ms = max(at_ms, came_ms)
            latest |= keyed(items, seq, at_ms)
            blocks += packed(items, seq, at_ms)
            seq = blocks[-1].end
        known = course.state.last_seq
        write = Write(course.room, known, blocks, course.positions, course.begun, list(latest.values()))
        size = course.bytes
        course.pending, course.bytes = [], 0
        return write, size, State(seq - 1, at_ms, course.positions)

    async def _write(self, taken: Sequence[tuple[Write, int, State]], courses: Sequence[Course]) -> None:
        writes = [write for write, _, _ in taken]
        overtaken: set[str] = set()
        while True:
            try:
                overtaken = await self._store.write(writes)
            except BadValue as error:
                if len(taken) > 1:  # the others are not to blame
                    for one, course in zip(taken, courses, strict=True):
                        await self._write([one], [course])
                    return
                self._did_fail(error)
                self._free(taken[0][1])
                self.drop(courses[0])
                courses[0].fail(error)
                return
            except StoreError as error:
                self._did_fail(error)
                await asyncio.sleep(self._backoff.delay(0.0))
                continue
            break
        if self.error:
            self._log.info("the database answers again")
            self.error = ""
            self._backoff = Backoff(random.Random())
        for (write, size, state), course in zip(taken, courses, strict=True):
            self._free(size)
            if write.room in overtaken:
                self.drop(course)
                course.fail(Overtaken(write.room))
            else:
                course.state = state
                self._count(write.blocks)

    def _did_fail(self, error: StoreError) -> None:
        self.failed += 1
        if str(error) != self.error:
            self._log.warning("cannot write to the database; messages wait", cause=str(error), bytes=self.bytes)
            self.error = str(error)

    def _count(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.messages += block.messages
            if block.reason:
                self.gaps += 1
                self.lost += 0 if block.last == ENDLESS else block.last - block.first + 1

    def _free(self, size: int) -> None:
        self.bytes -= size
        if self.bytes <= WAITING_BYTES_MAX:
            self._space.set()


def _merged(pending: Sequence[_Pending]) -> Iterable[_Pending]:
    """The batches, with those together that came within a second."""
    found: list[_Pending] = []
    for at_ms, items in pending:
        if found and at_ms - found[-1][0] < SAME_MS:
            found[-1][1].extend(items)
        else:
            found.append((at_ms, list(items)))
    return found

"""A log in a store to which several processes can append at once, for example a partition of a Kafka topic.

Owns the rule of which messages belong to the log, and with it the fencing of a stale owner. It must not know Kafka.

A message is a claim or a batch, with the epoch of its owner. In the order of their positions:
- A claim counts if its epoch is greater than those of all claims before.
- A batch counts if its epoch is that of the last claim and its first offset follows the batch before it. So batches of
a stale owner are void wherever they land, and so is a batch that was written twice.

Every reader gets the same records. An owner finds its batch at the next position, or reads those between and learns of
a later claim; it reports no batch before it knows. After an append whose fate the store did not tell, it refuses: the
next owner's claim settles that fate. Truncation keeps the last batch, whose head tells where the log continues.
"""

import asyncio
import struct
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

from muster_server.plane.log.words import (
    BATCH_BYTES_MAX,
    Batch,
    Beyond,
    Damaged,
    Failed,
    TooLarge,
    Trimmed,
)
from muster_server.plane.ownership.errors import Fenced, StoreError

HEAD: Final = struct.Struct("<2sBxIQQ")
"""Magic, kind, number of records, epoch, offset of the first record."""
MAGIC: Final = b"ML"
CLAIM: Final = 1
BATCH: Final = 2

Verdict = Literal["claim", "batch", "void"]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message."""

    kind: int
    count: int
    epoch: int
    first: int

    @classmethod
    def of(cls, message: bytes) -> Self | None:
        """Parse the head; None for a message that no log wrote."""
        if len(message) < HEAD.size:
            return None
        magic, kind, count, epoch, first = HEAD.unpack_from(message)
        return cls(kind, count, epoch, first) if magic == MAGIC and kind in {CLAIM, BATCH} else None

    def message(self, payload: bytes = b"") -> bytes:
        """Prepend the head to a payload."""
        return HEAD.pack(MAGIC, self.kind, self.count, self.epoch, self.first) + payload


class Fold:
    """The rule. `end` is None until a batch has told where a truncated log begins."""

    def __init__(self, end: int | None) -> None:
        self.epoch, self.end = 0, end

    def take(self, head: Head | None) -> Verdict:
        """Judge the next message."""
        if head is None:
            return "void"
        if head.kind == CLAIM:
            if head.epoch <= self.epoch:
                return "void"
            self.epoch = head.epoch
            return "claim"
        if self.end is None:  # the log was truncated here, so this batch counts
            self.epoch = max(self.epoch, head.epoch)
        elif head.epoch != self.epoch or head.first != self.end:
            return "void"
        self.end = head.first + head.count
        return "batch"


class Partition(Protocol):
    """A durable sequence of messages. Each has a position, and positions have no gaps."""

    async def append(self, message: bytes) -> int | None:
        """Make a message durable. Returns its position, or None if the store does not tell it.

        Raises `TooLarge`, or `Failed` if its fate is unknown.
        """

    async def bounds(self) -> tuple[int, int]:
        """The position of the oldest message, and the position after the newest. Raises `Failed`."""

    def read(self, first: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """The messages at `first` to `end`, exclusive. Raises `IndexError` where they were dropped, and `Failed`."""

    async def drop(self, below: int) -> None:
        """Drop the messages below a position. Raises `Failed`."""


class SharedLog:
    """The log of one owner in a partition."""

    def __init__(self, partition: Partition, epoch: int, begin: int) -> None:
        self.epoch = epoch
        self._partition = partition
        self._fold = Fold(None if begin else 0)
        self._next = begin
        """The position of the next message to judge."""
        self._claim = -1
        """The position of the last claim that counts."""
        self._firsts, self._positions = array("Q"), array("Q")
        """For each batch: the offset of its first record, and its position."""
        self._turn = asyncio.Lock()
        self._refusal: StoreError | None = None

    @classmethod
    async def open(cls, partition: Partition, epoch: int | None) -> Self:
        """Claim the log, and read it up to the claim. Raises as `Logs.open` does."""
        begin, end = await partition.bounds()
        log = cls(partition, 0, begin)
        await log._judge(end)
        log.epoch = log._fold.epoch + 1 if epoch is None else epoch
        if log.epoch <= log._fold.epoch:
            raise log._fenced()
        at = await partition.append(Head(CLAIM, 0, log.epoch, 0).message())
        if at is None:
            raise Failed("the fate of the claim is unknown")
        await log._judge(at + 1)
        if log._claim != at:
            raise log._fenced()
        if log._fold.end is None:
            raise Damaged("no batch is left: another program has dropped messages of this log")
        return log

    @property
    def start(self) -> int:
        return self._firsts[0] if self._firsts else self.end

    @property
    def end(self) -> int:
        assert self._fold.end is not None, "set since the log was opened"
        return self._fold.end

    async def append(self, batch: Batch) -> range:
        if len(batch.payload) > BATCH_BYTES_MAX:
            raise TooLarge(f"the batch is too large: {len(batch.payload)} bytes (limit {BATCH_BYTES_MAX})")
        # If the caller stops waiting, the batch continues.
        return await asyncio.shield(asyncio.ensure_future(self._append(batch)))

    async def _append(self, batch: Batch) -> range:
        async with self._turn:
            if self._refusal is not None:
                raise type(self._refusal)(str(self._refusal))
            first, end = self.end, self.end + batch.count
            if batch.count == 0:
                return range(first, first)
            head = Head(BATCH, batch.count, self.epoch, first)
            try:
                await self._settle(head, await self._partition.append(head.message(batch.payload)))
                if self._fold.epoch > self.epoch:
                    raise self._fenced()
                if self.end != end:
                    raise Failed(f"the log ends at {self.end}, expected {end}")
            except (Failed, Fenced) as error:
                self._refusal = error
                raise
            return range(first, end)

    async def _settle(self, head: Head, at: int | None) -> None:
        """Judge the appended message, and those before it. Raises `Failed`."""
        if at == self._next:
            self._take(at, head)
            return
        if at is not None and at < self._next:
            raise Failed(f"the store has lost messages: the new position is {at}, but {self._next} was next")
        await self._judge((await self._partition.bounds())[1] if at is None else at + 1)

    async def _judge(self, end: int) -> None:
        if end < self._next:
            raise Failed(f"the store has lost messages: it ends at {end}, but {self._next} was next")
        try:
            async for at, message in self._partition.read(self._next, end):
                self._take(at, Head.of(message))
        except IndexError:  # a later owner dropped them
            raise Failed(f"the messages from position {self._next} on were dropped") from None
        if self._next != end:
            raise Failed(f"messages from position {self._next} on are missing")

    def _take(self, at: int, head: Head | None) -> None:
        if self._fold.end is None and (head is None or head.kind != BATCH):
            raise Damaged("the oldest message is not a batch: another program has dropped messages of this log")
        verdict = self._fold.take(head)
        self._next = at + 1
        if verdict == "claim":
            self._claim = at
        elif verdict == "batch" and head is not None:
            self._firsts.append(head.first)
            self._positions.append(at)

    def _fenced(self) -> Fenced:
        return Fenced(f"the log belongs to the owner of epoch {self._fold.epoch}")

    async def read(self, offset: int) -> AsyncIterator[tuple[int, Batch]]:
        end, until = self.end, self._next
        if offset > end:
            raise Beyond(end)
        if offset < self.start:
            raise Trimmed(self.start)
        if offset == end:
            return
        at = bisect_right(self._firsts, offset) - 1
        counting = self._positions[at:]
        place = 0
        try:
            async for position, message in self._partition.read(counting[0], until):
                if place < len(counting) and position == counting[place]:
                    place += 1
                    head = Head.of(message)
                    assert head is not None, "judged before"
                    batch = Batch(message[HEAD.size :], head.count)
                    passed = max(offset - head.first, 0)
                    yield (head.first + passed, batch.without(passed) if passed else batch)
        except IndexError:
            raise Trimmed(self.start) from None
        if place < len(counting):
            raise Failed(f"{len(counting) - place} batches are missing")

    async def truncate(self, below: int) -> None:
        """Drop records below an offset. A stale owner that may know of a later one drops nothing."""
        async with self._turn:
            await self._judge((await self._partition.bounds())[1])
            if self._fold.epoch > self.epoch:
                return
        place = bisect_right(self._firsts, below) - 1
        if place <= 0:
            return
        await self._partition.drop(self._positions[place])
        del self._firsts[:place], self._positions[:place]

    def lag(self, offset: int) -> int:
        return self.end - offset

    async def close(self) -> None:
        async with self._turn:
            self._refusal = self._refusal or Failed("the log is closed")

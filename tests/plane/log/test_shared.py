"""The rule of owners, over a partition that delays, repeats and loses what it was given."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from random import Random

import pytest
import uvloop

from muster_server.plane.log import Batch, Damaged, Failed
from muster_server.plane.log.shared import BATCH, CLAIM, Fold, Head, SharedLog, Verdict
from muster_server.plane.ownership.errors import Fenced

OWNERS, TURNS = 3, 12


class Faulty:
    """A partition in memory."""

    def __init__(self, random: Random) -> None:
        self.messages: list[bytes] = []
        self.low = 0
        self._random = random
        self._late: list[bytes] = []

    async def _delay(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        while self._late and self._random.random() < 0.2:
            self.messages.append(self._late.pop(self._random.randrange(len(self._late))))

    async def append(self, message: bytes) -> int | None:
        await self._delay()
        match self._random.randrange(12):
            case 0:
                raise Failed("lost")
            case 1:
                self._late.append(message)
                raise Failed("late")
            case 2:
                self._late.append(message)
                self.messages.append(message)
            case _:
                self.messages.append(message)
        at = len(self.messages) - 1
        await self._delay()
        return None if self._random.randrange(8) == 0 else at

    async def bounds(self) -> tuple[int, int]:
        await self._delay()
        return self.low, len(self.messages)

    async def read(self, first: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        for at in range(first, end):
            await self._delay()
            if at < self.low:
                raise IndexError(at)
            yield at, self.messages[at]

    async def drop(self, below: int) -> None:
        await self._delay()
        self.low = max(self.low, below)


async def play(seed: int) -> None:
    """Owners take the log from each other and append; then everything acknowledged is there, once, where it was told."""
    random = Random(seed)
    partition, epochs, numbers = Faulty(random), itertools.count(1), itertools.count()
    acked: dict[int, bytes] = {}

    async def owner() -> None:
        for _ in range(TURNS):
            with contextlib.suppress(Fenced, Failed):
                log = await SharedLog.open(partition, next(epochs))
                for _ in range(random.randrange(6)):
                    records = [b"%d" % next(numbers) for _ in range(random.randrange(1, 4))]
                    for offset, record in zip(await log.append(Batch.of(records)), records, strict=True):
                        assert acked.setdefault(offset, record) == record, f"two records at offset {offset}"
                    if random.randrange(4) == 0:
                        await log.truncate(random.randrange(log.end + 1))

    await asyncio.gather(*(owner() for _ in range(OWNERS)))
    records = await everything(partition, epochs)
    start = min(records, default=0)
    assert {offset: records.get(offset) for offset in acked if offset >= start} == {
        offset: record for offset, record in acked.items() if offset >= start
    }
    assert len(set(records.values())) == len(records), "a record is there twice"


async def everything(partition: Faulty, epochs: Iterator[int]) -> dict[int, bytes]:
    while True:
        with contextlib.suppress(Fenced, Failed):
            log = await SharedLog.open(partition, next(epochs))
            records: dict[int, bytes] = {}
            async for first, batch in log.read(log.start):
                records |= dict(enumerate(batch.records(), first))
            return records


def found(seeds: int) -> bool:
    """Whether a seed fails."""
    for seed in range(seeds):
        try:
            uvloop.run(play(seed))
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("seed", range(300))
async def test_whatever_was_acknowledged_is_there_once(seed: int) -> None:
    await play(seed)


class StaleCounts(Fold):
    def take(self, head: Head | None) -> Verdict:
        if head is not None and head.kind == BATCH:
            self.epoch, head = max(self.epoch, head.epoch), replace(head, epoch=self.epoch)
        return super().take(head)


class RepeatCounts(Fold):
    def take(self, head: Head | None) -> Verdict:
        if head is not None and head.kind == BATCH and self.end is not None:
            head = replace(head, first=self.end)
        return super().take(head)


class EveryClaimCounts(Fold):
    def take(self, head: Head | None) -> Verdict:
        if head is not None and head.kind == CLAIM:
            self.epoch = 0
        return super().take(head)


@pytest.mark.parametrize("planted", [StaleCounts, RepeatCounts])
def test_planted_rule_is_found(planted: type[Fold], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.plane.log.shared.Fold", planted)
    assert found(300)


def test_owner_that_does_not_read_what_lies_between_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blindly(self: SharedLog, head: Head, at: int | None) -> None:
        self._take(self._next if at is None else at, head)

    monkeypatch.setattr(SharedLog, "_settle", blindly)
    assert found(300)


async def test_second_claim_of_an_epoch_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twin(Faulty):
        """Another owner of the same epoch is quicker, once it is past the check."""

        async def append(self, message: bytes) -> int | None:
            self.messages += [Head(CLAIM, 0, 5, 0).message(), message]
            return len(self.messages) - 1

        async def _delay(self) -> None:
            pass

    with pytest.raises(Fenced, match="epoch 5"):
        await SharedLog.open(Twin(Random(1)), 5)
    monkeypatch.setattr("muster_server.plane.log.shared.Fold", EveryClaimCounts)
    await SharedLog.open(Twin(Random(1)), 5)  # so the check above can fail


async def test_messages_of_others_are_passed_over() -> None:
    class Quiet(Faulty):
        async def append(self, message: bytes) -> int | None:
            self.messages += [b"", b"noise" * 20, message]
            return len(self.messages) - 1

    log = await SharedLog.open(Quiet(Random(1)), 1)
    assert [await log.append(Batch.of([b"a"])), await log.append(Batch.of([b"b"]))] == [range(1), range(1, 2)]
    assert [batch.payload[4:] async for _, batch in log.read(0)] == [b"a", b"b"]


async def test_store_that_dropped_or_lost_messages_by_itself_is_told() -> None:
    partition = Faulty(Random(1))
    partition.messages = [Head(CLAIM, 0, 1, 0).message(), Head(BATCH, 1, 1, 0).message(b"\1\0\0\0a")] * 2
    partition.low = 2
    with pytest.raises(Damaged, match="another program has dropped"):
        await SharedLog.open(partition, 9)
    partition.low = len(partition.messages)

    async def taken(message: bytes) -> int | None:
        partition.messages.append(message)
        return len(partition.messages) - 1

    partition.append = taken  # type: ignore[method-assign]
    with pytest.raises(Damaged, match="another program has dropped"):
        await SharedLog.open(partition, 9)
    partition.low = 0
    log = await SharedLog.open(partition, 10)
    del partition.messages[2:]
    with pytest.raises(Failed, match="lost messages"):
        await log.append(Batch.of([b"b"]))

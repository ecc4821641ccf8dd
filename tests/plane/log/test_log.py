"""What a log promises, by both versions."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from muster_server.plane.log import BATCH_BYTES_MAX, Batch, Beyond, Damaged, Log, TooLarge, Trimmed
from muster_server.plane.log.embedded import EmbeddedLogs
from muster_server.plane.ownership.errors import Fenced
from tests import strikes
from tests.plane.log.conftest import Place
from tests.plane.log.owner import RECORDS
from tests.waiting import until

MIB = 1 << 20


async def read(log: Log, offset: int = 0) -> dict[int, bytes]:
    """All records from an offset on."""
    found: dict[int, bytes] = {}
    async for first, batch in log.read(offset):
        records = list(batch.records())
        assert len(records) == batch.count
        assert not found or first == max(found) + 1, "no gap and no order of its own"
        found |= dict(enumerate(records, first))
    return found


async def test_records_come_back_in_order_after_the_log_was_opened_again(place: Place) -> None:
    log = await place.open(1)
    assert (log.start, log.end, log.epoch) == (0, 0, 1)
    assert await log.append(Batch.of([b"a", b"", b"c" * 300])) == range(3)
    assert await log.append(Batch.of([b"d"])) == range(3, 4)
    assert await log.append(Batch.of([])) == range(4, 4)
    wanted = {0: b"a", 1: b"", 2: b"c" * 300, 3: b"d"}
    assert await read(log) == wanted
    await place.close(log)
    again = await place.open(2)
    assert (again.start, again.end) == (0, 4)
    assert await read(again) == wanted
    assert await again.append(Batch.of([b"e"])) == range(4, 5)
    assert await read(again, 1) == {1: b"", 2: b"c" * 300, 3: b"d", 4: b"e"}, "from within a batch"
    assert again.lag(2) == 3


async def test_batches_go_in_the_order_of_the_calls(place: Place) -> None:
    log = await place.open(1)
    batches = [Batch.of([f"{number}".encode()]) for number in range(200)]
    assert await asyncio.gather(*map(log.append, batches)) == [range(at, at + 1) for at in range(200)]
    assert list((await read(log)).values()) == [b"%d" % number for number in range(200)]


async def test_partitions_are_logs_of_their_own(place: Place) -> None:
    one, other = await place.open(1, 0), await place.open(1, 1)
    await one.append(Batch.of([b"one"]))
    await other.append(Batch.of([b"other"]))
    assert (await read(one), await read(other)) == ({0: b"one"}, {0: b"other"})


async def test_swapped_folders_of_two_logs_are_refused_until_they_are_moved_back(tmp_path: Path) -> None:
    logs = EmbeddedLogs(tmp_path)
    for partition in range(2):
        log = await logs.open("feed", partition)
        await log.append(Batch.of([b"%d" % partition]))
        await log.close()
    first, second, beside = (tmp_path / "feed" / name for name in ("0", "1", "beside"))
    first.rename(beside)
    second.rename(first)
    beside.rename(second)
    with pytest.raises(Damaged, match="has the log feed 1, not feed 0: move the folders of logs back"):
        await logs.open("feed", 0)
    first.rename(beside)
    second.rename(first)
    log = await logs.open("feed", 0)
    assert await read(log) == {0: b"0"}
    await log.close()


async def test_offset_beyond_the_end_is_told(place: Place) -> None:
    log = await place.open(1)
    await log.append(Batch.of([b"a"]))
    assert await read(log, 1) == {}
    with pytest.raises(Beyond, match="beyond the end of the log at 1"):
        await read(log, 2)


async def test_stale_owner_appends_nothing(place: Place) -> None:
    stale = await place.open(1)
    await stale.append(Batch.of([b"a"]))
    owner = await place.open(2)
    with pytest.raises(Fenced, match="epoch 2"):
        await stale.append(Batch.of([b"lost"]))
    with pytest.raises((Fenced, Exception)):
        await stale.append(Batch.of([b"lost too"]))
    assert await owner.append(Batch.of([b"b"])) == range(1, 2)
    await place.close(owner)
    assert await read(await place.open(3)) == {0: b"a", 1: b"b"}


async def test_earlier_epoch_does_not_open_the_log(place: Place) -> None:
    owner = await place.open(7)
    for epoch in (6, 7):
        with pytest.raises(Fenced, match="epoch 7"):
            await place.open(epoch)
    assert await owner.append(Batch.of([b"a"])) == range(1)


async def test_owner_without_a_registry_is_the_next_one(place: Place) -> None:
    for epoch in (1, 2, 3):
        log = await place.open()
        assert log.epoch == epoch
        await place.close(log)


async def test_truncated_head_is_told_and_the_rest_stays(place: Place) -> None:
    log = await place.open(1)
    for number in range(8):
        await log.append(Batch.of([b"%d" % number * (3 * MIB)]))
    await log.truncate(0)
    assert log.start == 0
    await log.truncate(7)
    await until(lambda: log.start > 0)
    start = log.start
    assert start <= 7
    with pytest.raises(Trimmed) as told:
        await read(log, start - 1)
    assert told.value.start == start
    assert [record[:1] for record in (await read(log, start)).values()] == [b"%d" % at for at in range(start, 8)]
    await log.truncate(100)
    await place.close(log)
    again = await place.open(2)
    assert (start <= again.start, again.end) == (True, 8)
    assert await again.append(Batch.of([b"8"])) == range(8, 9)
    assert (await read(again, 8)) == {8: b"8"}


async def test_batch_that_is_too_large_is_refused_and_the_log_goes_on(place: Place) -> None:
    log = await place.open(1)
    with pytest.raises(TooLarge, match=f"limit {BATCH_BYTES_MAX}"):
        await log.append(Batch.of([b"x" * BATCH_BYTES_MAX]))
    largest = Batch.of([b"x" * (BATCH_BYTES_MAX - 4)])
    assert await log.append(largest) == range(1)
    assert await read(log) == {0: b"x" * (BATCH_BYTES_MAX - 4)}


async def test_caller_that_waits_no_more_leaves_the_log_whole(place: Place) -> None:
    log = await place.open(1)
    appending = asyncio.ensure_future(log.append(Batch.of([b"a", b"b"])))
    await asyncio.sleep(0)  # it begins
    appending.cancel()
    assert await log.append(Batch.of([b"c"])) == range(2, 3)
    assert await read(log) == {0: b"a", 1: b"b", 2: b"c"}


async def start(place: Place, epoch: int) -> Process:
    words = ["-m", "tests.plane.log.owner", place.url, str(place.folder), str(epoch)]
    return await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE)


async def told(process: Process, lines: int) -> list[tuple[int, int]]:
    """Offset and number of so many batches."""
    assert process.stdout is not None
    return [_parsed(await process.stdout.readline()) for _ in range(lines)]


def _parsed(line: bytes) -> tuple[int, int]:
    offset, number = line.split()
    return int(offset), int(number)


def _expected(epoch: int, acked: list[tuple[int, int]]) -> dict[int, bytes]:
    return {offset + place: b"%d:%d" % (epoch, number + place) for offset, number in acked for place in range(RECORDS)}


async def test_owner_killed_at_any_moment_has_lost_nothing_acknowledged(place: Place) -> None:
    expected: dict[int, bytes] = {}
    for epoch in range(1, 5):
        process = await start(place, epoch)
        acked = await told(process, 10 * epoch)
        strikes.kill(process.pid)
        assert process.stdout is not None
        rest = [line for line in (await process.stdout.read()).splitlines(keepends=True) if line.endswith(b"\n")]
        expected |= _expected(epoch, acked + [_parsed(line) for line in rest])
        await process.wait()
    records = await read(await place.open(5))
    assert {offset: records.get(offset) for offset in expected} == expected
    assert len(set(records.values())) == len(records), "a record is there twice"


async def test_owner_that_stood_still_while_another_took_over_reports_nothing_more(place: Place) -> None:
    process = await start(place, 1)
    acked = await told(process, 5)
    with strikes.standing_still(process.pid):
        owner = await place.open(2)
        end = owner.end
        assert await owner.append(Batch.of([b"mine"])) == range(end, end + 1)
    assert process.stdout is not None
    lines = (await process.stdout.read()).splitlines()
    await process.wait()
    assert lines.pop() == b"fenced"
    expected = _expected(1, acked + [_parsed(line) for line in lines]) | {end: b"mine"}
    records = await read(owner)
    assert {offset: records.get(offset) for offset in expected} == expected
    assert max(records) == end

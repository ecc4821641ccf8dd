"""`muster check` and `muster repair` of delayed messages: the schedule, the topics, the last answers."""

import asyncio
import json
import shutil
import time
from pathlib import Path

import pytest

from muster_server.plane.stores import InUse
from muster_server.systems.messages import recurring
from muster_server.systems.messages.answers import FILE as ANSWERS
from muster_server.systems.messages.answers import Answers, LastAnswer
from muster_server.systems.messages.recurring import Recurring
from muster_server.systems.messages.schedule import EmbeddedSchedule
from muster_server.systems.messages.stores import AnswersStore, RecurringStore, ScheduleStore, TopicsStore
from muster_server.systems.messages.topics import FILE, NewTopic, TopicsFile

MESSAGES = 50
SEGMENT_BYTES = 8 << 20


async def scheduled(folder: Path) -> None:
    """Messages over some hours: a part in their files, a part in the log alone."""
    schedule = EmbeddedSchedule(folder, lambda _worker, _fires: None, segment_bytes=SEGMENT_BYTES)
    await schedule.open()
    now = time.time_ns() // 1_000_000
    new = [(id, 1, now + 3_600_000 * (1 + id % 5), None, b"body of %d" % id) for id in range(MESSAGES)]
    assert {reply[0] for reply in await schedule.insert(new)} == {"inserted"}
    await schedule.close()


async def held(folder: Path) -> int:
    schedule = EmbeddedSchedule(folder, lambda _worker, _fires: None, segment_bytes=SEGMENT_BYTES)
    await schedule.open()
    found = await schedule.get(range(MESSAGES))
    await schedule.close()
    whole = [reply for reply in found if reply[0] == "found"]
    assert all(reply[3] == b"body of %d" % reply[1][0] for reply in whole)
    return len(whole)


async def test_any_damaged_file_of_the_schedule_is_named_and_the_rest_comes_back(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    await scheduled(whole)
    assert not ScheduleStore(whole).check().faults
    assert ScheduleStore(whole).repair(tmp_path / "aside") == []
    names = [
        each.relative_to(whole)
        for each in sorted(whole.rglob("*"))
        if each.is_file() and each.suffix != ".spare" and each.name != "lock"
    ]
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        raw = bytearray((folder / name).read_bytes())
        used = len(raw.rstrip(b"\0"))
        raw[min(used // 2, 20)] ^= 4
        (folder / name).write_bytes(raw)
        store = ScheduleStore(folder)
        report = store.check()
        if not report.faults:
            assert await held(folder) == MESSAGES, name
            continue
        assert report.faults[0].file.startswith(str(folder)), name
        done = store.repair(tmp_path / f"aside-{number}")
        assert "rebuilt with" in done[0]
        assert await held(folder) >= MESSAGES - 1, (name, report.faults)
        assert not store.check().faults, name


async def test_a_damaged_schedule_is_refused_with_its_folder(tmp_path: Path) -> None:
    """The reason named a segment, and no folder."""
    await scheduled(tmp_path)
    manifest = tmp_path / "hours" / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(OSError, match=rf"^{tmp_path}: .*manifest"):
        await held(tmp_path)


async def test_open_schedule_is_not_repaired(tmp_path: Path) -> None:
    schedule = EmbeddedSchedule(tmp_path, lambda _worker, _fires: None, segment_bytes=SEGMENT_BYTES)
    await schedule.open()
    with pytest.raises(InUse, match="open in another process"):
        await asyncio.to_thread(ScheduleStore(tmp_path).repair, tmp_path / "aside")
    await schedule.close()


def topics(folder: Path) -> TopicsFile:
    return TopicsFile(folder, 10)


def test_lost_or_damaged_topics_come_back_with_their_key_from_the_schedules_copy(tmp_path: Path) -> None:
    file, copy = tmp_path / FILE, tmp_path / "schedule" / FILE
    first = topics(tmp_path)
    assert not first.open(copy)
    first.create(NewTopic(name="orders", callback="http://127.0.0.1:9/x"))
    first.keep_copy(copy)
    file.unlink()
    second = topics(tmp_path)
    assert second.open(copy), "it says so"
    assert (second.key, [each.name for each in second.all()]) == (first.key, ["orders"])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match="muster repair messages"):
        topics(tmp_path).open(copy)
    store = TopicsStore(file, copy)
    assert [fault.file for fault in store.check().faults] == [str(file)]
    assert "restored from" in store.repair(tmp_path / "aside")[0]
    third = topics(tmp_path)
    third.open(copy)
    assert third.key == first.key
    book = json.loads(copy.read_bytes())
    copy.write_text(json.dumps(book | {"key": "0" * 64}))
    assert "different key" in store.check().faults[0].text


def test_damaged_recurring_messages_keep_those_that_are_whole(tmp_path: Path) -> None:
    file = tmp_path / recurring.FILE
    entries = [
        recurring.Entry(asked=recurring.NewEntry(topic="orders", name=f"n{at}", cron="0 3 * * *"), last=at)
        for at in range(3)
    ]
    whole = recurring.written(entries)
    file.write_bytes(whole)
    store = RecurringStore(file)
    assert (store.check().holds, store.check().faults) == ("3 recurring messages", [])
    for number, (damaged, kept) in enumerate(
        ((whole.replace(b'"n1"', b'"n "'), ["n0", "n2"]), (whole[:-20], []), (b"", []), (b"\xff" * 40, []))
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="muster repair messages"):
            Recurring(tmp_path, None, None).open()  # type: ignore[arg-type]
        assert [fault.file for fault in store.check().faults] == [str(file)]
        assert f"{len(kept)} recurring messages were kept" in store.repair(tmp_path / f"aside{number}")[0]
        assert not store.check().faults
        assert [entry.asked.name for entry in recurring.read(file)] == kept
        assert (tmp_path / f"aside{number}" / recurring.FILE).read_bytes() == damaged


def test_damaged_answers_keep_the_rows_that_can_be_read(tmp_path: Path) -> None:
    answers = Answers(tmp_path)
    answers.open()
    answers.keep([LastAnswer(number, 1, "http_500", 500, b"x" * 900) for number in range(100)])
    file = tmp_path / ANSWERS
    store = AnswersStore(file)
    assert not store.check().faults
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 4_096] = b"\xa5" * 4_096
    file.write_bytes(raw)
    assert store.check().faults
    assert "kept" in store.repair(tmp_path / "aside")[0]
    again = Answers(tmp_path)
    again.open()
    assert again.find([0]), "rows before the damage"

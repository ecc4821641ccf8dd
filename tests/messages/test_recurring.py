"""Recurring messages in virtual time: occurrences, summer time, stops, clock steps, changes, entries that are wrong."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from muster_server.systems.messages import recurring
from muster_server.systems.messages.recurring import NewEntry, Recurring, RecurringError, occurrences
from muster_server.systems.messages.shapes import Change, Changed, Refused, Send, Sent

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def ms(text: str, zone: str = "UTC") -> int:
    return round(datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1_000)


class Schedule:
    """The messages of a schedule as a dict: the same id is the same message."""

    def __init__(self) -> None:
        self.messages: dict[str, Send] = {}
        self.cancelled: set[str] = set()
        self.away = False

    async def send(self, topic: str, sends: Sequence[Send]) -> list[Sent | Refused]:
        if self.away:
            raise ConnectionError
        said: list[Sent | Refused] = []
        for each in sends:
            assert each.id is not None
            assert each.at is not None
            duplicate = each.id in self.messages
            self.messages.setdefault(each.id, each)
            said.append(Sent(id=each.id, due_at=each.at, duplicate=duplicate))
        return said

    async def change(self, topic: str, changes: Sequence[Change]) -> list[Changed | Refused]:
        self.cancelled |= {each.id for each in changes}
        return [Changed(id=each.id, outcome="done") for each in changes]

    @property
    def times(self) -> list[int]:
        return sorted(each.at or 0 for id, each in self.messages.items() if id not in self.cancelled)


class Run:
    """Entries in a folder, over a schedule, made by several lives of a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.schedule = folder, Schedule()
        self.again()

    def again(self) -> None:
        self.recurring = Recurring(self.folder, self.schedule.send, self.schedule.change)
        self.recurring.open()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


NIGHTLY = NewEntry(topic="report", name="nightly", cron="0 3 * * *", zone="Asia/Shanghai")
EACH = NewEntry(topic="report", name="each", cron="*/10 * * * *", missed="all")


async def test_the_next_occurrence_always_waits_and_each_has_one_message(run: Run) -> None:
    now = ms("2026-11-28T12:00:00")
    await run.recurring.put(NIGHTLY, now)
    for _ in range(3 * 24 * 60):
        now += MINUTE_MS
        assert await run.recurring.make(now) == []
        assert await run.recurring.make(now) == []
        assert any(at > now for at in run.schedule.times), "it fires though its maker is away"
    nights = [ms(f"2026-11-{night}T03:00:00", "Asia/Shanghai") for night in (29, 30)]
    nights += [ms(f"2026-12-0{night}T03:00:00", "Asia/Shanghai") for night in (1, 2)]
    assert run.schedule.times == nights
    assert sorted(run.schedule.messages)[0] == "nightly:2026-11-28T19:00:00Z"
    assert run.recurring.made == 4


async def test_summer_time_loses_no_night_and_repeats_none() -> None:
    for cron, zone, day, wanted in (
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00", ["2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00", ["2026-10-25T00:30:00", "2026-10-26T01:30:00"]),
    ):
        found = occurrences(NewEntry(topic="t", name="n", cron=cron, zone=zone), ms(day))
        assert [next(found), next(found)] == [ms(each) for each in wanted]


@pytest.mark.parametrize(("missed", "made_up"), [("none", 0), ("once", 1), ("all", 17)])
async def test_after_a_stop_missed_occurrences_are_made_up_for_as_the_entry_says(
    run: Run, missed: recurring.Missed, made_up: int
) -> None:
    now = ms("2026-11-28T12:00:00")
    await run.recurring.put(NewEntry(topic="t", name="n", cron="*/10 * * * *", missed=missed), now)
    await run.recurring.make(now)
    now += 3 * HOUR_MS
    run.again()
    await run.recurring.make(now)
    # The first one waited in the schedule all the time, and there is the next one.
    assert len(run.schedule.times) == 2 + made_up
    assert run.schedule.times[-1] == now + 10 * MINUTE_MS
    assert run.recurring.skipped == 17 - made_up


async def test_a_long_stop_makes_up_for_so_many_and_no_more(run: Run) -> None:
    now = ms("2026-01-01T00:00:00")
    await run.recurring.put(NewEntry(topic="t", name="n", cron="* * * * *", missed="all"), now)
    await run.recurring.make(now)
    await run.recurring.make(now + 2_000 * MINUTE_MS)
    assert len(run.schedule.times) == 2 + recurring.MISSED_MAX


async def test_failovers_and_steps_of_the_clock_make_each_occurrence_once(run: Run) -> None:
    now = begin = ms("2026-11-28T12:00:00")
    await run.recurring.put(EACH, now)
    for step in range(400):
        now += MINUTE_MS
        if step % 40 == 20:
            now += HOUR_MS if step % 80 == 20 else -HOUR_MS
        if step % 13 == 0:
            run.again()
        run.schedule.away = step % 17 == 0
        try:
            await run.recurring.make(now)
        except ConnectionError:
            continue
    last = max(run.schedule.times)
    assert run.schedule.times == list(range(begin + 10 * MINUTE_MS, last + 1, 10 * MINUTE_MS))


async def test_a_changed_entry_withdraws_what_waited_and_a_removed_one_too(run: Run) -> None:
    now = ms("2026-11-28T12:00:00")
    await run.recurring.put(NIGHTLY, now)
    await run.recurring.make(now)
    await run.recurring.put(NIGHTLY, now)
    assert not run.schedule.cancelled, "asked for again it is the same"
    changed = NewEntry(topic="report", name="nightly", cron="0 3 * * *", zone="Asia/Shanghai", body=b'{"all": true}')
    await run.recurring.put(changed, now)
    await run.recurring.make(now)
    assert run.schedule.cancelled == {"nightly:2026-11-28T19:00:00Z"}
    assert run.schedule.messages["nightly:2026-11-28T19:00:00Z:1"].body == b'{"all": true}'
    await run.recurring.remove("report", "nightly", now)
    assert run.schedule.times == []
    run.again()
    assert run.recurring.all() == []
    with pytest.raises(RecurringError, match="has no recurring message"):
        await run.recurring.remove("report", "nightly", now)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cron": "0 3 * *"}, "cron"),
        ({"cron": "61 3 * * *"}, "cron"),
        ({"cron": "daily"}, "expected five parts"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"zone": "Mars/Base"}, "invalid time zone"),
        ({"zone": "../etc/passwd"}, "invalid time zone"),
    ],
)
async def test_a_wrong_entry_is_refused_and_changes_nothing(run: Run, wrong: dict[str, str], why: str) -> None:
    asked = {"topic": "t", "name": "n", "cron": "0 3 * * *", **wrong}
    with pytest.raises(RecurringError, match=why):
        await run.recurring.put(msgspec.convert(asked, NewEntry), ms("2026-11-28T12:00:00"))
    assert run.recurring.all() == []


async def test_entries_are_bounded_and_a_damaged_file_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring, "ENTRIES_MAX", 1)
    await run.recurring.put(NIGHTLY, 0)
    with pytest.raises(RecurringError, match="too many recurring messages"):
        await run.recurring.put(EACH, 0)
    (run.folder / recurring.FILE).write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        run.again()

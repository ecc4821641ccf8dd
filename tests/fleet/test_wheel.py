"""The wheel hands out what the definition says, exactly as often as asked, once, over restarts and steps of the clock."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from muster_server.systems.fleet import wheel
from muster_server.systems.fleet.wheel import PER_HOUR_MAX, Class, Every, PerHour, Task, TaskError, Wheel
from tests.reference import wheel as model

START = 29_700_000
MISSED = -1

names = st.sampled_from([f"task-{n}" for n in range(8)])
schedules = st.one_of(
    st.builds(Every, st.sampled_from([1, 5, 7, 60, 61, 1440]), st.integers(1, 3)),
    st.builds(PerHour, st.sampled_from([1, 7, 30, 59, 60, 61, 150])),
)
tasks = st.builds(Task, names, schedules, st.sampled_from(Class))


def wanted(task: Task, minute: int) -> int:
    """By the model."""
    if minute < task.since_minute:
        return 0
    match task.schedule:
        case Every(minutes, pick):
            return model.every(task.name, minutes, pick, minute)
        case PerHour(samples):
            return model.per_hour(task.name, samples, minute)


def test_each_count_from_1_to_6000_an_hour_is_exact_in_any_hour() -> None:
    for samples in range(1, PER_HOUR_MAX + 1):
        task = Task(f"probe-{samples}", PerHour(samples))
        counts = [wheel.due(task, minute) for minute in range(START, START + 61)]
        assert counts[60] == counts[0]  # so that any 60 that follow each other have as many
        counts.pop()
        if samples < 100 or samples % 997 == 0:
            assert counts == [wanted(task, minute) for minute in range(START, START + 60)]
        assert sum(counts[:60]) == samples
        assert max(counts) - min(counts) <= 1


def test_a_wheel_sends_as_many_as_were_asked_for() -> None:
    asked = [1, 2, 29, 30, 31, 59, 60, 61, 100, 300, 5999, 6000]
    turning = Wheel(START - 1, [Task(f"t{n}", PerHour(n)) for n in asked] + [Task("e7", Every(7, 100))])
    sent: Counter[str] = Counter()
    for minute in range(START, START + 7 * 60):
        for run in turning.advance(minute).runs:
            sent[run.task] += run.pick
    assert {name: count // 7 for name, count in sent.items()} == {f"t{n}": n for n in asked} | {"e7": 857}
    assert sent["e7"] == 60 * 100


class Clock(RuleBasedStateMachine):
    """A scheduler that is killed anywhere, whose clock jumps, and whose tasks are edited; a store with transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.minute = START
        self.table: dict[str, Task] = {}
        self.written = START
        self.outcomes: dict[tuple[str, int], int] = {}
        self.reckoned = START
        self.wheel = Wheel(self.written)

    @rule(task=tasks)
    def edit(self, task: Task) -> None:
        self.table[task.name] = Task(task.name, task.schedule, task.customer, since_minute=self.wheel.last_minute + 1)
        self.wheel.refresh(self.table.values())

    @rule(name=names)
    def remove(self, name: str) -> None:
        self.table.pop(name, None)
        self.wheel.refresh(self.table.values())

    @rule()
    def kill(self) -> None:
        self.wheel = Wheel(self.written, self.table.values())

    @rule(
        minutes=st.one_of(st.integers(-70, 5), st.integers(0, 200)), crash=st.sampled_from(["", "", "before", "after"])
    )
    def pass_time(self, minutes: int, crash: str) -> None:
        """A turn is written down whole or not at all; a crash comes before or after that."""
        self.minute += minutes
        turn = self.wheel.advance(self.minute)
        order = [(run.minute, run.customer, run.task) for run in turn.runs]
        assert order == sorted(order)
        if crash != "before":
            for run in turn.runs:
                assert run.minute <= self.minute
                self._once(run.task, run.minute, run.pick)
            for missed in turn.missed:
                due = {at: wanted(self.table[missed.task], at) for at in range(missed.first, missed.last + 1)}
                due = {at: samples for at, samples in due.items() if samples}
                assert (missed.runs, missed.samples) == (len(due), sum(due.values()))
                for at in due:
                    self._once(missed.task, at, MISSED)
            self.written = self.wheel.last_minute
            self._reckon()
        if crash:
            self.kill()

    def _once(self, task: str, minute: int, outcome: int) -> None:
        assert (task, minute) not in self.outcomes
        self.outcomes[task, minute] = outcome

    def _reckon(self) -> None:
        """All that was due up to what is written is run or told, nothing else is, by the model."""
        for minute in range(self.reckoned + 1, self.written + 1):
            for task in self.table.values():
                if count := wanted(task, minute):
                    assert self.outcomes[task.name, minute] in {count, MISSED}
                else:
                    assert (task.name, minute) not in self.outcomes
        self.reckoned = max(self.reckoned, self.written)


TestClock = Clock.TestCase
TestClock.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(st.lists(tasks, max_size=8), st.integers(1, 200))
def test_the_hour_that_comes_is_what_will_be_run(table: list[Task], minutes: int) -> None:
    turning = Wheel(START, table)
    turning.advance(START + minutes)
    for minute, queues in turning.hour():
        runs = turning.advance(minute).runs
        assert [(run.customer, run.task) for run in runs] == [(c, name) for c in Class for name in queues[c]]


def test_classes_go_in_strict_order_within_a_minute() -> None:
    table = [Task(f"{c.name}-{n}", Every(1, 1), c) for n in range(3) for c in reversed(Class)]
    runs = Wheel(START, table).advance(START + 1).runs
    assert [run.customer for run in runs] == [Class.MAJOR] * 3 + [Class.ENTERPRISE] * 3 + [Class.ORDINARY] * 3


def test_tasks_of_one_kind_are_spread_over_the_minutes() -> None:
    turning = Wheel(START, [Task(f"probe-{n}", Every(60, 1)) for n in range(6000)])
    counts = [len(turning.advance(START + 1 + minute).runs) for minute in range(60)]
    assert sum(counts) == 6000
    assert max(counts) < 160  # 100 each, 10 of deviation


def test_a_slip_moves_runs_within_their_minute_alike_each_time() -> None:
    table = [Task("a slow one", Every(1, 1), slip_ms=30_000), Task("prompt", Every(1, 1))]
    delays = [[run.delay_ms for run in Wheel(START + m - 1, table).advance(START + m).runs] for m in (1, 1, 2)]
    assert delays[0] == delays[1]
    assert len({slow for slow, _ in delays}) == 2
    assert all(prompt == 0 and 0 <= slow <= 30_000 for slow, prompt in delays)


def test_a_clock_that_goes_back_runs_nothing_twice_and_is_told() -> None:
    turning = Wheel(START, [Task("t", Every(1, 1))])
    turning.advance(START + 60)
    assert turning.advance(START + 30).runs == []
    assert turning.minutes_ahead(START + 30) == 30
    assert [run.minute for run in turning.advance(START + 61).runs] == [START + 61]


def test_a_year_away_is_told_at_once_in_one_line_a_task() -> None:
    turning = Wheel(START, [Task(f"t{n}", PerHour(30)) for n in range(100)])
    turn = turning.advance(START + 525_600)
    assert len(turn.missed) == 100
    assert len(turn.runs) <= 200
    assert 262_798 <= turn.missed[0].runs <= 262_800


def test_averages_count_a_run_as_often_as_it_comes() -> None:
    averages = Wheel(START, [Task("a", Every(5, 100)), Task("b", PerHour(300)), Task("c", PerHour(30))]).averages()
    assert averages.tasks_per_minute == pytest.approx((12 + 60 + 30) / 60)
    assert averages.picked_per_task == pytest.approx((1200 + 300 + 30) / 102)
    assert Wheel(START).averages() == wheel.Averages(0.0, 0.0)


@pytest.mark.parametrize(
    "task",
    [
        Task("t", Every(0, 1)),
        Task("t", Every(10_081, 1)),
        Task("t", Every(1, 0)),
        Task("t", PerHour(0)),
        Task("t", PerHour(6001)),
        Task("t", PerHour(1), slip_ms=60_000),
    ],
)
def test_a_task_that_cannot_be_is_refused_and_changes_nothing(task: Task) -> None:
    turning = Wheel(START, [Task("kept", Every(1, 1))])
    with pytest.raises(TaskError, match="task t: "):
        turning.refresh([task])
    assert list(turning.tasks) == ["kept"]

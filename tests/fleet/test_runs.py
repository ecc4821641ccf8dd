"""Every client of every run is counted once, and every run ends in time, whatever clients say and when."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster_server.systems.fleet import runs as module
from muster_server.systems.fleet.runs import Outcome, Replacement, RunEnd, RunName, Runs, RunsError, Verdict

RECEIPT_MS, RESULT_MS = 100, 1000
ONE = ("ping", 29_700_000)


def fresh() -> Runs:
    return Runs(receipt_ms=RECEIPT_MS, result_ms=RESULT_MS)


def only_replace(runs: Runs, now_ms: int) -> Replacement:
    (action,) = runs.expire(now_ms)
    assert isinstance(action, Replacement)
    return action


def only_end(runs: Runs, now_ms: int) -> RunEnd:
    (action,) = runs.expire(now_ms)
    assert isinstance(action, RunEnd)
    return action


def test_a_run_of_clients_that_answer_ends_with_the_last_answer() -> None:
    runs = fresh()
    assert runs.begin(0, ONE, ["a", "b"], 2) is None
    assert runs.receipt(50, ONE, "a") is Verdict.TAKEN
    assert runs.result(60, ONE, "b") == (Verdict.TAKEN, None)
    verdict, ended = runs.result(900, ONE, "a")
    assert verdict is Verdict.TAKEN
    assert ended == RunEnd(ONE, 2, ["b", "a"][::-1], [], [])
    assert (runs.in_flight, runs.expire(10_000)) == (0, [])


def test_silent_clients_are_replaced_once_and_by_others() -> None:
    runs = fresh()
    runs.begin(0, ONE, ["a", "b", "c"], 3)
    runs.receipt(10, ONE, "a")
    assert runs.expire(RECEIPT_MS) == []
    replace = only_replace(runs, RECEIPT_MS + 1)
    assert (replace.silent, replace.asked) == (["b", "c"], ["a", "b", "c"])
    assert runs.replaced(RECEIPT_MS + 2, ONE, ["d"]) is None
    assert runs.result(RECEIPT_MS + 3, ONE, "b") == (Verdict.LATE, None)
    runs.result(RECEIPT_MS + 4, ONE, "a")
    ended = only_end(runs, 2 * RECEIPT_MS + 10)
    assert (ended.done, ended.replaced, ended.missed) == (["a"], ["b"], ["c", "d"])


def test_a_client_that_received_and_gives_no_result_is_missed() -> None:
    runs = fresh()
    runs.begin(0, ONE, ["a"], 1)
    runs.receipt(99, ONE, "a")
    assert runs.expire(RESULT_MS) == []
    assert only_end(runs, RESULT_MS + 1).missed == ["a"]


def test_doubles_strangers_and_late_ones_change_nothing_and_are_counted() -> None:
    runs = fresh()
    runs.begin(0, ONE, ["a", "b"], 2)
    assert runs.result(1, ONE, "z") == (Verdict.STRANGER, None)
    assert runs.result(1, ("ping", 1), "a") == (Verdict.STRANGER, None)
    assert runs.receipt(1, ONE, "z") is Verdict.STRANGER
    assert [runs.receipt(2, ONE, "a") for _ in range(2)] == [Verdict.TAKEN, Verdict.DOUBLE]
    assert [runs.result(3, ONE, "a")[0] for _ in range(2)] == [Verdict.TAKEN, Verdict.DOUBLE]
    assert runs.receipt(4, ONE, "a") is Verdict.DOUBLE
    assert runs.receipt(RECEIPT_MS + 1, ONE, "b") is Verdict.LATE
    assert runs.counts[Verdict.STRANGER] == 3
    assert runs.counts[Outcome.DONE] == 1


def test_a_run_without_clients_ends_at_once() -> None:
    assert fresh().begin(0, ONE, [], 5) == RunEnd(ONE, 5, [], [], [])


def test_what_cannot_be_begun_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = fresh()
    runs.begin(0, ONE, ["a"], 1)
    with pytest.raises(RunsError, match="in flight already"):
        runs.begin(0, ONE, ["b"], 1)
    with pytest.raises(RunsError, match="a client twice"):
        runs.begin(0, ("x", 1), ["b", "b"], 2)
    with pytest.raises(RunsError, match="needs no replacements"):
        runs.replaced(0, ONE, ["b"])
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    with pytest.raises(RunsError, match="too many runs in flight"):
        runs.begin(0, ("x", 1), ["b", "c"], 2)
    monkeypatch.setattr(module, "RUNS_MAX", 1)
    with pytest.raises(RunsError, match="too many runs in flight"):
        runs.begin(0, ("x", 1), ["b"], 1)
    only_replace(runs, 200)
    for wrong in (["b", "c"], ["a"]):
        with pytest.raises(RunsError, match="too many replacements, or clients that were asked before"):
            runs.replaced(200, ONE, wrong)
    assert runs.in_flight == 1
    with pytest.raises(ValueError, match="receipt_ms"):
        Runs(receipt_ms=5, result_ms=4)


class Traffic(RuleBasedStateMachine):
    """Runs begin, clients say anything at any time; the account is kept a second time in plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = fresh()
        self.now = 0
        self.begun: dict[RunName, int] = {}
        self.asked: dict[RunName, dict[str, int]] = {}
        self.answered: dict[RunName, set[str]] = {}
        self.draws: Counter[RunName] = Counter()
        self.ended: dict[RunName, RunEnd] = {}

    @rule(count=st.integers(0, 4), more=st.integers(0, 1))
    def begin(self, count: int, more: int) -> None:
        run = ("task", len(self.begun))
        self.begun[run] = self.now
        self.asked[run] = {f"c{n}": self.now for n in range(count)}
        self.answered[run] = set()
        self._end(self.runs.begin(self.now, run, list(self.asked[run]), count + more))

    @rule(run=st.integers(0, 5), client=st.integers(0, 6), result=st.booleans())
    def say(self, run: int, client: int, result: bool) -> None:
        name, who = ("task", run), f"c{client}"
        if not result:
            self.runs.receipt(self.now, name, who)
            return
        verdict, ended = self.runs.result(self.now, name, who)
        if verdict is Verdict.TAKEN:
            assert who not in self.answered[name]
            assert self.now <= self.asked[name][who] + RESULT_MS
            self.answered[name].add(who)
        self._end(ended)

    @rule(ms=st.sampled_from([1, 60, 101, 500, 1001]))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(found=st.integers(0, 4))
    def expire(self, found: int) -> None:
        for action in self.runs.expire(self.now):
            if isinstance(action, RunEnd):
                self._end(action)
                continue
            self.draws[action.run] += 1
            assert set(action.asked) == set(self.asked[action.run])
            assert not self.answered[action.run] & set(action.silent)
            others = [f"r{n}" for n in range(min(found, len(action.silent)))]
            self.asked[action.run].update(dict.fromkeys(others, self.now))
            self._end(self.runs.replaced(self.now, action.run, others))
        for run, begun in self.begun.items():
            assert run in self.ended or self.now <= begun + RESULT_MS or self.draws[run]

    def _end(self, ended: RunEnd | None) -> None:
        if ended is None:
            return
        assert ended.run not in self.ended
        self.ended[ended.run] = ended
        everyone = [*ended.done, *ended.replaced, *ended.missed]
        assert sorted(everyone) == sorted(self.asked[ended.run])
        assert set(ended.done) == self.answered[ended.run]
        assert len(ended.replaced) == sum(client.startswith("r") for client in everyone)
        assert self.draws[ended.run] <= 1

    @invariant()
    def what_is_in_flight_and_what_ended_is_all(self) -> None:
        assert self.runs.in_flight == len(self.begun) - len(self.ended)
        counted = sum(self.runs.counts[outcome] for outcome in Outcome)
        assert counted >= sum(len(self.asked[run]) for run in self.ended)
        assert (self.runs.deadline_ms is None) <= (self.runs.in_flight == 0)

    def teardown(self) -> None:
        """Whoever waits long enough sees every run end."""
        for _ in range(3):
            self.now += RESULT_MS + RECEIPT_MS
            self.expire(0)
        assert self.runs.in_flight == 0


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

"""Bugs that a fleet of this kind has had, put back one at a time: the test that is named goes red.

The others of this kind are in `core/planted` and `tests/control/test_planted.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from numpy.typing import NDArray

from muster_server.pyext import bits
from muster_server.pyext.deck import Deck, Draw
from muster_server.pyext.weights import Weights
from muster_server.systems.fleet import wheel
from muster_server.systems.fleet.index import Index, Update
from muster_server.systems.fleet.runs import Outcome, RunName, Runs
from muster_server.systems.fleet.wheel import DueRun, Every, MissedRuns, PerHour, Task, Wheel
from tests.fleet import test_index, test_runs, test_wheel
from tests.pyext import test_deck, test_weights

Plant = Callable[[Any, str, Any], None]

QUICK = settings(
    max_examples=3_000,  # the first that fails ends it
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return monkeypatch.setattr


@contextmanager
def red() -> Iterator[None]:
    """The test fails."""
    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        yield


def search(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


class OwingTheReturned(Deck):
    """Whoever leaves is forgotten, and is picked again in the round in which it comes back."""

    def pick(
        self,
        wanted: int,
        seed: int,
        members: NDArray[np.uint64],
        rested_at: NDArray[np.int32],
        now: int,
        tired: NDArray[np.uint64] | None = None,
        barred: NDArray[np.uint64] | None = None,
    ) -> Draw:
        self.forget(bits.numbers(self.dealt & ~members))
        return super().pick(wanted, seed, members, rested_at, now, tired, barred)


class TurningEarly(Deck):
    """The next round begins while some are still owed a turn: a draw that the round cannot fill is taken from the next."""

    def pick(
        self,
        wanted: int,
        seed: int,
        members: NDArray[np.uint64],
        rested_at: NDArray[np.int32],
        now: int,
        tired: NDArray[np.uint64] | None = None,
        barred: NDArray[np.uint64] | None = None,
    ) -> Draw:
        if 0 < bits.count(members & ~self.dealt) < wanted:
            self.forget(bits.numbers(self.dealt))
        return super().pick(wanted, seed, members, rested_at, now, tired, barred)


class PickingTheBarred(Deck):
    """Busy clients are picked all the same."""

    def pick(
        self,
        wanted: int,
        seed: int,
        members: NDArray[np.uint64],
        rested_at: NDArray[np.int32],
        now: int,
        tired: NDArray[np.uint64] | None = None,
        barred: NDArray[np.uint64] | None = None,
    ) -> Draw:
        return super().pick(wanted, seed, members, rested_at, now, tired)


@pytest.mark.parametrize("holed", [OwingTheReturned, TurningEarly, PickingTheBarred])
def test_an_unfair_deck_is_found(plant: Plant, holed: type[Deck]) -> None:
    plant(test_deck, "Deck", holed)
    with red():
        search(test_deck.Fleet)


class SavingRest(Weights):
    """Minutes of rest beyond the whole weight are saved up for later tasks: a weight above 1."""

    def punish(self, clients: NDArray[np.uint32], punishment: float) -> None:
        np.add.at(self.rested_at, clients, round(punishment * 1000))


class Timer(Weights):
    """A timer gives one step of weight back, however many minutes have passed since it last ran."""

    def advance(self, minute: int) -> None:
        super().advance(min(minute, self.minute + 1))


@pytest.mark.parametrize("holed", [SavingRest, Timer])
def test_wrong_weights_are_found(plant: Plant, holed: type[Weights]) -> None:
    plant(test_weights, "Weights", holed)
    with red():
        search(test_weights.Both)


def test_rounded_counts_an_hour_are_found(plant: Plant) -> None:
    right = wheel.due

    def rounded(task: Task, minute: int) -> int:
        return task.schedule.samples // 60 if isinstance(task.schedule, PerHour) else right(task, minute)

    plant(wheel, "due", rounded)
    with red():
        test_wheel.test_each_count_from_1_to_6000_an_hour_is_exact_in_any_hour()


def test_a_period_that_begins_anew_each_hour_is_found(plant: Plant) -> None:
    right = wheel._next

    def of_the_hour(task: Task, after: int) -> int:
        if not isinstance(task.schedule, Every):
            return right(task, after)
        return next(at for at in range(after, after + 120) if at % 60 % task.schedule.minutes == 0)

    plant(wheel, "_next", of_the_hour)
    with red():
        test_wheel.test_a_wheel_sends_as_many_as_were_asked_for()


def test_minutes_that_are_run_and_told_as_missed_are_found(plant: Plant) -> None:
    right = Wheel._missed

    def one_more(self: Wheel, first: int, last: int) -> Iterator[MissedRuns]:
        yield from right(self, first - 1, last)

    plant(Wheel, "_missed", one_more)
    with red():
        search(test_wheel.Clock)


def test_minutes_skipped_in_silence_are_found(plant: Plant) -> None:
    """The wheel of the source: what nobody ran is nobody's business."""
    right = Wheel._missed

    def silent(self: Wheel, first: int, last: int) -> Iterator[MissedRuns]:
        list(right(self, first, last))
        return iter(())

    plant(Wheel, "_missed", silent)
    with red():
        search(test_wheel.Clock)


def test_a_clock_that_goes_back_and_runs_again_is_found(plant: Plant) -> None:
    right = Wheel.advance

    def believing(self: Wheel, minute: int) -> wheel.Turn:
        if minute < self.last_minute:
            tasks = list(self.tasks.values())
            self.__init__(minute - 1, tasks)  # type: ignore[misc]
        return right(self, minute)

    plant(Wheel, "advance", believing)
    with red():
        search(test_wheel.Clock)


def test_classes_without_order_are_found(plant: Plant) -> None:
    right = Wheel.advance

    def by_name(self: Wheel, minute: int) -> wheel.Turn:
        turn = right(self, minute)
        runs: list[DueRun] = sorted(turn.runs, key=lambda run: (run.minute, run.task))
        return wheel.Turn(runs, turn.missed)

    plant(Wheel, "advance", by_name)
    with red():
        test_wheel.test_classes_go_in_strict_order_within_a_minute()


def test_updates_that_count_in_the_order_they_come_are_found(plant: Plant) -> None:
    right = Index.apply

    def blind(self: Index, update: Update) -> bool:
        self._records.pop(update.client, None)
        return right(self, update)

    plant(Index, "apply", blind)
    with red():
        test_index.test_an_old_leave_takes_nobody_and_an_old_join_brings_nobody_back()


def test_values_that_stay_when_a_client_changes_are_found(plant: Plant) -> None:
    plant(Index, "_unset", lambda _self, _number, _attributes: None)
    with red():
        test_index.test_a_client_that_changes_is_meant_by_its_new_values_only()


def test_a_result_counted_for_a_replaced_client_is_found(plant: Plant) -> None:
    right = Runs.result

    def forgiving(self: Runs, now_ms: int, run: RunName, client: str) -> Any:
        asked = self._asked(run, client)
        if asked is not None and asked.outcome in {Outcome.REPLACED, Outcome.MISSED}:
            asked.outcome, asked.until_ms = None, now_ms
            self._runs[run].open += 1
        return right(self, now_ms, run, client)

    plant(Runs, "result", forgiving)
    with red():
        search(test_runs.Traffic)


def test_replacements_that_are_replaced_again_are_found(plant: Plant) -> None:
    right = Runs._expire

    def again(self: Runs, now_ms: int, run: Any) -> Any:
        run.may_replace = True
        return right(self, now_ms, run)

    plant(Runs, "_expire", again)
    with red():
        search(test_runs.Traffic)


def test_a_run_without_a_deadline_after_its_receipt_is_found(plant: Plant) -> None:
    right = Runs.receipt

    def patient(self: Runs, now_ms: int, run: RunName, client: str) -> Any:
        verdict = right(self, now_ms, run, client)
        if (asked := self._asked(run, client)) is not None:
            asked.until_ms += 1 << 40
        return verdict

    plant(Runs, "receipt", patient)
    with red():
        search(test_runs.Traffic)

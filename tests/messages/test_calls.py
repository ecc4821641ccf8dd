"""Calls of handlers by whole hour: what a dict of calls says, over any order of them, and over a fork."""

import os
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from muster.calls import HOUR_S, HOURS_MAX, KEPT_HOURS, Call, Calls, Hour


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1_000 * HOUR_S + 5.0

    def __call__(self) -> float:
        return self.now


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.sampled_from(["orders", "mail"])),
            st.tuples(st.just("end"), st.integers(0, 30), st.booleans()),
            st.tuples(st.just("later"), st.sampled_from([60, 1_800, HOUR_S, 2 * HOUR_S])),
        ),
        max_size=60,
    )
)
def test_figures_and_outcomes_are_those_of_a_dict(steps: list[tuple[object, ...]]) -> None:
    clock = Clock()
    calls, model, made = Calls(clock), dict[Call, bool | None](), list[Call]()
    for step in steps:
        match step:
            case "begin", str(handler):
                call = calls.begin(handler)
                assert call not in model
                assert call.hour <= clock.now < call.hour + HOUR_S
                model[call] = None
                made.append(call)
            case "end", int(place), bool(committed) if made:
                call = made[place % len(made)]
                calls.end(call, committed=committed)
                if model[call] is None:
                    model[call] = committed
            case "later", int(seconds):
                clock.now += seconds
    figures = defaultdict[tuple[int, str], list[bool | None]](list)
    for call, outcome in model.items():
        figures[call.hour, call.handler].append(outcome)
        said = calls.outcome(call)
        assert said is outcome or said is None, "the cache may forget, and never errs"
        if call.hour + HOUR_S > clock.now:
            assert said is outcome
    kept = [Hour(name, hour, len(all_), all_.count(True), all_.count(False)) for (hour, name), all_ in figures.items()]
    assert set(calls.hours()) <= set(kept)
    assert {each for each in kept if each.hour + KEPT_HOURS * HOUR_S > clock.now} <= set(calls.hours())
    assert all(each.open >= 0 for each in calls.hours())


def test_bits_of_an_hour_that_is_whole_go_and_figures_stay_for_two_days() -> None:
    clock = Clock()
    calls = Calls(clock)
    closed, open_ = calls.begin("closed"), calls.begin("open")
    calls.end(closed, committed=True)
    assert calls.outcome(closed) is True
    clock.now += HOUR_S
    calls.begin("other")
    assert calls.outcome(closed) is None
    calls.end(closed, committed=False)  # told once more
    calls.end(open_, committed=False)
    assert {each.handler: (each.committed, each.aborted, each.open) for each in calls.hours()} == {
        "closed": (1, 0, 0),
        "open": (0, 1, 0),
        "other": (0, 0, 1),
    }
    clock.now += KEPT_HOURS * HOUR_S
    calls.begin("last")
    assert [each.handler for each in calls.hours()] == ["last"]


def test_handlers_without_end_do_not_fill_the_memory() -> None:
    calls = Calls(Clock())
    first = calls.begin("0")
    for number in range(1, HOURS_MAX + 1):
        calls.begin(str(number))
    assert len(calls.hours()) == HOURS_MAX
    calls.end(first, committed=True)
    assert calls.outcome(first) is None


def test_a_forked_process_has_its_own_calls_and_another_one_knows_none() -> None:
    calls = Calls()
    before = calls.begin("orders")
    calls.end(before, committed=True)
    child = os.fork()
    if child == 0:
        good = calls.outcome(before) is None and calls.begin("orders").process != before.process
        os._exit(0 if good and calls.hours()[0].calls == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Calls().outcome(before) is None
    assert calls.outcome(before) is True

"""Time limits of many waits: each ends in its time, with one timer for all; answered ones leave nothing behind."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.deadlines import SPARE, TICK_S, Deadlines


class Timer:
    """The handle that a loop gives for `call_at`."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose time is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    @property
    def set(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def advance(self, seconds: float) -> None:
        """Move the time, and run what is due by then, each at its time."""
        until = self.now + seconds
        while due := sorted((timer for timer in self.set if timer.at <= until), key=lambda timer: timer.at):
            self.now = max(self.now, due[0].at)
            self.timers.remove(due[0])
            due[0].call()
        self.now = until


class Wait:
    """A future, of which only the end counts."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.error is not None

    def set_exception(self, error: BaseException) -> None:
        assert self.error is None
        self.error = error

    def exception(self) -> BaseException | None:
        return self.error


Waits = dict[int, tuple[None, Wait]]


def made() -> tuple[Loop, Waits, Deadlines]:
    loop, waits = Loop(), Waits()
    return loop, waits, Deadlines(cast(Any, loop), cast(Any, waits))


def ended(waits: Waits) -> set[int]:
    return {number for number, (_, wait) in waits.items() if wait.done()}


def test_each_wait_ends_in_its_time_whatever_the_order_they_began_in() -> None:
    loop, waits, deadlines = made()
    for number, seconds in enumerate((3.0, 1.0, 2.0, 0.0)):
        waits[number] = None, Wait()
        deadlines.add(number, seconds)
    assert len(loop.set) == 1
    for expected in ({3}, {3, 1}, {3, 1, 2}, {3, 1, 2, 0}):
        loop.advance(0.0 if expected == {3} else 1.0)
        assert ended(waits) == expected
    assert isinstance(waits[0][1].error, TimeoutError)
    assert not loop.set


def test_an_answered_wait_is_left_alone_and_no_timer_stays_for_it() -> None:
    loop, waits, deadlines = made()
    waits[1] = None, Wait()
    deadlines.add(1, 1.0)
    del waits[1]
    loop.advance(2.0)
    assert not loop.set


def test_a_timer_that_fires_a_little_early_ends_what_it_was_set_for() -> None:
    loop, waits, deadlines = made()
    waits[1] = None, Wait()
    deadlines.add(1, 1.0)
    (timer,) = loop.set
    loop.now = timer.at - TICK_S / 2
    timer.call()
    assert ended(waits) == {1}


def test_after_the_close_no_wait_ends() -> None:
    loop, waits, deadlines = made()
    waits[1] = None, Wait()
    deadlines.add(1, 1.0)
    deadlines.close()
    assert not loop.set
    assert not waits[1][1].done()


def test_a_hundred_thousand_answered_waits_leave_nothing_behind() -> None:
    loop, waits, deadlines = made()
    for number in range(100_000):
        waits[number] = None, Wait()
        deadlines.add(number, 10.0)
        if number >= 16:
            del waits[number - 16]
    assert len(deadlines._heap) <= SPARE + 2 * 17
    assert len(loop.timers) == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(0, 20)), max_size=60))
def test_a_plain_list_says_the_same(steps: list[tuple[int, bool, int]]) -> None:
    """Each step: the time limit of another wait, whether the oldest is answered, and how far the time goes on.

    Times are in eighths of a second, whose sums are exact.
    """
    loop, waits, deadlines = made()
    model: dict[int, float] = {}
    late: set[int] = set()
    for number, (limit, answered, passed) in enumerate(steps):
        waits[number] = None, Wait()
        deadlines.add(number, limit / 8)
        model[number] = loop.now + limit / 8
        if answered and (left := sorted(model.keys() - late)):
            del waits[left[0]], model[left[0]]
        loop.advance(passed / 8)
        late |= {each for each, at in model.items() if at <= loop.now}
        assert ended(waits) == late
        assert len(loop.set) <= 1


async def test_a_real_loop_ends_a_wait() -> None:
    loop = asyncio.get_running_loop()
    wait: asyncio.Future[None] = loop.create_future()
    deadlines = Deadlines(loop, {1: (None, wait)})
    deadlines.add(1, 0.01)
    with pytest.raises(TimeoutError):
        await wait

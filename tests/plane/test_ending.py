"""The end of tasks: a cancellation that a library swallows is repeated."""

import asyncio

import pytest

from muster_server.plane import ending
from muster_server.plane.ending import end


async def test_a_task_that_swallows_cancellations_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AGAIN_S", 0.01)
    swallowed = 0

    async def step() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    task = asyncio.create_task(step())
    await asyncio.sleep(0)
    await end(task)
    assert (task.cancelled(), swallowed) == (True, 2)


async def test_errors_of_ended_tasks_are_dropped() -> None:
    async def fail() -> None:
        raise ValueError("late")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end(task)
    await end()
    assert isinstance(task.exception(), ValueError)

"""Waits for remote events, with an end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENT_S: Final = 200.0
"""The limit of a wait for what must come, in seconds: it ends a test that is broken, and no other.

At a fifth of the speed of a machine that runs the whole suite, the slowest of these events takes 100 s. A shorter limit
stands only where it is itself what the test is about, or where nothing must come. `tests/test_limits.py` holds this.
"""


PLANTED_S: Final = 20.0
"""A planted bug may show only as a wait without end. Its test ends then, and has found the bug."""


async def until(condition: Callable[[], object], seconds: float = PATIENT_S) -> None:
    """Return as soon as `condition` holds. Raises `TimeoutError` if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in a kernel or another process: no event to wait for
            await asyncio.sleep(0.005)


async def until_asked(condition: Callable[[], object], seconds: float = PATIENT_S, every_s: float = 0.25) -> None:
    """The same for conditions that take long to check, as on all nodes beside a full load: in a thread, and rarely."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - as above
            await asyncio.sleep(every_s)


def wait_for(condition: Callable[[], Any], what: str = "a condition") -> Any:
    """The same without a loop: wait until the condition is true, and return its value. Fails with `what` after that."""
    deadline = time.monotonic() + PATIENT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENT_S:g} s for {what}"
        time.sleep(0.02)
    return found

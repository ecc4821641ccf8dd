"""Waits for remote events, with an end."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return as soon as `condition` holds. Raises `TimeoutError` if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in a kernel or another process: no event to wait for
            await asyncio.sleep(0.005)


async def until_asked(condition: Callable[[], object], seconds: float = 10.0, every_s: float = 0.25) -> None:
    """The same for conditions that take long to check, as on all nodes beside a full load: in a thread, and rarely."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - as above
            await asyncio.sleep(every_s)

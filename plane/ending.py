"""The end of tasks that call a Redis."""

import asyncio
from typing import Any, Final

AGAIN_S: Final = 0.5
"""Seconds after which a task that goes on is cancelled again."""


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until all have ended, and drop their errors.

    One cancellation may be lost: before Python 3.12, `asyncio.wait_for` swallows it if what it waits for is done at this
    moment, and redis-py sends commands by it."""
    going = {each for each in tasks if not each.done()}
    while going:
        for each in going:
            each.cancel()
        _, going = await asyncio.wait(going, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)

"""Cancels tasks and waits for their end. It must not know what they do."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

AGAIN_S: Final = 0.2


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended.

    One cancellation may not be enough: `asyncio.wait_for`, which redis-py uses, loses a cancellation that arrives
    together with its result (Python 3.11)."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)

"""Waiting for what happens elsewhere, with an end."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return as soon as `condition` holds. Raises `TimeoutError` when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in a kernel or another process: no event to wait for
            await asyncio.sleep(0.005)

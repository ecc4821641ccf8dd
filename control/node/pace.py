"""Limits the time that answers take from the loop, which also carries messages.

Owns the time of the next answer. Knows no request.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

SHARE: Final = 0.05
"""Share of the processor's time for answers, beyond the first ones after a pause."""
SAVED_S: Final = 2.0
"""Seconds of a pause that count as credit: 0.1 s of answers, or as many as the rate allows in it."""


class Pace:
    """Grants turns one after the other, in the order of the requests."""

    def __init__(self, rate: float) -> None:
        """`rate`: limit of turns per second, however cheap."""
        self._least_s = 1 / rate
        self._next = 0.0
        self._one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; the block must not await, and its duration is the cost of the turn."""
        async with self._one:
            now = asyncio.get_running_loop().time()
            self._next = max(self._next, now - SAVED_S)
            if self._next > now:
                await asyncio.sleep(self._next - now)
            began = time.thread_time()
            try:
                yield
            finally:
                self._next += max(self._least_s, (time.thread_time() - began) / SHARE)

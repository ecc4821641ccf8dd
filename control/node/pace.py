"""Bounds what answers cost the loop that also carries messages.

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
"""Time that a pause saves up: 0.1 s of answers, or as many as the rate allows in it."""


class Pace:
    """Gives turns one after the other, in the order in which they were asked for."""

    def __init__(self, rate: float) -> None:
        """`rate`: most turns a second, however cheap."""
        self._least_s = 1 / rate
        self._next = 0.0
        self._one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; the work in the block, which does not wait, is what it costs."""
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

"""Time limits of many waits, with one timer of the loop for all of them. It must not know what is waited for."""

import asyncio
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final

SPARE: Final = 64
TICK_S: Final = 0.001
"""Resolution of the loop's timers, in seconds; they may fire this much too early."""


class Deadlines:
    """Ends waits with `TimeoutError`. `waits`: open waits by number; the second item of each tuple is the future."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waits: Mapping[int, tuple[Any, "asyncio.Future[Any]"]]) -> None:
        self._loop, self._waits = loop, waits
        self._heap: list[tuple[float, int]] = []
        """End of each wait, and its number. Limited to twice the number of open waits plus `SPARE`."""
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf

    def add(self, number: int, seconds: float) -> None:
        """End this wait after `seconds`."""
        at = self._loop.time() + seconds
        heap = self._heap
        if len(heap) >= SPARE + 2 * len(self._waits):
            heap[:] = [each for each in heap if each[1] in self._waits]
            heapify(heap)
        heappush(heap, (at, number))
        if at < self._at:
            self._set(at)

    def close(self) -> None:
        """Stop: no wait is ended any more."""
        self._heap.clear()
        self._set(inf)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = at, None if at == inf else self._loop.call_at(at, self._end_late)

    def _end_late(self) -> None:
        heap, until = self._heap, self._loop.time() + TICK_S
        while heap and (heap[0][0] <= until or heap[0][1] not in self._waits):
            wait = self._waits.get(heappop(heap)[1])
            if wait is not None and not wait[1].done():
                wait[1].set_exception(TimeoutError())
                wait[1].exception()  # marks it as retrieved: perhaps its caller is cancelled at this moment
        self._set(heap[0][0] if heap else inf)

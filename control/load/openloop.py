"""Requests by an open schedule: each is sent when it falls due, whatever became of those before it.

Owns the schedule, the bound of requests on their way, and the counts. It knows no protocol.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from muster_server.control.load.generator import Slice

AHEAD_MAX: Final = 10_000
"""Requests on their way at once; more wait, and their latency counts from when they fell due."""
TICK_S: Final = 0.002

Request = Callable[[int], Awaitable[str | None]]
"""Sends request number N; returns None if all is well, else the name of the count that it adds to."""


class OpenLoop:
    """Sends requests at a rate that rises over `ramp_s`, for `for_s` seconds, of which the ramp is a part."""

    def __init__(self, request: Request, rate: float, for_s: float, ramp_s: float) -> None:
        self._request, self._rate = request, rate
        self._ramp = min(ramp_s, for_s)
        self._total = int(rate * (for_s - self._ramp / 2))
        self._began: float | None = None
        self._next = 0
        self._open: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter(sent=0, done=0, failed=0)
        self._latencies: list[int] = []
        self._late: list[int] = []

    async def advance(self, seconds: float) -> Slice:
        """Send what falls due within this time."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        until = now + seconds
        while (now := time.monotonic()) < until:
            self._send_due(now)
            if self.over:
                if not self._open:
                    break
                await asyncio.wait(self._open, timeout=until - now, return_when=asyncio.ALL_COMPLETED)
            else:
                await asyncio.sleep(min(max(self.due(self._next) - now, 0.0), TICK_S, max(until - now, 0.0)))
        latencies, self._latencies = self._latencies, []
        late, self._late = self._late, []
        return Slice(
            counts=dict(self._counts),
            latencies=np.array(latencies, dtype=np.uint64),
            late=np.array(late, dtype=np.uint64),
            over=self.over,
            complete=self.over and not self._open,
        )

    @property
    def over(self) -> bool:
        """Whether the whole schedule was sent."""
        return self._next >= self._total

    async def close(self) -> None:
        """Give up requests on their way."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def due(self, number: int) -> float:
        """When request N falls due, by the monotonic clock."""
        assert self._began is not None
        risen = self._rate * self._ramp / 2
        if number < risen:
            return self._began + math.sqrt(2 * number * self._ramp / self._rate)
        return self._began + self._ramp + (number - risen) / self._rate

    def _send_due(self, now: float) -> None:
        while not self.over and (due := self.due(self._next)) <= now and len(self._open) < AHEAD_MAX:
            self._late.append(int((now - due) * 1e6))
            task = asyncio.create_task(self._one(self._next, due))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            self._counts["sent"] += 1
            self._next += 1

    async def _one(self, number: int, due: float) -> None:
        trouble = await self._request(number)
        if trouble is None:
            self._counts["done"] += 1
            self._latencies.append(int((time.monotonic() - due) * 1e6))
        else:
            self._counts["failed"] += 1
            self._counts[trouble] += 1

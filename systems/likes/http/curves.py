"""Counts of items over the last hour, kept for items that somebody looks at. Likes keep no series themselves.

An item's series begins with the first look, and ends an hour after the last one. All series cost one request of the node
each `EVERY_S`.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from muster_server.systems.http.problems import Problem

EVERY_S: Final = 5.0
KEPT_S: Final = 3_600
POINTS_MAX: Final = int(KEPT_S / EVERY_S)
ITEMS_MAX: Final = 100
"""Limit of items with a series: 100 of 720 points, about 6 MiB. The one that nobody has looked at for longest goes first."""

Counts = Callable[[Sequence[bytes]], Awaitable[Sequence[int]]]
"""Asks a node for the counts of items. Raises `Problem`."""


class Series:
    """The points of one item: seconds since 1970, and its count."""

    def __init__(self) -> None:
        self.at: deque[float] = deque(maxlen=POINTS_MAX)
        self.count: deque[int] = deque(maxlen=POINTS_MAX)
        self.looked = 0.0
        """When it was last looked at, by the clock."""

    def add(self, at: float, count: int) -> None:
        """Add a point; an earlier one than the last is dropped."""
        if not self.at or at > self.at[-1]:
            self.at.append(at)
            self.count.append(count)


class Curves:
    """The series of one process. `wall` gives the times of points, and `clock` the ages of looks."""

    def __init__(
        self,
        counts: Counts,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._wall, self._clock = counts, wall, clock
        self._series: OrderedDict[bytes, Series] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._series)

    async def look(self, item: bytes) -> Series:
        """The series of an item, which goes on for an hour. Raises `Problem`: no node answers the first look."""
        series = self._series.get(item)
        if series is None:
            (count,) = await self._counts([item])
            series = self._series.setdefault(item, Series())
            series.add(self._wall(), count)
            while len(self._series) > ITEMS_MAX:
                self._series.popitem(last=False)
        series.looked = self._clock()
        self._series.move_to_end(item)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return series

    async def sample(self) -> None:
        """Add a point to each series, and forget those that nobody looked at for an hour."""
        since = self._clock() - KEPT_S
        for item in [item for item, series in self._series.items() if series.looked < since]:
            del self._series[item]
        items = list(self._series)
        if not items:
            return
        try:
            counts = await self._counts(items)
        except Problem:  # no node answers: the curve has a hole
            return
        now = self._wall()
        for item, count in zip(items, counts, strict=True):
            if item in self._series:
                self._series[item].add(now, count)

    async def stop(self) -> None:
        """Sample no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._series:
            await asyncio.sleep(EVERY_S)
            await self.sample()

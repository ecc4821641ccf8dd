"""Snowflakes: 63-bit ids that rise with time, without a call for each.

Owns the layout and the leases of workers. An id is 41 bits of milliseconds since 2026, 10 bits of worker, 12 of
sequence.

A worker's node in the registry holds a bound: the millisecond up to which its ids may be used. A process raises it, at
the version that it read, before it uses such ids. So every millisecond of a worker has one owner:
- A process that stalled uses ids only below the bound that it wrote itself. Its next attempt to raise it fails, and it
takes another worker.
- A worker whose bound has passed is free. The next owner begins at the bound, whatever its own clock shows.
- A clock that is set back changes nothing: ids continue from the last millisecond, 4,096 for each. A clock that is set
forward needs a new bound first.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from muster.clock import now_ms
from muster_server.control.ids.dense import ROOT
from muster_server.control.registry.tree import BadVersion, NodeExists, Tree

EPOCH_MS: Final = 1_767_225_600_000
"""2026-01-01, in milliseconds since 1970."""
WORKERS: Final = 1 << 10
SEQUENCES: Final = 1 << 12
MS_MAX: Final = (1 << 41) - 1
WINDOW_MS: Final = 5_000
"""Milliseconds that a lease reaches ahead. After its owner's end a worker is free after this time."""


class Parts(NamedTuple):
    """The parts of a snowflake."""

    at_ms: int
    """Milliseconds since 1970."""
    worker: int
    sequence: int


def parts(snowflake: int) -> Parts:
    """Split a snowflake into its parts."""
    return Parts((snowflake >> 22) + EPOCH_MS, snowflake >> 12 & WORKERS - 1, snowflake & SEQUENCES - 1)


class Snowflakes:
    """The snowflakes of one process."""

    def __init__(
        self,
        tree: Tree,
        root: str = ROOT,
        *,
        now_ms: Callable[[], int] = now_ms,
        window_ms: int = WINDOW_MS,
        dice: random.Random | None = None,
    ) -> None:
        self._tree, self._root = tree, f"{root}/workers"
        self._now_ms, self._window_ms = now_ms, window_ms
        self._dice = dice or random.Random()
        self._worker, self._version = -1, 0
        self._next = 0
        """The next id without its worker: milliseconds since `EPOCH_MS` times 4,096, plus the sequence number."""
        self._until = 0
        """The end of the lease, in the same form."""
        self._leasing = asyncio.Lock()

    @property
    def worker(self) -> int:
        """The leased worker; -1 before the first id."""
        return self._worker

    async def take(self, count: int = 1) -> list[int]:
        """The next `count` ids, ascending. Raises `TreeError`: no lease at the moment; and `OverflowError` in 2095."""
        taken: list[int] = []
        async with self._leasing:
            while len(taken) < count:
                first = max(self._next, (self._now_ms() - EPOCH_MS) * SEQUENCES)
                end = min(first + count - len(taken), self._until)
                if end <= first:
                    await self._lease(first // SEQUENCES)
                    continue
                worker = self._worker << 12
                taken += [(at & -SEQUENCES) << 10 | worker | at & SEQUENCES - 1 for at in range(first, end)]
                self._next = end
        return taken

    async def _lease(self, now: int) -> None:
        """Lease milliseconds from `now` on: of this worker, or of another one."""
        if self._worker < 0 or not await self._extend(now):
            while not await self._take_worker(now):
                pass

    async def _extend(self, now: int) -> bool:
        try:
            begin = max(now, self._until // SEQUENCES)
            self._version = await self._tree.set(self._path, self._bound(begin), self._version)
        except BadVersion:  # its bound passed, and another process took it
            return False
        self._until = (begin + self._window_ms) * SEQUENCES
        return True

    async def _take_worker(self, now: int) -> bool:
        """Take a worker whose bound has passed; fails if another process was faster."""
        known = await self._tree.children(self._root)
        bounds = {int(name): int(entry.data) for name, entry in known.items()}
        free = [worker for worker in range(WORKERS) if bounds.get(worker, 0) <= now]
        # No worker is free where a clock was set back: the lowest bound costs the fewest milliseconds.
        self._worker = worker = self._dice.choice(free) if free else min(bounds, key=lambda one: bounds[one])
        begin = max(now, bounds.get(worker, 0))
        try:
            if worker in bounds:
                self._version = await self._tree.set(self._path, self._bound(begin), known[str(worker)].version)
            else:
                await self._tree.create(self._path, self._bound(begin))
                self._version = 0
        except (BadVersion, NodeExists):
            return False
        self._next = max(self._next, begin * SEQUENCES)
        self._until = (begin + self._window_ms) * SEQUENCES
        return True

    @property
    def _path(self) -> str:
        return f"{self._root}/{self._worker}"

    def _bound(self, begin: int) -> bytes:
        until = begin + self._window_ms
        if until > MS_MAX:
            raise OverflowError("the clock is beyond the last millisecond of snowflakes; correct the clock")
        return b"%d" % until

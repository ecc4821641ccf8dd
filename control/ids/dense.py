"""Dense ids: small numbers without large gaps, for bitmaps.

Owns the order in which segments are taken and used. If a process ends, the rest of its segment is lost: a gap, never a
repetition.
"""

import asyncio
from typing import Final, Protocol

from muster_server.control.registry.tree import BadVersion, NodeExists, Tree

SEGMENT: Final = 1 << 16
"""Ids per segment: one container of a roaring bitmap."""
ROOT: Final = "/ids"
ID_MAX: Final = (1 << 63) - 1


class Segments(Protocol):
    """Counters from which several processes take ranges."""

    async def take(self, name: str, count: int) -> range:
        """Take the next `count` numbers of a counter; the first is 0. No other process ever gets them.

        Raises `TreeError` or the error of its store. The numbers may then be lost.
        """


class RegistrySegments:
    """Counters in the registry: one node for each, replaced only at the version that was read."""

    def __init__(self, tree: Tree, root: str = ROOT) -> None:
        self._tree, self._root = tree, f"{root}/dense"

    async def take(self, name: str, count: int) -> range:
        path = f"{self._root}/{name}"
        while True:
            entry = await self._tree.get(path)
            first = 0 if entry is None else int(entry.data)
            end = first + count
            if end > ID_MAX:
                raise OverflowError(f"too few numbers left in counter {name} ({count} requested)")
            try:
                if entry is None:
                    await self._tree.create(path, b"%d" % end)
                else:
                    await self._tree.set(path, b"%d" % end, entry.version)
            except (BadVersion, NodeExists):
                continue  # another process was faster
            return range(first, end)


class DenseIds:
    """The ids of one process, from segments of a counter."""

    def __init__(self, segments: Segments, name: str, *, segment: int = SEGMENT) -> None:
        self._segments, self._name, self._segment = segments, name, segment
        self._left = range(0)
        self._taking = asyncio.Lock()

    async def take(self, count: int = 1) -> list[int]:
        """The next `count` ids, ascending. Raises as `Segments.take` does; the ids taken so far are then lost."""
        taken: list[int] = []
        async with self._taking:
            while len(taken) < count:
                if not self._left:
                    self._left = await self._segments.take(self._name, self._segment)
                given = min(count - len(taken), len(self._left))
                taken += self._left[:given]
                self._left = self._left[given:]
        return taken

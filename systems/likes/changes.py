"""Changed items, for consumers that show counts elsewhere: the newest count of each waits until it is taken.

Owns the waiting items, and their limit. Knows no consumer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from muster_server._engines import LikesEngine

LOOK_S: Final = 0.05
TAKEN: Final = 2_000
"""Limit of items of one call of the engine: less than 1 ms."""
WAITING_MAX: Final = 1 << 17
"""Limit of items that wait for one consumer; about 200 B each."""


class Waiting:
    """The items that wait for one consumer: the oldest change first, with its newest count; None: the item was deleted."""

    def __init__(self) -> None:
        self._items: dict[bytes, int | None] = {}
        self.lost = False
        """True: too many items changed, so the consumer must read all items."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: bytes, count: int | None) -> None:
        """Add a change; an item that waits already keeps its position."""
        if item in self._items or len(self._items) < WAITING_MAX:
            self._items[item] = count
        else:
            self.lost = True

    def take(self, count: int) -> list[tuple[bytes, int | None]]:
        """Take up to `count` items, the oldest first."""
        return [(item, self._items.pop(item)) for item in list(self._items)[:count]]

    def discard(self, others: Callable[[bytes], bool]) -> None:
        """Discard items that another node reports from now on, so that no older count follows a newer one."""
        self._items = {item: count for item, count in self._items.items() if not others(item)}

    def back(self, items: Sequence[tuple[bytes, int | None]]) -> None:
        """Put back items that were not delivered, unless they have changed since."""
        self._items = {**dict(items), **self._items}


class Changes:
    """Reports every change to every consumer while `run` runs."""

    def __init__(self, engine: LikesEngine, consumers: Sequence[Waiting]) -> None:
        self._engine, self._consumers = engine, consumers
        engine.watch()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            items, lost = self._engine.changed(TAKEN)
            for waiting in self._consumers:
                waiting.lost |= lost
                for item, count in items:
                    waiting.put(item, count)
            await asyncio.sleep(0 if len(items) == TAKEN else LOOK_S)

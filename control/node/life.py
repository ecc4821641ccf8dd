"""The life of one node of this process: its owner may ask it to end at any time, also before it serves.

Owns the order of an end and of the node's work. It must not know how a node works, nor who asks.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Life:
    """Made and used in one loop."""

    def __init__(self) -> None:
        self._ending = self._stopping = False
        self._end: asyncio.Event | None = None
        self._stop: asyncio.Event | None = None
        self._working: asyncio.Task[None] | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Work until that is over, or until the node is asked to end before it serves. Raises its errors."""
        self._working = asyncio.create_task(work)
        if self._ending:
            self._working.cancel()
        try:
            await self._working
        except asyncio.CancelledError:
            if not self._ending:
                raise

    def watch(self, end: asyncio.Event, stop: asyncio.Event) -> None:
        """From now on it serves, and ends by these events. An order that came before counts too."""
        self._end, self._stop = end, stop
        if self._ending:
            end.set()
        if self._stopping:
            stop.set()

    def end(self) -> None:
        """End in order."""
        self._ending = True
        if self._end is not None:
            self._end.set()
        elif self._working is not None:  # it may wait for the registry, for which there is no limit
            self._working.cancel()

    def stop(self) -> None:
        """End at once."""
        self._stopping = True
        self.end()
        if self._stop is not None:
            self._stop.set()

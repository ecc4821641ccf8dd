"""The life of one node of this process: its owner may order its end at any time, also before it serves.

Owns the order of an end and of the node's work. It must not know how a node works, nor its owner.
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
        """Run the work until it ends, or until the owner orders the end before the node serves. Raises its errors."""
        self._working = asyncio.create_task(work)
        if self._ending:
            self._working.cancel()
        try:
            await self._working
        except asyncio.CancelledError:
            if not self._ending:
                raise

    def watch(self, end: asyncio.Event, stop: asyncio.Event) -> None:
        """The node serves, and these events end it from now on. An earlier order to end counts too."""
        self._end, self._stop = end, stop
        if self._ending:
            end.set()
        if self._stopping:
            stop.set()

    def end(self) -> None:
        """End in order: drain first."""
        self._ending = True
        if self._end is not None:
            self._end.set()
        elif self._working is not None:  # it may wait for the registry without a limit
            self._working.cancel()

    def stop(self) -> None:
        """End at once."""
        self._stopping = True
        self.end()
        if self._stop is not None:
            self._stop.set()

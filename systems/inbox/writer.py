"""Entries of many requests, written together: one transaction makes them all durable, and each request hears of its own.

Owns the queue and its bound. A request that comes while a transaction runs waits for the next one, so the disk is asked
once for all that came meanwhile. It must not know SQL.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from muster.clock import now_ms
from muster_server.plane.database.errors import BadValue
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.inbox.records import Store, Told
from muster_server.systems.inbox.shapes import New, Noted

TOGETHER_MAX: Final = 2_000
"""Limit of entries of one transaction, beside those of its last request."""
WAITING_MAX: Final = 50_000
"""Limit of entries that wait: 4 KiB each, 200 MB at most."""


_Asked = tuple[list[tuple[int, New]], asyncio.Future[list[Noted]]]
"""Entries of one request, and its answer."""


class Busy(Exception):
    """Too many entries wait. The text is one line."""


class Writer:
    """Runs while `run` runs. `told`: gets what was written."""

    def __init__(self, store: Store, told: Callable[[Sequence[Told]], None]) -> None:
        self._store, self._told = store, told
        self._queue: deque[_Asked] = deque()
        self._more = asyncio.Event()
        self.waiting = 0
        """Entries that wait."""

    async def write(self, entries: list[tuple[int, New]]) -> list[Noted]:
        """Write entries; returns once they are durable. Raises `StoreError`, `Busy`."""
        if self.waiting + len(entries) > WAITING_MAX:
            raise Busy(f"too many entries wait for the database (limit {WAITING_MAX}); try again")
        said: asyncio.Future[list[Noted]] = asyncio.get_running_loop().create_future()
        self.waiting += len(entries)
        self._queue.append((entries, said))
        self._more.set()
        return await said

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._more.wait()
            some: list[_Asked] = []
            count = 0
            while self._queue and count < TOGETHER_MAX:
                some.append(self._queue.popleft())
                count += len(some[-1][0])
            if not self._queue:
                self._more.clear()
            await self._write(some)
            self.waiting -= count

    async def _write(self, some: Sequence[_Asked]) -> None:
        told: list[Told] = []
        try:
            noted = await self._store.notify([each for entries, _ in some for each in entries], now_ms(), told)
        except StoreError as error:
            if isinstance(error, BadValue) and len(some) > 1:  # the others are not to blame
                for each in some:
                    await self._write([each])
                return
            for _, said in some:
                if not said.done():
                    said.set_exception(type(error)(str(error)))
            return
        except BaseException:
            for _, said in some:
                said.cancel()
            raise
        first = 0
        for entries, said in some:
            if not said.done():
                said.set_result(noted[first : first + len(entries)])
            first += len(entries)
        self._told(told)

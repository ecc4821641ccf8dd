"""An engine whose log is elsewhere: its batches are appended to the log one after another, and their replies come back.

Owns the mapping from errors of the log to replies. Knows no socket and no store. The engine applies a batch only after
the log has it, at the offset from the log; so a reply of an owner that was fenced meanwhile is never wrong.
"""

import asyncio
from collections.abc import Callable

from muster.clock import now_ms
from muster_server._engines import LikesEngine
from muster_server.plane.log import Batch, Log, TooLarge
from muster_server.plane.ownership.errors import Fenced, Full, StoreError


async def replayed(engine: LikesEngine, log: Log) -> None:
    """Apply the log's records after the engine's snapshot. Raises `LogError`."""
    async for first, batch in log.read(engine.offset()):
        await asyncio.to_thread(engine.replay, first, batch.payload)


class Logged:
    """Call `begin` when changes may wait; `done` is called when replies do."""

    def __init__(self, engine: LikesEngine, log: Log) -> None:
        self.log = log
        self.done: Callable[[], None] = lambda: None
        self._engine = engine
        self._appending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Append the next batch, unless an append is in progress."""
        if self._appending is None and (batch := self._engine.begin_batch()) is not None:
            self._appending = asyncio.create_task(self._append(Batch(*batch)))

    async def _append(self, batch: Batch) -> None:
        engine = self._engine
        try:
            offsets = await self.log.append(batch)
        except (Full, TooLarge) as error:
            engine.batch_failed(f"MISCONF {error}", False, now_ms())
        except StoreError as error:
            code = "CLUSTERDOWN" if isinstance(error, Fenced) else "MISCONF"
            engine.suspend(f"{code} {error}", True)  # another owner may have changed the data
            engine.batch_failed(f"{code} {error}", True, now_ms())
        else:
            engine.batch_is_durable(offsets.start, now_ms())
        self._appending = None
        self.done()

    async def close(self) -> None:
        """Close the log, after the append in progress."""
        if self._appending is not None:
            await self._appending
        await self.log.close()

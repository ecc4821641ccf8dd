"""An engine whose log is elsewhere: its batches go to the log one after another, and their answers come back.

Owns which error of the log becomes which reply. Knows no socket and no store. The engine applies a batch only after the
log has it, at the offset that the log gave; so what an owner that was fenced meanwhile answers is never wrong.
"""

import asyncio
from collections.abc import Callable

from muster.clock import now_ms
from muster_server._engines import LikesEngine
from muster_server.plane.log import Batch, Fenced, Full, Log, LogError, TooLarge


async def replayed(engine: LikesEngine, log: Log) -> None:
    """Apply what the log has behind the engine's snapshot. Raises `LogError`."""
    async for first, batch in log.read(engine.offset()):
        await asyncio.to_thread(engine.replay, first, batch.payload)


class Logged:
    """Call `begin` when changes may wait; `done` is called when answers do."""

    def __init__(self, engine: LikesEngine, log: Log) -> None:
        self.log = log
        self.done: Callable[[], None] = lambda: None
        self._engine = engine
        self._appending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Append the next batch, unless one is under way."""
        if self._appending is None and (batch := self._engine.begin_batch()) is not None:
            self._appending = asyncio.create_task(self._append(Batch(*batch)))

    async def _append(self, batch: Batch) -> None:
        engine = self._engine
        try:
            offsets = await self.log.append(batch)
        except (Full, TooLarge) as error:
            engine.batch_failed(f"MISCONF {error}", False, now_ms())
        except LogError as error:
            code = "CLUSTERDOWN" if isinstance(error, Fenced) else "MISCONF"
            engine.suspend(f"{code} {error}", True)  # another owner may have changed what questions ask
            engine.batch_failed(f"{code} {error}", True, now_ms())
        else:
            engine.batch_is_durable(offsets.start, now_ms())
        self._appending = None
        self.done()

    async def close(self) -> None:
        """End the log, after the batch under way."""
        if self._appending is not None:
            await self._appending
        await self.log.close()

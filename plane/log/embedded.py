"""Logs in folders of this machine, by the journal of `muster_server._engines`.

Owns the watch of the descriptor and the order of replies. The journal owns frames, checksums and syncs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from muster_server._engines import Journal
from muster_server.plane.log.words import (
    BATCH_BYTES_MAX,
    Batch,
    Beyond,
    Damaged,
    Failed,
    TooLarge,
    Trimmed,
)
from muster_server.plane.ownership.errors import Fenced, Full, StoreError
from muster_server.plane.stores import stamp

SEGMENT_BYTES: Final = 32 << 20
"""Size of one file: eight of the largest batches. A log takes up to two files more than its records need."""
_ERRORS: Final[dict[str, type[StoreError]]] = {
    "damaged": Damaged,
    "failed": Failed,
    "fenced": Fenced,
    "full": Full,
    "refused": Failed,
    "too_large": TooLarge,
}


class EmbeddedLogs:
    """A folder with a subfolder for each log."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes

    async def open(self, name: str, partition: int, epoch: int | None = None) -> "EmbeddedLog":
        folder = self._folder / name / str(partition)
        journal = await asyncio.to_thread(_open, folder, self._segment_bytes, epoch)
        return EmbeddedLog(journal)

    async def close(self) -> None:
        """Nothing to close: its logs share nothing."""


def _open(folder: Path, segment_bytes: int, epoch: int | None) -> Journal:
    try:
        stamp(folder, f"{folder.parent.name} {folder.name}")
    except OSError as error:
        raise Damaged(f"log {folder}: {error}") from None
    try:
        return Journal(folder=str(folder), segment_bytes=segment_bytes, epoch=epoch)
    except OSError as error:
        kind, text = error.args
        raise _ERRORS.get(kind, Failed)(f"log {folder}: {text}") from None


class EmbeddedLog:
    """A journal, and the appends that wait for it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: deque[asyncio.Future[range]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        asyncio.get_running_loop().add_reader(journal.fileno(), self._take)

    @property
    def epoch(self) -> int:
        return self._journal.epoch

    @property
    def start(self) -> int:
        return self._journal.start

    @property
    def end(self) -> int:
        return self._journal.end

    async def append(self, batch: Batch) -> range:
        if len(batch.payload) > BATCH_BYTES_MAX:
            raise TooLarge(f"the batch is too large: {len(batch.payload)} bytes (limit {BATCH_BYTES_MAX})")
        done: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._journal.append(batch.payload)
        self._waiting.append(done)
        self._idle.clear()
        return await done

    def _take(self) -> None:
        for first, end, error in self._journal.take():
            done = self._waiting.popleft()
            if done.cancelled():  # its caller no longer waits, but the batch counts
                continue
            if error is None:
                done.set_result(range(first, end))
            else:
                kind, text = error
                done.set_exception(_ERRORS[kind](text))
        if not self._waiting:
            self._idle.set()

    async def read(self, offset: int) -> AsyncIterator[tuple[int, Batch]]:
        end = self.end
        while offset < end:
            first, count, payload = await asyncio.to_thread(_read, self._journal, offset)
            yield first, Batch(payload, count)
            offset = first + count
        if offset > end:
            raise Beyond(end)

    async def truncate(self, below: int) -> None:
        self._journal.trim(below)

    def lag(self, offset: int) -> int:
        return self.end - offset

    async def close(self) -> None:
        await self._idle.wait()
        asyncio.get_running_loop().remove_reader(self._journal.fileno())
        await asyncio.to_thread(self._journal.close)


def _read(journal: Journal, offset: int) -> tuple[int, int, bytes]:
    try:
        return journal.read(offset)
    except OSError as error:
        kind, text = error.args
        if kind == "trimmed":
            raise Trimmed(journal.start) from None
        raise _ERRORS.get(kind, Failed)(text) from None

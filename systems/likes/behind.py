"""Write-behind: in passes, changed items go to the database, now and then with a snapshot, then the log is trimmed.

Owns the order and the time of passes. An item's mark is cleared only if the item has not changed since its row was
made. Without its database a node continues: marks stay, and the log keeps everything that the database lacks. Knows no
SQL.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from muster_server._engines import LikesEngine
from muster_server.plane.database.errors import DatabaseError
from muster_server.plane.ownership.errors import Fenced
from muster_server.plane.service import Figure
from muster_server.systems.likes.options import LikesOptions
from muster_server.systems.likes.records import Row, StoredState, User

ROWS: Final = 500
ROW_BYTES: Final = 1 << 20
"""Limit of the rows of one transaction: making them blocks the loop for about 2 ms."""
USERS: Final = 5_000
SLICE_BYTES: Final = 128 << 10
"""Size of a slice of a snapshot: it blocks the loop for less than 1 ms on an idle core."""
PART_BYTES: Final = 1 << 20
"""Size of a part of a snapshot in the database; below every server's limit of a packet. To join a whole snapshot, and to
split it again, would block the loop for as long as that takes."""


class Store(Protocol):
    """The database of one log; see `systems/likes/database/store.py`. All raise `DatabaseError`."""

    where: str

    async def load(self) -> StoredState:
        """The content of the database."""

    async def claim(self, epoch: int) -> None:
        """Write for the owner of this epoch from now on; earlier owners are refused."""

    async def write_users(self, new: Sequence[User], gone: Sequence[int], total: int) -> None:
        """Write new users, and the dense ids of those that were erased before their row was written; `total` is the
        number of dense ids after that."""

    async def erase_users(self, dense: Sequence[int]) -> None:
        """Delete the rows of users, and mark their dense ids as erased."""

    async def traces(self, dense: Sequence[int], since: int) -> tuple[int, int]:
        """The number of rows of these users and of snapshots below this offset, and of all snapshots."""

    async def scrub(self) -> None:
        """Overwrite deleted bytes, where the client decides on that."""

    async def write(self, rows: Sequence[Row], offset: int | None) -> None:
        """Write newer rows. With an offset, the rows contain all changes below it from now on."""

    async def keep_snapshot(self, offset: int, parts: Sequence[bytes], former: int) -> None:
        """Store a snapshot of all records below this offset, in parts of about `PART_BYTES`; of the earlier snapshots keep
        only the one at `former`."""

    async def former(self, offset: int) -> tuple[int, bytes] | None:
        """The newest snapshot before this offset, and its own offset."""

    async def close(self) -> None:
        """Close its connections."""


class Behind:
    """Writes behind while `run` runs; `last` writes once more at the end. `kept`: None if the database did not answer."""

    def __init__(
        self,
        engine: LikesEngine,
        store: Store,
        options: LikesOptions,
        log: structlog.typing.FilteringBoundLogger,
        kept: StoredState | None,
    ) -> None:
        self._engine, self._store, self._options = engine, store, options
        self._log = log.bind(database=store.where.partition(":")[0])
        self._kept = None if kept is None else replace(kept, snapshot=None)
        self._claimed = self._refuses = False
        self.trim: Callable[[int], Awaitable[None]] = self._trim
        """Drops records of the log that a snapshot contains."""
        self.passes = self.failed = self.rows = self.snapshots = 0
        self.error = ""
        """The error of the last attempt; empty after a success."""
        self._passing = asyncio.Lock()
        self._since = time.monotonic()
        """Start of the last successful pass."""
        if kept is not None:
            engine.written_below(kept.offset)

    async def _trim(self, offset: int) -> None:
        self._engine.trim(offset)

    async def run(self) -> None:
        """Run passes until cancelled."""
        every_s = self._options.write_behind_ms / 1000
        loop = asyncio.get_running_loop()
        due = loop.time() + every_s
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = loop.time() + every_s
            await self.tried()

    async def close(self) -> None:
        """Close the database's connections."""
        await self._store.close()

    async def tried(self) -> bool:
        """Run one pass; returns False if it failed, which is logged.

        Raises `OSError` if the database proves that the log lacks records.
        """
        if self._refuses:
            return False
        try:
            async with self._passing:
                await self._pass()
        except (DatabaseError, Fenced) as error:
            self.failed += 1
            if not self.error:
                self._log.warning("cannot write likes to the database; the log keeps them", reason=str(error))
            self.error = str(error)
            return False
        if self.error:
            self._log.info("writing likes to the database again")
        self.error = ""
        return True

    async def _pass(self) -> None:
        began, engine, store = time.monotonic(), self._engine, self._store
        kept = self._kept or await store.load()
        if kept.proven > engine.offset():  # the database did not answer at the start
            self._refuses = True
            raise OSError(
                f"the log ends at offset {engine.offset()}, but {store.where} has likes up to offset {kept.proven}"
            )
        if not self._claimed:
            await store.claim(engine.epoch())
            self._claimed = True
        offset: int = engine.offset()
        kept = await self._write_users(kept)
        cursor: int | None = 0
        while cursor is not None:
            cursor, rows = engine.rows(cursor, ROWS, ROW_BYTES)
            last = cursor is None
            if rows or (last and offset != kept.offset):
                await store.write(rows, offset if last else None)
            for key, modification, _ in rows:
                engine.written(key, modification)
            self.rows += len(rows)
        kept = self._kept = replace(kept, offset=offset)
        if engine.offset() - kept.snapshot_offset >= self._options.snapshot_records:
            await self._keep_snapshot()
        self.passes += 1
        self._since = began

    async def _write_users(self, kept: StoredState) -> StoredState:
        """Written before the rows that use their dense ids."""
        while new := self._engine.users(kept.users, USERS):
            known = [(dense, user) for dense, user in new if user is not None]
            gone = [dense for dense, user in new if user is None]
            await self._store.write_users(known, gone, kept.users + len(new))
            kept = self._kept = replace(kept, users=kept.users + len(new))
        return kept

    async def _keep_snapshot(self) -> None:
        kept = self._kept or StoredState()
        offset: int = self._engine.begin_snapshot()
        parts: list[bytes] = []
        part = b""
        while each := self._engine.snapshot_part(SLICE_BYTES):
            part += each
            if len(part) >= PART_BYTES:
                parts.append(part)
                part = b""
            await asyncio.sleep(0)
        if part:
            parts.append(part)
        await self._store.keep_snapshot(offset, parts, kept.snapshot_offset)
        self._kept = replace(kept, snapshot_offset=offset)
        await self.trim(kept.snapshot_offset)  # the start of a node if this snapshot is damaged
        self.snapshots += 1

    async def forget(self, dense: Sequence[int], since: int, more: Callable[[], Awaitable[None]]) -> int:
        """Leave nothing in the database that names the users who had these dense ids: neither their rows, nor a snapshot
        below the offset `since`, nor deleted bytes. `more` waits for a further record.

        Returns the number of snapshots. The log is trimmed below the older one. Raises `DatabaseError`; then it can be
        called again.
        """
        async with self._passing:
            await self._pass()
            await self._store.erase_users(dense)
            await self._keep_snapshot()
            await more()  # two snapshots have two offsets
            await self._keep_snapshot()
            await self._store.scrub()
            left, snapshots = await self._store.traces(dense, since)
            if left:
                raise DatabaseError(f"{self._store.where}: {left} rows or snapshots still have an erased user")
            return snapshots

    # --- status -------------------------------------------------------------------------------------------------

    @property
    def behind_s(self) -> float:
        """Seconds since the start of the last successful pass; 0 if nothing waits."""
        return round(time.monotonic() - self._since, 3) if self._engine.dirty() else 0.0

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        kept = self._kept or StoredState()
        return {
            "url": self._store.where,
            "connected": self._claimed and not self.error,
            "error": self.error,
            "items_behind": self._engine.dirty(),
            "seconds_behind": self.behind_s,
            "offset": kept.offset,
            "snapshot_offset": kept.snapshot_offset,
            "passes": self.passes,
        }

    def note(self) -> str:
        """The same as text, for `muster status`."""
        behind = self._engine.dirty()
        if self.error:
            return f"database {self._store.where}: {behind} items not written for {self.behind_s:.0f} s: {self.error}"
        return f"database {self._store.where}: {behind} items wait for the next pass"

    def counters(self) -> list[Figure]:
        """As `Service.counters`."""
        return [
            ("likes_passes", "Successful passes of the write-behind", self.passes),
            ("likes_passes_failed", "Failed passes of the write-behind", self.failed),
            ("likes_rows_written", "Rows of items written behind", self.rows),
            ("likes_snapshots", "Snapshots written behind", self.snapshots),
        ]

    def gauges(self) -> list[Figure]:
        """As `Service.gauges`."""
        kept = self._kept or StoredState()
        return [
            ("likes_items_behind", "Items that changed since they were written behind", self._engine.dirty()),
            ("likes_seconds_behind", "Age of the last successful pass while items wait", self.behind_s),
            ("likes_offset_behind", "Offset of the log up to which the database has everything", kept.offset),
        ]

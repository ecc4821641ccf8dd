"""One partition of likes: its engine over its log, opened from the last snapshot, and its write-behind.

Items map to partitions by Redis Cluster's hash slots. Knows no socket.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from muster_server._engines import LikesEngine
from muster_server.plane.database.errors import DatabaseError
from muster_server.plane.log import Beyond, LogError, Logs, Trimmed
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.stores import stamp
from muster_server.systems.likes.behind import Behind, Store
from muster_server.systems.likes.logged import Logged, replayed
from muster_server.systems.likes.options import LikesSettings, groups
from muster_server.systems.likes.records import StoredState

AGAIN_S: Final = 1.0
WAYS_OUT: Final = (
    "to mend: restore the log, or run `muster repair likes`, which rebuilds the partition from the database and "
    "loses changes that the database lacks"
)

WAYS_OUT_ELSEWHERE: Final = (
    "to mend: restore the topic, or start from scratch with another likes.log and another database"
)


class Partition:
    """Call `opened`, then `close`."""

    def __init__(self, engine: LikesEngine, behind: Behind, logged: Logged | None = None) -> None:
        """`logged`: set if its log is not in a folder of its own."""
        self.engine, self.behind, self.logged = engine, behind, logged

    def close(self) -> None:
        """Close its own log cleanly."""
        self.engine.close()


def folder_of(settings: LikesSettings, number: int) -> Path:
    """The folder of a partition's log."""
    return Path(settings.folder) / str(number)


def name_of(number: int) -> str:
    """The name of a partition's log."""
    return f"likes {number}"


async def opened(
    settings: LikesSettings,
    number: int,
    passwords: list[tuple[str, str]],
    store: Store,
    log: structlog.typing.FilteringBoundLogger,
    epoch: int | None = None,
) -> Partition:
    """Start from the database's snapshot, then the log. Waits for the database, unless the log has all records.

    A log without a record starts behind a snapshot that has everything that the database proves. `epoch`: of the owner
    that a registry appointed, which fences all earlier ones. Raises `OSError` if the log is locked, damaged, another
    partition's, lacks records that the database proves, or has a later owner, or its disk is full.
    """
    folder, options = folder_of(settings, number), settings.options
    await asyncio.to_thread(stamp, folder, name_of(number))

    async def engine(kept: StoredState, begin: int) -> LikesEngine:
        try:
            return await asyncio.to_thread(
                LikesEngine,
                folder=str(folder),
                segment_bytes=options.segment_mib << 20,
                epoch=epoch,
                snapshot=kept.snapshot,
                items_by_user=options.items_by_user,
                passwords=passwords,
                one_of=groups(options.one_of),
                begin=begin,
                after=kept.epoch,
            )
        except OSError as error:
            raise OSError(f"{folder}: {error}") from None

    waits, tried = _Waits(log), False
    while True:
        try:
            kept = await store.load()
            made, kept = await _restored(engine, kept, store, str(folder), log)
        except DatabaseError as error:
            if not tried:
                tried = True
                with contextlib.suppress(LookupError):  # it was trimmed: only the database has the first records
                    made = await engine(StoredState(), 0)
                    if made.offset():
                        log.warning("starting without the database: the log has all records", reason=str(error))
                        return Partition(made, Behind(made, store, options, log, None))
                    made.close()  # an empty log proves nothing: the database may have records of another one
            await waits(error)
        else:
            if made.skipped():
                log.error(
                    "the log had no record: rebuilding the partition from the database's snapshot; changes that were "
                    "acknowledged after it are lost",
                    folder=str(folder),
                    database=store.where,
                    offset=kept.snapshot_offset,
                )
            return Partition(made, Behind(made, store, options, log, kept))


async def opened_elsewhere(
    settings: LikesSettings,
    number: int,
    passwords: list[tuple[str, str]],
    store: Store,
    logs: Logs,
    log: structlog.typing.FilteringBoundLogger,
    epoch: int | None = None,
) -> Partition:
    """The same with the log at `logs`, whose earlier owners are fenced at once. Waits for the database.

    Raises `OSError` if the log is damaged, does not answer, or belongs to a later owner.
    """
    try:
        shared = await logs.open(f"{settings.instance}.likes", number, epoch)
    except StoreError as error:
        raise OSError(f"likes.log: {error}") from None

    async def engine(kept: StoredState, begin: int) -> LikesEngine:
        made = await asyncio.to_thread(
            LikesEngine,
            folder=None,
            epoch=shared.epoch,
            snapshot=kept.snapshot,
            items_by_user=settings.options.items_by_user,
            passwords=passwords,
            one_of=groups(settings.options.one_of),
        )
        try:
            await replayed(made, shared)
        except (Trimmed, Beyond) as error:
            raise LookupError(str(error)) from None
        return made

    waits = _Waits(log)
    try:
        while True:
            try:
                made, kept = await _restored(engine, await store.load(), store, "likes.log", log, WAYS_OUT_ELSEWHERE)
                break
            except DatabaseError as error:
                await waits(error)
            except LogError as error:
                raise OSError(f"likes.log: {error}") from None
    except BaseException:
        await shared.close()
        raise
    behind = Behind(made, store, settings.options, log, kept)
    behind.trim = shared.truncate
    return Partition(made, behind, Logged(made, shared))


class _Waits:
    """Waits for the database, and logs each reason once."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log, self._told = log, ""

    async def __call__(self, error: DatabaseError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            self._log.warning("waiting for the database, which has the snapshot", reason=self._told)
        await asyncio.sleep(AGAIN_S)


async def _restored(
    engine: Callable[[StoredState, int], Awaitable[LikesEngine]],
    kept: StoredState,
    store: Store,
    where: str,
    log: structlog.typing.FilteringBoundLogger,
    ways_out: str = WAYS_OUT,
) -> tuple[LikesEngine, StoredState]:
    """The engine of the newest intact snapshot, with the log's records after it.

    Raises `DatabaseError`, and `OSError` if the log lacks records that the database proves.
    """
    proven = kept.proven
    while True:
        whole = kept.snapshot is not None and kept.snapshot_offset >= proven
        try:
            if kept.snapshot is None and kept.snapshot_offset:
                raise ValueError("a part of the snapshot is missing")
            made = await engine(kept, proven if whole else 0)
        except ValueError as error:
            former = await store.former(kept.snapshot_offset) or (0, None)
            log.error(
                "a snapshot in the database is damaged; using the one before it",
                database=store.where,
                offset=kept.snapshot_offset,
                reason=str(error),
                before=former[0],
            )
            kept = replace(kept, snapshot_offset=former[0], snapshot=former[1])
        except LookupError as error:
            snapshot = f"a snapshot at offset {kept.snapshot_offset}" if kept.snapshot else "no intact snapshot"
            raise OSError(f"{where}: {error}, and {store.where} has {snapshot}; {ways_out}") from None
        else:
            break
    if made.offset() < proven:
        end = made.offset()
        made.close()
        raise OSError(
            f"{where}: the log ends at offset {end}, but {store.where} has likes up to offset {proven}: "
            f"{proven - end} records are missing; {ways_out}"
        )
    return made, kept

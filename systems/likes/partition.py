"""One partition of likes: its engine over its log, opened from the last snapshot, and what it has written behind.

Items map to partitions by Redis Cluster's hash slots. Knows no socket.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import structlog

from muster._core import LikesEngine
from muster_server.plane.database.errors import DatabaseError
from muster_server.plane.log import LogError, Logs
from muster_server.systems.likes.behind import Behind, Store
from muster_server.systems.likes.logged import Logged, replayed
from muster_server.systems.likes.options import LikesSettings

AGAIN_S: Final = 1.0


class Partition:
    """Call `opened`, then `close`."""

    def __init__(self, engine: LikesEngine, behind: Behind, logged: Logged | None = None) -> None:
        """`logged`: if its log is not in a folder of its own."""
        self.engine, self.behind, self.logged = engine, behind, logged

    def close(self) -> None:
        """End the log of its own cleanly."""
        self.engine.close()


def folder_of(settings: LikesSettings, number: int) -> Path:
    """The folder of a partition's log."""
    return Path(settings.folder) / str(number)


async def opened(
    settings: LikesSettings,
    number: int,
    passwords: list[tuple[str, str]],
    store: Store,
    log: structlog.typing.FilteringBoundLogger,
    epoch: int | None = None,
) -> Partition:
    """Start from the database's snapshot, then the log. Waits for the database, unless the log has all records.

    `epoch`: of the owner that a registry has appointed, who fences all earlier ones. Raises `OSError` when the log is
    locked, damaged, or has a later owner, or its disk is full.
    """
    folder, options = folder_of(settings, number), settings.options

    async def engine(snapshot: bytes | None) -> LikesEngine:
        return await asyncio.to_thread(
            LikesEngine,
            folder=str(folder),
            segment_bytes=options.segment_mib << 20,
            epoch=epoch,
            snapshot=snapshot,
            items_by_user=options.items_by_user,
            passwords=passwords,
        )

    told, tried = "", False
    while True:
        try:
            kept = await store.load()
        except DatabaseError as error:
            if not tried:
                tried = True
                with contextlib.suppress(LookupError):  # it was trimmed: only the database has the beginning
                    made = await engine(None)
                    log.warning("starts without the database: the log has all records", reason=str(error))
                    return Partition(made, Behind(made, store, options, log, None))
            if str(error) != told:
                told = str(error)
                log.warning("waits for the database, which has the snapshot", reason=told)
            await asyncio.sleep(AGAIN_S)
        else:
            try:
                made = await engine(kept.snapshot)
            except LookupError as error:
                snapshot = f"the snapshot at {kept.snapshot_offset}" if kept.snapshot else "no snapshot"
                raise OSError(
                    f"{folder}: {error}, and {store.where} has {snapshot}: they are not of one life; bring the other "
                    "one back, or begin anew with an empty folder and another database"
                ) from None
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

    Raises `OSError` when the log is damaged, away, or belongs to a later owner.
    """
    try:
        shared = await logs.open(f"{settings.instance}.likes", number, epoch)
    except LogError as error:
        raise OSError(f"likes.log: {error}") from None
    told = ""
    while True:
        try:
            kept = await store.load()
            break
        except DatabaseError as error:
            if str(error) != told:
                told = str(error)
                log.warning("waits for the database, which has the snapshot", reason=told)
            await asyncio.sleep(AGAIN_S)
    try:
        engine = await asyncio.to_thread(
            LikesEngine,
            folder=None,
            epoch=shared.epoch,
            snapshot=kept.snapshot,
            items_by_user=settings.options.items_by_user,
            passwords=passwords,
        )
        await replayed(engine, shared)
    except LogError as error:
        await shared.close()
        raise OSError(f"likes.log: {error}; {store.where} has no snapshot of the rest") from None
    behind = Behind(engine, store, settings.options, log, kept)
    behind.trim = shared.truncate
    return Partition(engine, behind, Logged(engine, shared))

"""The stores of likes for `muster check` and `muster repair`: each partition's log in its folder, and its database.

Owns how a partition is rebuilt: from the newest intact snapshot, the log up to the damage, the rows, and the intact
records of the log after it. The result is a snapshot, followed by an empty log.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster_server import _engines
from muster_server._engines import LikesEngine
from muster_server.control.cluster.instance import Record, folder
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.plane.database.errors import DatabaseError
from muster_server.plane.kind import Around
from muster_server.plane.stores import STAMP, Report, Store, locked, misplaced, put_aside, sqlite_faults, sqlite_saved
from muster_server.systems.likes.behind import PART_BYTES
from muster_server.systems.likes.options import LikesSettings, settle
from muster_server.systems.likes.partition import folder_of, name_of
from muster_server.systems.likes.records import KnownUser, StoredState

if TYPE_CHECKING:  # imported only when a database is used
    from muster_server.systems.likes.database.store import SqlStore

PAGE: Final = 500
USERS: Final = 5_000


def stores(config: Config, record: Record | None) -> list[Store]:
    """The store of each partition whose log or database is on this machine."""
    around = Around(config.section, config.instance.name, folder(config).path, 0, absolute, {}, config.runs)
    settings: LikesSettings = settle(config.section("likes"), around)
    beside = not (settings.options.database or config.section("database").url)
    if settings.options.log or (beside and not Path(settings.folder).exists()):
        return []
    return [LikesStore(settings, number) for number in range(settings.partitions)]


class LikesStore:
    """The `plane.stores.Store` of one partition."""

    def __init__(self, settings: LikesSettings, number: int) -> None:
        self._settings, self._number = settings, number
        self._folder = folder_of(settings, number)
        url = settings.database.replace("{partition}", str(number))
        self._file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
        self._url = url
        file = settings.database_password_file
        self._password = Path(file).read_text(encoding="utf-8").strip("\r\n") if file else None

    @property
    def name(self) -> str:
        """As `Store.name`."""
        return "likes" if self._settings.partitions == 1 else f"likes, partition {self._number}"

    @property
    def place(self) -> Path:
        """As `Store.place`."""
        return self._folder.parent

    def check(self) -> Report:
        """As `Store.check`."""
        return asyncio.run(self._check())

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        with locked(self._folder / "lock"):
            return asyncio.run(self._repair(aside))

    # --- reading ------------------------------------------------------------------------------------------------

    async def _check(self) -> Report:
        report = Report(self.name)
        end = self._check_log(report)
        for fault in sqlite_faults(self._file) if self._file else []:
            report.fault(self._file or "", f"SQLite: {fault}")
        if self._file is not None and not self._file.exists():
            report.holds += "; no database yet"
            return report
        try:
            async with self._database() as store:
                await self._check_database(store, report, end)
        except DatabaseError as error:
            report.fault(self._url if self._file is None else self._file, str(error))
        return report

    def _check_log(self, report: Report) -> int:
        """Check the log; returns the offset after its last record."""
        if text := misplaced(self._folder, name_of(self._number)):
            report.fault(self._folder / STAMP, text)
        start, end, _, faults = _engines.check_log(str(self._folder)) if self._folder.exists() else (0, 0, None, [])
        report.holds = f"the log holds records {start} to {end}"
        for file, at, text, first, behind in faults:
            lost = f": records {first} to {behind - 1} are lost" if behind > first else ""
            report.fault(self._folder / file, f"{text}{lost}", at)
        return end

    async def _check_database(self, store: "SqlStore", report: Report, end: int) -> None:
        kept = await store.load()
        whole = 0
        for offset, data in await _snapshots(store, kept):
            if _restored(data) is None:
                report.fault(store.where, f"the snapshot at offset {offset} is damaged")
            else:
                whole = max(whole, offset)
        if self._is_repaired() and whole >= kept.proven:
            report.holds = f"the log starts again at {whole}, behind a snapshot"
        elif end < kept.proven:
            report.fault(
                self._folder, f"the log ends at offset {end}, but {store.where} has likes up to offset {kept.proven}"
            )
        engine = LikesEngine(folder=None)
        wrong = await _take_rows(engine, store)
        report.holds += f"; the database has {engine.figures()['items']} items and {engine.figures()['users']} users"
        for text in wrong:
            report.fault(store.where, text)

    def _is_repaired(self) -> bool:
        """Whether the folder is as `repair` leaves it: no log, and the lock that a lost folder has not."""
        return (self._folder / "lock").exists() and {each.name for each in self._folder.iterdir()} <= {"lock", STAMP}

    # --- rebuilding ---------------------------------------------------------------------------------------------

    async def _repair(self, aside: Path) -> list[str]:
        if text := misplaced(self._folder, name_of(self._number)):
            raise OSError(text)
        report = await self._check()
        if not report.faults:
            return []
        done: list[str] = []
        if self._file is not None and sqlite_faults(self._file):
            done.append(sqlite_saved(self._file, aside))
        async with self._database() as store:
            kept = await store.load()
            engine, base = LikesEngine(folder=None), 0
            for offset, data in await _snapshots(store, kept):
                if (made := _restored(data)) is not None:
                    engine, base = made, offset
                    break
            log = str(self._folder)
            start, end, acked, faults = _engines.check_log(log)
            lost = [f"records {first} to {behind - 1} of the log" for *_, first, behind in faults if behind > first]
            if start <= base:
                engine.apply_log(log, False)
            whole = engine.offset()
            if whole < max(end, kept.proven, acked or 0):
                wrong = await _take_rows(engine, store)
                done += [f"{store.where}: {text}; it was left out" for text in wrong]
                engine.apply_log(log, True, kept.offset)
                engine.skip_to(kept.offset)
            begin = max(engine.offset(), end, kept.proven, acked or 0)
            engine.skip_to(begin)
            await store.claim(kept.epoch + 1)
            engine.begin_snapshot()
            parts: list[bytes] = []
            while part := engine.snapshot_part(PART_BYTES):
                parts.append(part)
            await store.keep_snapshot(begin, parts, 0)
        moved = [put_aside(each, aside) for each in sorted(self._folder.iterdir()) if each.name not in {"lock", STAMP}]
        figures = engine.figures()
        done.append(
            f"{self._folder}: moved {len(moved)} files to {aside}; a new log starts at {begin}, behind a snapshot of "
            f"{figures['items']} items and {figures['likes']} likes"
        )
        if whole < begin:
            done.append(
                f"everything up to offset {whole} is intact; after that, likers and counts are those of the database up to "
                f"offset {kept.offset}, and of intact records after it"
            )
        done += [f"lost, unless the database has them: {each}" for each in lost]
        return done

    @contextlib.asynccontextmanager
    async def _database(self) -> "AsyncIterator[SqlStore]":
        from muster_server.plane.database.url import location
        from muster_server.systems.likes.database.store import SqlStore  # importing SQLAlchemy takes a second

        where = location(self._url)
        if self._password is not None:
            where = where.identified(self._password)
        store = SqlStore(where, self._settings.instance, self._number)
        try:
            yield store
        finally:
            await store.close()


async def _snapshots(store: "SqlStore", kept: StoredState) -> list[tuple[int, bytes]]:
    """Snapshots, the newest first; one with missing parts is empty."""
    found = [(kept.snapshot_offset, kept.snapshot or b"")] if kept.snapshot_offset else []
    if former := await store.former(kept.snapshot_offset):
        found.append(former)
    return found


def _restored(data: bytes) -> LikesEngine | None:
    try:
        return LikesEngine(folder=None, snapshot=data)
    except ValueError:
        return None


async def _take_rows(engine: LikesEngine, store: "SqlStore") -> list[str]:
    """Pass all users and newer rows to the engine; returns the faults of those that it refuses."""
    wrong: list[str] = []
    try:
        async for known in _known(store):
            engine.take_users(known)
    except ValueError as error:
        wrong.append(f"users: {error}")
    after: bytes | None = None
    while rows := await store.rows(after, PAGE):
        after = rows[-1][0]
        for key, modification, likes in rows:
            try:
                engine.take_row(key, modification, likes)
            except ValueError as error:
                wrong.append(f"item {key.decode(errors='backslashreplace')}: {error}")
    return wrong


async def _known(store: "SqlStore") -> AsyncIterator[list[KnownUser]]:
    """All dense ids in order, with their users."""
    last, last_gone = -1, -1
    users: list[KnownUser] = []
    gone: list[KnownUser] = []
    while True:
        if not users:
            users = list(await store.users(last, USERS))
            last = users[-1][0] if users else last
        if not gone:
            gone = [(dense, None) for dense in await store.erased(last_gone, USERS)]
            last_gone = gone[-1][0] if gone else last_gone
        if not users and not gone:
            return
        # Above the end of one page, the next page of the other may still have smaller ids.
        end = min(page[-1][0] for page in (users, gone) if page)
        yield sorted((each for each in (*users, *gone) if each[0] <= end), key=lambda each: each[0])
        users, gone = ([each for each in page if each[0] > end] for page in (users, gone))

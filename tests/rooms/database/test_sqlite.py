"""Problems of files: a missing folder, read-only, another kind of file, in use."""

import asyncio
import gc
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from muster_server.plane.database.connections import Connections
from muster_server.plane.database.errors import DatabaseError, Refused, Unavailable
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import location
from muster_server.systems.rooms.database.records import Membership, Partition
from muster_server.systems.rooms.database.schema import STEPS, VERSION_TABLE
from muster_server.systems.rooms.database.store import Store
from tests.databases import File

ONE = Membership(1, 1, 5, 6, 7, True)
NOBODY = 65_534


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder of ours, with nobody's rights to files, as root has all."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        if os.getuid() == 0:
            os.seteuid(0)
        Path(folder).chmod(0o755)


async def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "muster.db"
    async with Store(location(f"sqlite:///{file}"), "muster") as store:
        with pytest.raises(Unavailable, match="unable to open database file") as away:
            await store.open()
        assert str(file) in str(away.value)
        assert "\n" not in str(away.value)
        file.parent.mkdir()
        await store.write([ONE])


async def test_a_file_that_may_not_be_written_is_one_line(nobody: Path) -> None:
    file = nobody / "muster.db"
    async with Store(location(f"sqlite:///{file}"), "muster") as store:
        await store.write([ONE])
    _take_rights(file)
    async with Store(location(f"sqlite:///{file}"), "muster") as store:
        with pytest.raises(DatabaseError, match=r"readonly|unable to open") as refused:
            await store.write([ONE])
    assert "\n" not in str(refused.value)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Sir or Madam, " * 100)
    async with Store(location(f"sqlite:///{file}"), "muster") as store:
        with pytest.raises(Refused, match="file is not a database"):
            await store.open()
    assert file.read_text().startswith("Dear Sir")


async def test_who_finds_the_file_in_use_waits_for_it(tmp_path: Path) -> None:
    file = File(tmp_path)
    async with Store(location(file.url), "muster") as store:
        await store.open()
        other = sqlite3.connect(file.file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(store.write([ONE]))
        assert [page async for page in store.load(Partition())] == [], "reading does not wait"
        assert not writing.done()
        other.execute("COMMIT")
        other.close()
        await writing
        assert [page async for page in store.load(Partition())] == [[ONE]]


def _take_rights(file: Path) -> None:
    file.chmod(0o444)
    file.parent.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(NOBODY)


async def test_a_call_that_is_cancelled_midway_leaves_no_lock_behind(tmp_path: Path) -> None:
    """Found: SQLite kept a connection that the driver had closed, and so the file's lock, until Python's next collection."""
    file, loop = File(tmp_path), asyncio.get_running_loop()
    begun, goes_on = asyncio.Event(), threading.Event()

    def waits() -> int:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        return 1

    async def work(connections: Connections) -> None:
        async with connections.transaction(writes=True) as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            await raw.create_function("waits", 0, waits)
            await connection.execute(text("SELECT waits() UNION ALL SELECT 2"))

    gc.disable()
    try:
        async with Connections(location(file.url), Schema(STEPS, VERSION_TABLE)) as connections:
            await connections.open()
            working = asyncio.create_task(work(connections))
            await begun.wait()
            working.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.wait([working])
            assert working.cancelled()
            other = sqlite3.connect(file.file, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            other.close()
    finally:
        gc.enable()

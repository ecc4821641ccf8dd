"""`muster check` and `muster repair` of likes: any file damaged, what is whole kept, what is lost told."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from muster_server.plane.database.url import location
from muster_server.plane.stores import InUse
from muster_server.systems.likes.database.store import SqlStore
from muster_server.systems.likes.partition import Partition, opened
from muster_server.systems.likes.stores import LikesStore
from tests.likes.serve import settings
from tests.likes.test_behind import Node, written

LOG = structlog.get_logger()
USERS = 60


async def started(folder: Path, **options: int) -> tuple[Node, Partition, SqlStore]:
    told = settings(folder, **options)
    store = SqlStore(location(told.database), "muster", 0, call_s=3.0)
    partition = await opened(told, 0, [], store, LOG)
    return Node(partition), partition, store


async def ended(partition: Partition, store: SqlStore) -> None:
    partition.close()
    await store.close()


async def made(folder: Path) -> None:
    """Some likes in a snapshot, some in rows alone, some in the log alone."""
    for turn in range(3):
        node, partition, store = await started(folder, snapshot_records=1 if turn == 0 else 1 << 30)
        for user in range(USERS // 3):
            await node.like(f"share:{user % 4}", 1_000 + turn * 100 + user)
        if turn < 2:
            assert await written(node)
        await ended(partition, store)


async def held(folder: Path) -> int:
    """All likes of a node that starts."""
    node, partition, store = await started(folder)
    likes: int = node.engine.figures()["likes"]
    assert likes == sum(node.engine.count(b"share:%d" % item) for item in range(4))
    await node.like("share:0", 5)
    assert await written(node)
    await ended(partition, store)
    return likes


def flipped(at: float) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        raw = bytearray(file.read_bytes())
        used = len(raw.rstrip(b"\0"))
        raw[int(used * at)] ^= 4
        file.write_bytes(raw)

    return damage


def flipped_head(file: Path) -> None:
    """In the part of a head that its checksum covers: the rest of a segment's first page means nothing."""
    raw = bytearray(file.read_bytes())
    raw[min(20, len(raw) - 1)] ^= 4
    file.write_bytes(raw)


def cut(file: Path) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw.rstrip(b"\0")) // 2])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def lost(file: Path) -> None:
    file.unlink()


DAMAGES = {"flipped early": flipped_head, "flipped": flipped(0.8), "cut": cut, "emptied": emptied, "lost": lost}


@pytest.mark.timeout(300)
async def test_any_damaged_file_of_the_log_is_named_and_every_row_comes_back(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    await made(whole)
    log = whole / "0"
    assert not (await asyncio.to_thread(LikesStore(settings(whole), 0).check)).faults
    names = [
        each.name for each in sorted(log.iterdir()) if each.suffix == ".segment" or each.name in {"owner", "acked"}
    ]
    assert len(names) == 5
    last = max(name for name in names if name.endswith(".segment"))
    for name in [*names, ""]:
        for what, damage in DAMAGES.items():
            folder = tmp_path / f"{name}-{what}"
            shutil.copytree(whole, folder)
            if name:
                damage(folder / "0" / name)
            else:
                shutil.rmtree(folder / "0")
            store = LikesStore(settings(folder), 0)
            report = await asyncio.to_thread(store.check)
            if not report.faults:
                assert name in {"owner", "acked"} or (name == names[0] and what == "lost"), (name, what)
                assert await held(folder) == USERS, (name, what)
                continue
            assert report.faults[0].file.startswith(str(folder)), (name, what)
            done = await asyncio.to_thread(store.repair, folder / "aside")
            assert done, (name, what)
            assert not (again := await asyncio.to_thread(store.check)).faults, (name, what, again.faults)
            likes = await held(folder)
            assert likes >= USERS * 2 // 3, (name, what, likes, done)
            if name not in {last, ""}:
                assert likes == USERS, (name, what, likes, done)
            assert not (await asyncio.to_thread(store.check)).faults


async def test_a_damaged_log_is_refused_with_its_folder(tmp_path: Path) -> None:
    """The reason named a segment, and no folder."""
    await made(tmp_path)
    cut(max((tmp_path / "0").glob("*.segment")))
    told = settings(tmp_path)
    store = SqlStore(location(told.database), "muster", 0, call_s=3.0)
    said = rf"^{tmp_path}/0: records from offset \d+ to \d+ were acknowledged and are missing"
    with pytest.raises(OSError, match=said):
        await opened(told, 0, [], store, LOG)
    await store.close()


async def test_swapped_folders_of_two_partitions_are_named_and_neither_opened_nor_rebuilt(tmp_path: Path) -> None:
    both = settings(tmp_path, partitions=2)

    def swapped() -> None:
        beside = tmp_path / "beside"
        (tmp_path / "0").rename(beside)
        (tmp_path / "1").rename(tmp_path / "0")
        beside.rename(tmp_path / "1")

    for number in range(2):
        store = SqlStore(location(both.database), "muster", number, call_s=3.0)
        partition = await opened(both, number, [], store, LOG)
        await Node(partition).like(f"share:{number}", 7)
        await ended(partition, store)
    swapped()
    for number in range(2):
        said = f"has the log likes {1 - number}, not likes {number}: move the folders of logs back to their places"
        checked = LikesStore(both, number)
        report = await asyncio.to_thread(checked.check)
        assert any(fault.text.endswith(said) for fault in report.faults), report.faults
        with pytest.raises(OSError, match=said):
            await asyncio.to_thread(checked.repair, tmp_path / "aside")
        store = SqlStore(location(both.database), "muster", number, call_s=3.0)
        with pytest.raises(OSError, match=said):
            await opened(both, number, [], store, LOG)
        await store.close()
    swapped()
    for number in range(2):
        store = SqlStore(location(both.database), "muster", number, call_s=3.0)
        partition = await opened(both, number, [], store, LOG)
        assert partition.engine.count(f"share:{number}".encode()) == 1
        await ended(partition, store)


async def test_damaged_snapshots_and_rows_are_named_and_left_out(tmp_path: Path) -> None:
    await made(tmp_path)
    with sqlite3.connect(tmp_path / "likes.db") as database:
        database.execute("UPDATE muster_likes_snapshots SET data = x'00'")
        database.execute("UPDATE muster_likes SET likers = x'0102' WHERE item = x'73686172653a33'")
    store = LikesStore(settings(tmp_path), 0)
    texts = [fault.text for fault in (await asyncio.to_thread(store.check)).faults]
    assert any("snapshot at offset" in text for text in texts)
    assert any("item share:3" in text for text in texts)
    assert await asyncio.to_thread(store.repair, tmp_path / "aside")
    again = (await asyncio.to_thread(store.check)).faults
    assert [fault.text for fault in again] == ["item share:3: bitmap of likers is damaged"], "its next change writes it"
    assert await held(tmp_path) == USERS, "the log has all records"


async def test_damaged_file_of_sqlite_keeps_the_rows_that_can_be_read(tmp_path: Path) -> None:
    await made(tmp_path)
    file = tmp_path / "likes.db"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 4_096] = b"\xa5" * 4_096
    file.write_bytes(raw)
    store = LikesStore(settings(tmp_path), 0)
    assert (await asyncio.to_thread(store.check)).faults
    assert await asyncio.to_thread(store.repair, tmp_path / "aside")
    assert (tmp_path / "aside" / "likes.db").exists()
    assert await held(tmp_path) == USERS


async def test_store_of_a_running_node_is_read_and_not_repaired(tmp_path: Path) -> None:
    node, partition, store = await started(tmp_path)
    await node.like("share:1", 1)
    files = LikesStore(settings(tmp_path), 0)
    assert not (await asyncio.to_thread(files.check)).faults
    with pytest.raises(InUse, match="open in another process"):
        await asyncio.to_thread(files.repair, tmp_path / "aside")
    await ended(partition, store)


async def test_leaderboards_come_back_from_the_snapshot_and_every_whole_record(tmp_path: Path) -> None:
    """No row has them: a record that the rows make needless for likes is still the only place of its scores."""
    node, partition, store = await started(tmp_path, snapshot_records=1)
    await node("ZADD", "game:7", 1, "alice")
    assert await written(node)
    await ended(partition, store)
    node, partition, store = await started(tmp_path, snapshot_records=1 << 30)
    await node("ZADD", "game:7", 2, "bo")
    await node.like("share:damaged", 7)
    await node("ZADD", "game:7", 3, "cy")
    await node("ZADD", "game:8", 3, "cy")
    await node("DEL", "game:8")
    await node.like("share:1", 7)
    assert await written(node)
    await node("ZADD", "game:7", 4, "dee")
    await ended(partition, store)
    (segment,) = [file for file in (tmp_path / "0").glob("*.segment") if b"share:damaged" in file.read_bytes()]
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"share:damaged")] ^= 4
    segment.write_bytes(raw)
    files = LikesStore(settings(tmp_path), 0)
    assert (await asyncio.to_thread(files.check)).faults
    assert await asyncio.to_thread(files.repair, tmp_path / "aside")
    node, partition, store = await started(tmp_path)
    assert node.engine.page(b"game:7", 0, 9, 0) == [(b"dee", 4.0), (b"cy", 3.0), (b"bo", 2.0), (b"alice", 1.0)]
    assert node.engine.ranking_len(b"game:8") == 0
    assert (node.engine.count(b"share:damaged"), node.engine.count(b"share:1")) == (1, 1)
    await ended(partition, store)

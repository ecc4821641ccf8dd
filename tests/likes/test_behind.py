"""The write-behind over each database: marks, newer rows, snapshots, owners, and a database that is away."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog
from pyroaring import BitMap

from muster_server._engines import LikesEngine
from muster_server.plane.database.errors import DatabaseError
from muster_server.plane.database.url import location
from muster_server.plane.ownership.errors import Fenced
from muster_server.systems.likes.behind import Behind
from muster_server.systems.likes.database.store import SqlStore
from muster_server.systems.likes.options import LikesOptions
from muster_server.systems.likes.partition import Partition, opened
from muster_server.systems.likes.records import StoredState
from tests.databases import Database, Served, plain
from tests.likes.serve import settings
from tests.waiting import PATIENT_S

SEGMENT_MIB = 8
LOG = structlog.get_logger()
SNOWFLAKE = 1_790_123_456_789_012_345


class Node:
    """A partition whose only client is the test."""

    def __init__(self, partition: Partition) -> None:
        self.engine, self.behind = partition.engine, partition.behind
        self.connection = self.engine.connect()

    async def __call__(self, *words: object) -> bytes:
        """One command, and its answer once it is durable."""
        parts = [str(word).encode() if not isinstance(word, bytes) else word for word in words]
        command = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.engine.feed(self.connection, command, 1_790_000_000_000)
        while True:
            self.engine.durable(1_790_000_000_000)
            said, _, _ = self.engine.take(self.connection, 1_790_000_000_000)
            if said:
                return said
            await asyncio.sleep(0)

    async def like(self, item: str, user: int, likes: int = 1) -> bool:
        return await self("SETBIT", item, user, likes) == b":1\r\n"


Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a node over a database; the former one ends first."""
    running: list[Partition] = []
    stores: list[SqlStore] = []

    async def begin(database: Database, **options: Any) -> Node:
        while running:
            running.pop().close()
        store = SqlStore(location(database.url), "muster", 0, call_s=3.0)
        stores.append(store)
        partition = await opened(settings(tmp_path / "likes", **options), 0, [], store, LOG)
        running.append(partition)
        return Node(partition)

    yield begin
    for partition in running:
        partition.close()
    for store in stores:
        await store.close()


async def rows(database: Database) -> dict[str, tuple[int, int]]:
    """Count and modification of each item."""
    found = await plain(database.url, "SELECT item, likes, modification FROM muster_likes")
    return {bytes(item).decode(): (int(likes), int(modification)) for item, likes, modification in found}  # type: ignore[call-overload]


async def written(node: Node) -> bool:
    """Run passes until the database answers one in time. Returns False if a pass failed otherwise."""
    async with asyncio.timeout(PATIENT_S):
        while not await node.behind.tried():
            if "no answer in time" not in node.behind.error:
                return False
    return True


async def test_pass_writes_changed_items_once_with_readable_likers(start: Start, database: Database) -> None:
    node = await start(database)
    for user in (7, SNOWFLAKE, (1 << 64) - 1):
        await node.like("share:1", user)
    await node.like("share:2", 7)
    assert await written(node)
    first = await rows(database)
    assert {item: likes for item, (likes, _) in first.items()} == {"share:1": 3, "share:2": 1}
    assert node.engine.dirty() == 0
    ((raw,),) = await plain(database.url, "SELECT likers FROM muster_likes WHERE likes = 3")
    dense = BitMap.deserialize(bytes(raw))  # type: ignore[call-overload]
    pairs = await plain(database.url, "SELECT dense_id, user_id FROM muster_likes_users")
    users = {int(str(dense)): int(str(user)) for dense, user in pairs}
    assert {users[one] % (1 << 64) for one in dense} == {7, SNOWFLAKE, (1 << 64) - 1}
    before = node.behind.rows
    assert await written(node)
    assert node.behind.rows == before, "nothing changed"
    await node.like("share:1", 7, 0)
    await node("DEL", "share:2")
    assert await written(node)
    after = await rows(database)
    assert after["share:1"][0] == 2
    assert after["share:1"][1] > first["share:1"][1]
    assert after["share:2"][0] == 0


async def test_row_is_never_written_over_by_an_older_one(start: Start, database: Database) -> None:
    node = await start(database)
    store = SqlStore(location(database.url), "muster", 0)
    await node.like("share:1", 1)
    await node.like("share:1", 2)
    assert await written(node)
    before = await rows(database)
    await store.claim(node.engine.epoch())
    await store.write([(b"share:1", before["share:1"][1] - 1, (1, b""))], None)
    assert await rows(database) == before
    await store.write([(b"share:1", before["share:1"][1] + 1, (9, b"")), (b"share:2", 5, None)], None)
    assert (await rows(database))["share:1"] == (9, before["share:1"][1] + 1)
    await store.close()


async def test_late_owner_changes_nothing(start: Start, database: Database) -> None:
    node = await start(database)
    await node.like("share:1", 1)
    assert await written(node)
    before = await rows(database)
    late = SqlStore(location(database.url), "muster", 0)
    with pytest.raises(Fenced, match="later owner"):
        await late.claim(node.engine.epoch() - 1)
    late._epoch = node.engine.epoch() - 1  # it had claimed before
    for work in (late.write([(b"share:1", 1 << 40, (0, b""))], 1 << 40), late.keep_snapshot(1 << 40, [b"x"], 0)):
        with pytest.raises(Fenced):
            await work
    assert await rows(database) == before
    await late.close()


async def test_node_starts_from_the_snapshot_and_the_log_behind_it(start: Start, database: Database) -> None:
    node = await start(database, snapshot_records=200)
    random = Random(35)
    model: dict[str, set[int]] = {}
    for turn in range(900):
        item, user, likes = f"share:{random.randrange(9)}", random.randrange(60), random.randrange(3) > 0
        was = await node.like(item, user, int(likes))
        liked = model.setdefault(item, set())
        assert was == (user in liked)
        (liked.add if likes else liked.discard)(user)
        if turn in {250, 500}:
            assert await written(node)
    assert node.behind.snapshots == 2
    newest, items = node.engine.newest(b"share:3", 32), node.engine.items(5, 0, 99)
    again = await start(database)
    assert {item: again.engine.count(item.encode()) for item in model} == {item: len(model[item]) for item in model}
    assert again.engine.newest(b"share:3", 32) == newest
    assert again.engine.items(5, 0, 99) == items
    assert again.engine.dirty() > 0, "what the last pass lacks"
    assert await written(again)
    assert {item: likes for item, (likes, _) in (await rows(database)).items()} == {
        item: len(liked) for item, liked in model.items()
    }
    third = await start(database)
    assert third.engine.dirty() == 0, "the database has all rows"


async def test_log_is_trimmed_only_below_the_snapshot(start: Start, database: Database, tmp_path: Path) -> None:
    node = await start(database, snapshot_records=1)
    await node.like("share:1", 1)
    log = tmp_path / "likes" / "0"
    assert await written(node)
    store = SqlStore(location(database.url), "muster", 0)
    kept = await store.load()
    await store.close()
    assert kept.snapshot_offset == node.engine.offset()
    assert kept.snapshot is not None
    for _ in range(2):  # each opening begins a segment, so the former ones can go
        node = await start(database, snapshot_records=1)
        await node.like("share:1", 2)
        await node.like("share:1", 2, 0)
        assert await written(node)
    await node.like("share:1", 3)
    first = min(log.glob("*.segment"))
    again = await start(database)
    assert again.engine.count(b"share:1") == 2
    assert not first.name.endswith(f"{0:016x}.segment"), "the first one was trimmed"


async def test_lost_log_is_begun_anew_behind_a_snapshot_that_has_all_rows(
    start: Start, database: Database, tmp_path: Path
) -> None:
    node = await start(database, snapshot_records=1)
    for user in range(100):
        await node.like("share:1", 1_000 + user)
    assert await written(node)
    offset, epoch = node.engine.offset(), node.engine.epoch()
    node.engine.close()
    shutil.rmtree(tmp_path / "likes")
    again = await start(database)
    assert (again.engine.offset(), again.engine.count(b"share:1")) == (offset, 100)
    assert again.engine.skipped() == offset
    assert again.engine.epoch() > epoch, "rows of the former owner are written over"
    await again.like("share:2", 5)
    assert await written(again)
    assert {item: likes for item, (likes, _) in (await rows(database)).items()} == {"share:1": 100, "share:2": 1}
    pairs = await plain(database.url, "SELECT dense_id, user_id FROM muster_likes_users")
    assert len({dense for dense, _ in pairs}) == len({user for _, user in pairs}) == 101, "no dense id is given twice"
    third = await start(database)
    assert third.engine.skipped() == 0
    assert (third.engine.count(b"share:1"), third.engine.count(b"share:2")) == (100, 1)


@pytest.mark.parametrize("keeps", [0, 1])
async def test_node_never_starts_behind_what_the_database_proves(
    start: Start, database: Database, tmp_path: Path, keeps: int
) -> None:
    """`keeps`: passes of which the log is kept: it is lost, or an older copy."""
    node = await start(database)
    log, older = tmp_path / "likes" / "0", tmp_path / "older"
    for user in range(10):
        await node.like("share:1", user)
    assert await written(node)
    if keeps:
        node.engine.close()
        shutil.copytree(log, older)
        node = await start(database)
    end = node.engine.offset() if keeps else 0
    for user in range(10):
        await node.like("share:1", 100 + user)
    assert await written(node)
    proven, before = node.engine.offset(), await rows(database)
    node.engine.close()
    shutil.move(log, tmp_path / "kept")
    if keeps:
        shutil.copytree(older, log)
    missing = (
        f"ends at offset {end}, but .* has likes up to offset {proven}: {proven - end} records are missing; to mend"
    )
    for _ in range(2):
        with pytest.raises(OSError, match=missing):
            await start(database)
    assert await rows(database) == before
    shutil.rmtree(log)
    shutil.move(tmp_path / "kept", log)
    assert (await start(database)).engine.count(b"share:1") == 20


async def test_damaged_snapshot_falls_back_to_the_one_before(start: Start, database: Database, tmp_path: Path) -> None:
    node = await start(database, snapshot_records=1)
    for turn in range(3):
        for user in range(5):
            await node.like("share:1", 10 * turn + user)
        assert await written(node)
        node = await start(database, snapshot_records=1)  # each opening begins a segment, so that former ones can go
    await node.like("share:1", 99)
    kept = await plain(database.url, "SELECT snapshot_offset, part, data FROM muster_likes_snapshots ORDER BY 1")
    assert len(kept) == 2, "two snapshots stay"
    offset, _, data = kept[1]
    raw = bytearray(data)  # type: ignore[call-overload]
    raw[len(raw) // 2] ^= 1
    await plain(
        database.url,
        f"UPDATE muster_likes_snapshots SET data = {literal(database, raw)} WHERE snapshot_offset = {offset}",
    )
    again = await start(database, snapshot_records=1)
    assert again.engine.count(b"share:1") == 16
    await again.like("share:1", 100)
    await plain(database.url, f"DELETE FROM muster_likes_snapshots WHERE snapshot_offset = {offset}")
    third = await start(database, snapshot_records=1)
    assert third.engine.count(b"share:1") == 17, "its parts are missing"
    assert await written(third)
    assert (await start(database)).engine.count(b"share:1") == 17


def literal(database: Database, raw: bytes) -> str:
    """Bytes in the database's own SQL."""
    return f"'\\x{raw.hex()}'" if database.url.startswith("postgresql") else f"x'{raw.hex()}'"


async def test_node_that_began_without_its_database_ends_once_that_proves_more(start: Start, tmp_path: Path) -> None:
    engine = LikesEngine(folder=str(tmp_path), segment_bytes=SEGMENT_MIB << 20)
    store = Fails()
    store.kept = StoredState(offset=50)
    node = Node(Partition(engine, Behind(engine, store, LikesOptions(), LOG, None)))
    await node.like("share:1", 1)
    with pytest.raises(OSError, match="the log ends at offset 2, but nowhere has likes up to offset 50"):
        await node.behind.tried()
    assert not await node.behind.tried()
    assert not store.rows
    engine.close()


async def test_dead_database_costs_nothing_but_its_rows(start: Start, served: Served) -> None:
    node = await start(served)
    await node.like("share:1", 1)
    assert await written(node)
    served.kill()
    for turn in range(10):
        assert await node.like("share:1", 100 + turn) is False
        assert not await node.behind.tried()
        said = node.behind.status()
        assert (said["connected"], said["items_behind"]) == (False, 1)
        assert said["error"]
        assert "items not written" in node.behind.note()
    served.start()
    async with asyncio.timeout(PATIENT_S):
        while not await node.behind.tried():  # noqa: ASYNC110 - the server takes its time
            await asyncio.sleep(0.05)
    assert (await rows(served))["share:1"][0] == 11
    assert node.behind.status()["error"] == ""


async def test_start_without_the_database_waits_only_for_what_the_log_lacks(
    start: Start, served: Served, tmp_path: Path
) -> None:
    node = await start(served)
    await node.like("share:1", 1)
    served.kill()
    again = await start(served)
    assert again.engine.count(b"share:1") == 1
    assert not await again.behind.tried()
    served.start()
    async with asyncio.timeout(PATIENT_S):
        while not await again.behind.tried():  # noqa: ASYNC110 - the server takes its time
            await asyncio.sleep(0.05)
    assert (await rows(served))["share:1"][0] == 1


class Fails:
    """A store whose answers fail on request, before or after the work."""

    where = "nowhere"

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[int, int]] = {}
        self.between: Callable[[], Any] | None = None
        self.fails = False
        self.kept = StoredState()

    async def load(self) -> StoredState:
        return self.kept

    async def claim(self, epoch: int) -> None:
        """Anyone may write."""

    async def write_users(self, new: Any, gone: Any, total: int) -> None:
        """Not looked at."""

    async def erase_users(self, dense: Any) -> None:
        """Not looked at."""

    async def traces(self, dense: Any, since: int) -> tuple[int, int]:
        return 0, 0

    async def scrub(self) -> None:
        """Nothing is deleted."""

    async def write(self, rows: Any, offset: int | None) -> None:
        for key, modification, likes in rows:
            self.rows[key] = (modification, likes[0])
        if self.between is not None:
            between, self.between = self.between, None
            await between()
        if self.fails:
            raise DatabaseError("no answer in time")

    async def keep_snapshot(self, offset: int, parts: Sequence[bytes], former: int) -> None:
        """Not kept."""

    async def former(self, offset: int) -> None:
        """There is none."""

    async def close(self) -> None:
        """Nothing is open."""


async def test_item_that_changes_while_its_row_is_written_keeps_its_mark(tmp_path: Path) -> None:
    engine = LikesEngine(folder=str(tmp_path), segment_bytes=SEGMENT_MIB << 20)
    store = Fails()
    node = Node(Partition(engine, Behind(engine, store, LikesOptions(), LOG, StoredState())))
    await node.like("share:1", 1)
    store.between = lambda: node.like("share:1", 2)
    assert await written(node)
    assert (engine.dirty(), store.rows[b"share:1"][1]) == (1, 1)
    store.fails = True
    assert not await node.behind.tried()
    assert engine.dirty() == 1, "it may or may not be there"
    store.fails = False
    assert await written(node)
    assert (engine.dirty(), store.rows[b"share:1"][1]) == (0, 2)
    engine.close()

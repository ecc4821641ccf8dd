"""The store of the archive in each database, beside a list; what is written once, and what is dropped."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import muster
from muster_server.plane.database.errors import BadValue
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.rooms.archive.blocks import packed
from muster_server.systems.rooms.archive.database import schema
from muster_server.systems.rooms.archive.keyed import keyed
from muster_server.systems.rooms.archive.records import Limits, State, Write
from muster_server.systems.rooms.archive.shapes import (
    TRIMMED,
    UNWRITTEN,
    Gap,
    Item,
    Message,
    Page,
    Place,
    Read,
    ReadLatest,
)
from tests.reference.archive import Archive

if TYPE_CHECKING:
    from muster_server.systems.rooms.archive.database.store import SqlStore
    from tests.databases import Database

ROOM = "default:r"
FAR = Limits(1 << 50, 1 << 50, 1 << 50)
ONE, TWO = muster.Stream(1, 1, 1), muster.Stream(2, 1, 1)


def opened(database: "Database", name: str = "one", keys_max: int = 100) -> "SqlStore":
    from muster_server.plane.database.url import location
    from muster_server.systems.rooms.archive.database.store import SqlStore

    return SqlStore(location(database.url), name, keys_max)


@pytest.fixture
async def store(database: "Database") -> "AsyncIterator[SqlStore]":
    made = opened(database)
    yield made
    await made.close()


def messages(first: int, last: int, stream: muster.Stream = ONE, data: bytes = b"d") -> list[muster.Item]:
    return [muster.Message(ROOM, stream, offset, 7, data) for offset in range(first, last + 1)]


class Keeper:
    """Writes to a store and to the list, as the node does."""

    def __init__(self, store: "SqlStore", model: Archive | None = None) -> None:
        self.store, self.model = store, model or Archive()
        self.states: dict[str, State] = {}

    async def write(self, items: list[muster.Item], at_ms: int, room: str = ROOM, *, begun: bool = True) -> None:
        state = self.states.get(room, State())
        blocks = packed(items, state.last_seq + 1, at_ms)
        positions = bytes([len(self.states)]) + b"p" * 20
        latest = list(keyed(items, state.last_seq + 1, at_ms).values())
        assert await self.store.write([Write(room, state.last_seq, blocks, positions, begun, latest)]) == set()
        self.states[room] = State(blocks[-1].end - 1, at_ms, positions)
        assert await self.store.state(room) == self.states[room]
        self.model.write(room, items, at_ms)


def places(page: Page) -> list[tuple[int, int]]:
    """Node and offset of each message."""
    return [(item.place.stream[0], item.place.offset) for item in page.items if isinstance(item, Message)]


async def test_pages_back_and_forward_by_place_and_time(store: "SqlStore") -> None:
    keeper = Keeper(store)
    await keeper.write(messages(1, 5), 1_000)
    await keeper.write([muster.Gap(ONE, 6, 8, "slow"), *messages(9, 10)], 2_000)
    await keeper.write(messages(1, 3, TWO), 3_000)
    page = await store.read(Read(ROOM, 4))
    assert places(page) == [(2, 3), (2, 2), (2, 1), (1, 10)]
    assert (page.over, page.begun, page.kept) == (False, True, True)
    page = await store.read(Read(ROOM, 9, at=Place((1, 1, 1), 10)))
    assert places(page) == [(1, 9), (1, 5), (1, 4), (1, 3), (1, 2), (1, 1)]
    assert page.items[1] == Gap((1, 1, 1), 6, 8, "slow", 2_000)
    assert page.over
    assert places(await store.read(Read(ROOM, 3, back=False))) == [(1, 1), (1, 2), (1, 3)]
    assert places(await store.read(Read(ROOM, 3, back=False, since_ms=2_000))) == [(1, 9), (1, 10), (2, 1)]
    assert places(await store.read(Read(ROOM, 2, since_ms=2_000))) == [(1, 5), (1, 4)]
    assert places(await store.read(Read(ROOM, 9, back=False, at=Place((1, 1, 1), 7)))) == [
        (1, 9),
        (1, 10),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert await store.read(Read("default:other", 3)) == Page()


async def test_a_place_beyond_the_archive_has_a_gap_or_none(store: "SqlStore") -> None:
    keeper = Keeper(store)
    await keeper.write(messages(1, 5), 1_000)
    page = await store.read(Read(ROOM, 1, at=Place((1, 1, 1), 6)))
    assert page.items == [Message(Place((1, 1, 1), 5), 7, 1_000, b"d")]
    page = await store.read(Read(ROOM, 1, at=Place((1, 1, 1), 9)))
    assert page.items[0] == Gap((1, 1, 1), 6, 8, UNWRITTEN)
    page = await store.read(Read(ROOM, 1, at=Place((3, 1, 1), 1)))  # a stream begins
    assert places(page) == [(1, 5)]
    page = await store.read(Read(ROOM, 5, back=False, at=Place((1, 1, 1), 9)))
    assert (page.items, page.over) == ([], True)


async def test_what_another_writer_wrote_is_not_written_over(store: "SqlStore") -> None:
    one = Write(ROOM, 0, packed(messages(1, 3), 1, 1), b"a", True)
    other = Write(ROOM, 0, packed(messages(1, 2), 1, 1), b"b", True)
    beside = Write("default:beside", 0, packed(messages(1, 2), 1, 1), b"b", True)
    assert await store.write([one]) == set()
    assert await store.write([other, beside]) == {ROOM}
    assert await store.write([one]) == set()  # whose answer was lost
    assert (await store.totals()).messages == 5
    assert len((await store.read(Read(ROOM, 9))).items) == 3


async def test_two_installations_share_a_database(database: "Database") -> None:
    one, two = opened(database), opened(database, "two")
    await Keeper(one).write(messages(1, 3), 1)
    assert (await two.totals()).messages == 0
    assert await two.read(Read(ROOM, 3)) == Page()
    await two.trim(1 << 60, Limits(1, 1, 1))
    assert (await one.totals()).messages == 3
    await one.close()
    await two.close()


async def test_the_oldest_messages_are_dropped_by_age_by_room_and_in_all(store: "SqlStore") -> None:
    keeper = Keeper(store)
    for at in range(10):
        await keeper.write(messages(at * 10 + 1, at * 10 + 10, data=b"x" * 100), at * 1_000)
    assert (await store.trim(10_000, FAR)).messages == 0
    assert (await store.read(Read(ROOM, 1))).begun
    assert (await store.trim(10_000, Limits(8_000, 1 << 50, 1 << 50))).messages == 20
    page = await store.read(Read(ROOM, 100, back=False))
    assert places(page)[0] == (1, 21)
    assert not page.begun
    page = await store.read(Read(ROOM, 1, back=False, at=Place((1, 1, 1), 5)))
    assert page.items[0] == Gap((1, 1, 1), 6, 20, TRIMMED)
    size = (await store.totals()).bytes
    assert (await store.trim(0, Limits(1 << 50, size - 1, 1 << 50))).messages == 10
    await keeper.write(messages(1, 3, TWO), 20_000, "default:small")
    totals = await store.totals()
    assert (await store.trim(0, Limits(1 << 50, 1 << 50, totals.bytes - 1))).messages == 10
    assert len((await store.read(Read("default:small", 9))).items) == 3
    left = await store.totals()
    while (await store.trim(0, Limits(1 << 50, 1 << 50, 0))).more:
        pass
    assert left.messages == 63
    assert (await store.totals()).messages == 0
    assert (await store.totals()).bytes == 0
    assert (await store.state(ROOM)) == keeper.states[ROOM]  # it goes on behind what it had
    await keeper.write(messages(101, 102), 30_000)


async def test_a_room_whose_number_is_that_of_another_is_refused(
    store: "SqlStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_server.systems.rooms.archive.database import reading
    from muster_server.systems.rooms.archive.database import store as file

    await Keeper(store).write(messages(1, 2), 1)
    known = schema.number_of(ROOM)
    for module in (file, reading):
        monkeypatch.setattr(module, "number_of", lambda name: known)
    with pytest.raises(BadValue, match="the same number"):
        await store.write([Write("default:twin", 0, packed(messages(1, 1), 1, 1), b"", True)])
    assert await store.read(Read("default:twin", 1)) == Page()


async def test_a_damaged_block_is_named(store: "SqlStore") -> None:
    from sqlalchemy import update

    await Keeper(store).write(messages(1, 2), 1)
    async with store._database.transaction(writes=True) as connection:
        await connection.execute(update(schema.blocks).values(data=b"x"))
    with pytest.raises(StoreError, match="damaged block 1"):
        await store.read(Read(ROOM, 1))


@pytest.mark.parametrize("seed", range(3))
async def test_pages_are_those_of_a_list(store: "SqlStore", seed: int) -> None:
    dice = random.Random(seed)
    keeper = Keeper(store)
    at_ms = 0
    ends = {ONE: 0, TWO: 0}
    for _ in range(40):
        items: list[muster.Item] = []
        for _ in range(dice.randint(1, 12)):
            stream = dice.choice([ONE, ONE, ONE, TWO])
            first = ends[stream] + 1
            if dice.random() < 0.1:
                ends[stream] += dice.randint(1, 4)
                items.append(muster.Gap(stream, first, ends[stream], "slow"))
            else:
                ends[stream] += 1
                items += messages(first, first, stream, bytes([dice.randrange(256)]))
        at_ms += dice.randint(0, 3)
        await keeper.write(items, at_ms)
    for _ in range(300):
        asked = Read(
            ROOM,
            dice.choice([1, 2, 7, 60, 1_000]),
            dice.random() < 0.5,
            Place((dice.choice([1, 2]), 1, 1), dice.randint(1, max(ends.values()))) if dice.random() < 0.6 else None,
            dice.randint(-1, at_ms + 2),
        )
        page = await store.read(asked)
        wanted, over = keeper.model.page(asked)
        found: list[Item] = page.items
        if found and isinstance(found[0], Gap) and found[0].reason in {UNWRITTEN, TRIMMED}:
            found = found[1:]
        assert (found, page.over) == (wanted, over), asked


async def test_pages_one_after_another_are_the_whole_room(store: "SqlStore") -> None:
    keeper = Keeper(store)
    for at in range(8):
        await keeper.write([*messages(at * 5 + 1, at * 5 + 3), muster.Gap(ONE, at * 5 + 4, at * 5 + 5, "slow")], at)
    for back in (True, False):
        for limit in (1, 2, 5):
            found: list[Item] = []
            place: Place | None = None
            while True:
                page = await store.read(Read(ROOM, limit, back, place))
                found += page.items
                if page.over:
                    break
                last = page.items[-1]
                if isinstance(last, Message):
                    place = last.place
                else:
                    place = Place(last.stream, last.first if back else last.last or 0)
            wanted = keeper.model.rooms[ROOM]
            assert found == (wanted[::-1] if back else wanted)


def test_the_schema_of_the_migration_is_that_of_the_tables(tmp_path: Path) -> None:
    """Columns and indexes, as SQLite has them."""
    import sqlalchemy as sa

    from muster_server.plane.database.dialects import Sqlite
    from muster_server.plane.database.migrate import Schema, upgrade

    made = sa.create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with made.connect() as connection:
        upgrade(connection, Sqlite(), "here", Schema(schema.STEPS, schema.VERSION_TABLE))
        there = sa.inspect(connection)
        for table in schema.metadata.sorted_tables:
            columns = {each["name"]: each["nullable"] for each in there.get_columns(table.name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            indexes = {each["name"]: each["column_names"] for each in there.get_indexes(table.name)}
            assert indexes == {index.name: [each.name for each in index.columns] for index in table.indexes}
    made.dispose()


def valued(offset: int, key: str, data: bytes) -> muster.Message:
    return muster.Message(ROOM, ONE, offset, 7, data, None, {"key": key, "kind": "price"})


async def values(store: "SqlStore", room: str = ROOM, limit: int = 100) -> list[tuple[str, bytes, int]]:
    """Key, data and offset of the latest messages, read in pages."""
    found: list[Message] = []
    page = await store.latest(ReadLatest(room, limit))
    found += page.messages
    while page.next is not None:
        page = await store.latest(ReadLatest(room, limit, page.next, page.upto))
        found += page.messages
    return [(each.headers["key"], each.data, each.place.offset) for each in found]


async def test_the_latest_message_of_each_key_is_kept(store: "SqlStore") -> None:
    keeper = Keeper(store)
    assert not (await store.latest(ReadLatest(ROOM, 1))).kept
    await keeper.write([valued(1, "a", b"1"), valued(2, "b", b"2"), *messages(3, 4), valued(5, "a", b"5")], 1_000)
    assert await values(store) == [("b", b"2", 2), ("a", b"5", 5)]
    await keeper.write([valued(6, "c", b"6"), valued(7, "b", b"")], 2_000)
    assert await values(store) == [("a", b"5", 5), ("c", b"6", 6)]
    page = await store.latest(ReadLatest(ROOM, 100))
    assert page.positions == keeper.states[ROOM].positions
    assert (page.whole, page.messages[0].at_ms, page.messages[0].headers["kind"]) == (True, 1_000, "price")
    assert await values(store, "default:other") == []


async def test_pages_of_keys_are_of_one_moment(store: "SqlStore") -> None:
    keeper = Keeper(store)
    await keeper.write([valued(at, f"k{at}", b"old") for at in range(1, 7)], 1_000)
    page = await store.latest(ReadLatest(ROOM, 2))
    await keeper.write([valued(7, "k5", b"new"), valued(8, "k9", b"new"), valued(9, "k1", b"new")], 2_000)
    found = list(page.messages)
    while page.next is not None:
        page = await store.latest(ReadLatest(ROOM, 2, page.next, page.upto))
        found += page.messages
    # What changed since comes with the live messages behind the first page's positions.
    assert [each.headers["key"] for each in found] == ["k1", "k2", "k3", "k4", "k6"]
    assert all(each.data == b"old" for each in found)


async def test_a_page_of_keys_is_bounded_by_its_bytes(store: "SqlStore", monkeypatch: pytest.MonkeyPatch) -> None:
    from muster_server.systems.rooms.archive.database import latest

    monkeypatch.setattr(latest, "PAGE_BYTES_MAX", 1_000)
    await Keeper(store).write([valued(at, f"k{at}", b"x" * 600) for at in range(1, 4)], 1)
    page = await store.latest(ReadLatest(ROOM, 100))
    assert (len(page.messages), page.next) == (1, 1)
    assert len(await values(store)) == 3


async def test_keys_beyond_the_limit_are_left_out_and_counted(database: "Database") -> None:
    store = opened(database, keys_max=3)
    keeper = Keeper(store)
    await keeper.write([valued(at, f"k{at}", b"1") for at in range(1, 6)], 1_000)
    assert [key for key, _, _ in await values(store)] == ["k1", "k2", "k3"]
    assert store.left_out == 2
    assert not (await store.latest(ReadLatest(ROOM, 9))).whole
    await keeper.write(
        [valued(6, "k2", b"2"), valued(7, "k1", b""), valued(8, "k4", b"4"), valued(9, "k5", b"5")], 2_000
    )
    assert await values(store) == [("k3", b"1", 3), ("k2", b"2", 6), ("k4", b"4", 8)]
    assert store.left_out == 3
    await store.close()


async def test_keys_are_dropped_by_the_age_of_their_message_alone(store: "SqlStore") -> None:
    keeper = Keeper(store)
    await keeper.write([valued(1, "old", b"1")], 1_000)
    await keeper.write([valued(2, "new", b"2")], 9_000)
    await store.trim(10_000, Limits(1 << 50, 0, 0))
    assert len(await values(store)) == 2
    assert (await store.read(Read(ROOM, 9))).items == []
    await store.trim(10_000, Limits(5_000, 1 << 50, 1 << 50))
    assert await values(store) == [("new", b"2", 2)]


async def test_a_write_that_is_overtaken_changes_no_key(store: "SqlStore") -> None:
    await Keeper(store).write([valued(1, "a", b"1")], 1)
    late: list[muster.Item] = [valued(1, "a", b"late")]
    other = Write(ROOM, 0, packed(late, 1, 1), b"b", True, list(keyed(late, 1, 1).values()))
    assert await store.write([other]) == {ROOM}
    assert await values(store) == [("a", b"1", 1)]


@pytest.mark.parametrize("seed", range(3))
async def test_the_latest_of_each_key_are_those_of_a_dict(store: "SqlStore", seed: int) -> None:
    dice = random.Random(seed)
    keeper = Keeper(store)
    model: dict[str, tuple[bytes, int]] = {}
    offset = 0
    for step in range(40):
        items: list[muster.Item] = []
        for _ in range(dice.randint(1, 12)):
            offset += 1
            key, data = f"k{dice.randint(0, 30)}", b"" if dice.random() < 0.2 else b"%d" % offset
            if dice.random() < 0.2:
                items += messages(offset, offset)
                continue
            items.append(valued(offset, key, data))
            model.pop(key, None)
            if data:
                model[key] = data, offset
        await keeper.write(items, step)
        wanted = sorted(((key, *value) for key, value in model.items()), key=lambda each: each[2])
        assert await values(store, limit=dice.randint(1, 40)) == wanted


async def test_a_gap_behind_a_key_is_said_until_each_key_has_a_later_message(store: "SqlStore") -> None:
    keeper = Keeper(store)
    await keeper.write([muster.Gap(ONE, 1, 3, "expired"), valued(4, "a", b"4"), valued(5, "b", b"5")], 1)
    assert (await store.latest(ReadLatest(ROOM, 9))).whole
    await keeper.write([muster.Gap(ONE, 6, 8, "reader"), valued(9, "a", b"9")], 2)
    assert not (await store.latest(ReadLatest(ROOM, 9))).whole
    await store.trim(3, Limits(1 << 50, 0, 0))  # its gap is no longer in the history
    assert not (await store.latest(ReadLatest(ROOM, 9))).whole
    await keeper.write([valued(10, "b", b"10")], 3)
    assert (await store.latest(ReadLatest(ROOM, 9))).whole

"""The store of the archive in each database, beside a list; what is written once, and what is dropped."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import muster
from muster_server.systems.rooms.archive.blocks import packed
from muster_server.systems.rooms.archive.database import schema
from muster_server.systems.rooms.archive.records import Limits, State, StoreError, Write
from muster_server.systems.rooms.archive.shapes import (
    TRIMMED,
    UNWRITTEN,
    Gap,
    Item,
    Message,
    Page,
    Place,
    Read,
)
from tests.reference.archive import Archive

if TYPE_CHECKING:
    from muster_server.systems.rooms.archive.database.store import SqlStore
    from tests.databases import Database

ROOM = "default:r"
FAR = Limits(1 << 50, 1 << 50, 1 << 50)
ONE, TWO = muster.Stream(1, 1, 1), muster.Stream(2, 1, 1)


def opened(database: "Database", name: str = "one") -> "SqlStore":
    from muster_server.plane.database.url import location
    from muster_server.systems.rooms.archive.database.store import SqlStore

    return SqlStore(location(database.url), name)


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
        assert await self.store.write([Write(room, state.last_seq, blocks, positions, begun)]) == set()
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
    with pytest.raises(StoreError, match="the same number"):
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

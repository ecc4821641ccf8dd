"""Shards over real databases: sessions by id, merged answers beside one database, and changes of the map under load."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import muster
from muster.database.maps import ID_MAX, ShardMap
from muster.database.replicas import Replicas
from muster.database.shards import FENCES, Move, Moved, Shards
from tests.database.replication import Replicated, databases, driven
from tests.databases import Server, made
from tests.waiting import PATIENT_S, until

NAMES = ["a", "b", "c", "d"]
ITEMS = Table(
    "items",
    MetaData(),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("field", BigInteger, nullable=False),
    Column("likes", BigInteger),
)
LANES = 8
COUNTS = select(func.count(), func.sum(ITEMS.c.likes), func.count(ITEMS.c.likes)).select_from(ITEMS)
GROUPS = select(ITEMS.c.field, func.count(), func.sum(ITEMS.c.likes)).group_by(ITEMS.c.field)
TOP = select(ITEMS.c.id, ITEMS.c.likes).where(ITEMS.c.likes.is_not(None)).order_by(ITEMS.c.likes.desc(), ITEMS.c.id)
_MADE: dict[Server, list[str]] = {}
"""Databases of a server, which serve one test after another: to make one takes a second."""
MAPS = {
    "range": ShardMap("range", [(0, "a"), (300, "b"), (600, ["c", "d"])]),
    "hash": ShardMap("hash", [(0, "a"), (256, "b"), (512, "c"), (768, "d")]),
}


class Four:
    """Four databases, one of which has the map too, and another one beside them."""

    def __init__(self, engines: list[AsyncEngine]) -> None:
        self.one, *self.engines = engines
        self.replicas = {name: Replicas(engine) for name, engine in zip(NAMES, self.engines, strict=True)}

    def shards(self, **options: Any) -> Shards:
        """As a process has them."""
        return Shards(Replicas(self.one), self.replicas, **({"look_s": 600.0, "hold_s": PATIENT_S} | options))

    async def rows(self, name: str) -> list[int]:
        """All ids that a shard has."""
        async with self.replicas[name].reading() as session:
            return list((await session.execute(select(ITEMS.c.id).order_by(ITEMS.c.id))).scalars())

    async def alone(self, statement: Any) -> list[tuple[Any, ...]]:
        """The answer of the one database."""
        async with self.one.connect() as connection:
            return [tuple(row) for row in await connection.execute(statement)]


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
async def four(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Four]:
    if request.param == "sqlite":
        urls = [f"sqlite+aiosqlite:///{tmp_path / str(number)}.db?timeout=200" for number in range(5)]
    else:
        server: Server = request.getfixturevalue(request.param)
        if server not in _MADE:
            _MADE[server] = [driven((await made(server)).url) for _ in range(5)]
        urls = _MADE[server]
    engines = [create_async_engine(url) for url in urls]
    for engine in engines:
        async with engine.begin() as connection:
            await connection.run_sync(FENCES.metadata.drop_all)
            await connection.run_sync(ITEMS.metadata.drop_all)
            await connection.run_sync(ITEMS.metadata.create_all)
    yield Four(engines)
    for engine in engines:
        await engine.dispose()


async def put(shards: Shards, id: int, likes: int | None = 0) -> None:
    async with shards.writing(id) as session:
        await session.execute(insert(ITEMS).values(id=id, field=id % 3, likes=likes))


@pytest.mark.parametrize(
    ("kind", "count"),
    [("range", 400), ("hash", 400), pytest.param("range", 100_000, marks=pytest.mark.soak)],
    ids=["range", "hash", "long"],
)
async def test_counts_sums_groups_and_tops_equal_those_of_one_database(four: Four, kind: str, count: int) -> None:
    dice = random.Random(count)
    batch = max(20, count // 60)
    async with four.one.connect() as one:
        await four.shards().create(MAPS[kind])
        async with four.shards() as shards:
            for _ in range(0, count, batch):
                mine: dict[str, list[tuple[int, Any]]] = {name: [] for name in NAMES}
                for _ in range(batch):
                    id = dice.randrange(1_000)
                    await one.execute(delete(ITEMS).where(ITEMS.c.id == id))
                    values = {"id": id, "field": dice.randrange(5), "likes": dice.choice([None, *range(9)])}
                    written = dice.random() < 0.8
                    if written:
                        await one.execute(insert(ITEMS).values(values))
                    mine[shards.map.shard(id)].append((id, values if written else None))
                for some in filter(None, mine.values()):
                    async with shards.writing(some[0][0]) as session:
                        for id, row in some:
                            await session.execute(delete(ITEMS).where(ITEMS.c.id == id))
                            if row is not None:
                                await session.execute(insert(ITEMS).values(row))
                await one.commit()
            (alone,) = await four.alone(COUNTS)
            assert alone[0] > 100
            assert await shards.sums(COUNTS, ITEMS.c.id) == alone
            assert await shards.groups(GROUPS, ITEMS.c.id) == {(row[0],): row[1:] for row in await four.alone(GROUPS)}
            top = await shards.top(TOP, ITEMS.c.id, 50, key=lambda row: (-row.likes, row.id))
            assert [tuple(row) for row in top] == await four.alone(TOP.limit(50))
            sizes = [len(await four.rows(name)) for name in NAMES]
            assert min(sizes) > 0
            assert sum(sizes) == alone[0]


async def test_a_session_reads_and_writes_the_shard_of_its_id(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    with pytest.raises(muster.Invalid, match="exists"):
        await four.shards().create(MAPS["range"])
    async with four.shards() as shards:
        for id in (1, 299, 300, 599, 600, ID_MAX):
            await put(shards, id)
            async with shards.reading(id) as session:
                assert (await session.execute(select(ITEMS.c.id).where(ITEMS.c.id == id))).scalar_one() == id
        assert (await four.rows("a"), await four.rows("b")) == ([1, 299], [300, 599])
        assert sorted(await four.rows("c") + await four.rows("d")) == [600, ID_MAX]
        with pytest.raises(muster.Invalid, match="invalid id"):
            await put(shards, -1)
        with pytest.raises(muster.Invalid, match="cannot write"):
            async with shards.reading(1) as session:
                await session.execute(delete(ITEMS))
        assert await four.rows("a") == [1, 299]


async def test_the_tail_of_a_range_is_spread(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as shards:
        found = Counter(shards.map.shard(id) for id in range(10_000, 12_000))
    assert found.keys() == {"c", "d"}
    assert abs(found["c"] - found["d"]) < 200


async def test_rows_follow_a_change_of_the_map_under_load(four: Four) -> None:
    """Each row has a count that lanes raise, in processes whose maps are old: none is lost, and each total is right."""
    await four.shards().create(MAPS["range"])
    ids = [*range(0, 900, 90), 1_000]
    async with four.shards() as mover, four.shards() as first, four.shards() as second:
        for id in ids:
            await put(mover, id)
        raised: Counter[int] = Counter()
        ended = asyncio.Event()
        totals: list[int] = []

        async def raise_counts(shards: Shards, dice: random.Random) -> None:
            while not ended.is_set():
                id = dice.choice(ids)
                async with shards.writing(id) as session:
                    one_more = update(ITEMS).where(ITEMS.c.id == id).values(likes=ITEMS.c.likes + 1)
                    done = await session.execute(one_more)
                    assert getattr(done, "rowcount", 0) == 1, f"{id} is not where the map says"
                raised[id] += 1
                async with shards.reading(id) as session:
                    found = (await session.execute(select(ITEMS.c.likes).where(ITEMS.c.id == id))).scalar_one()
                assert found >= 1

        async def count() -> None:
            while not ended.is_set():
                (rows,) = await second.sums(select(func.count()).select_from(ITEMS), ITEMS.c.id)
                assert rows == len(ids), "a row that moves is counted once"
                totals.append(rows)

        lanes = [
            asyncio.create_task(raise_counts(shards, random.Random(number)))
            for number, shards in enumerate([first, second] * (LANES // 2))
        ]
        lanes.append(asyncio.create_task(count()))

        def went_on(before: int) -> bool:
            return sum(raised.values()) > before or any(lane.done() for lane in lanes)

        for parts in (
            [(0, "b"), (300, "c"), (600, ["d", "a"])],
            [(0, ["a", "b", "c", "d"])],
            [(0, "a"), (300, "b"), (600, ["c", "d"])],
        ):
            before = sum(raised.values())
            move = await mover.change(ShardMap("range", parts), copied)
            await move.clean(ITEMS, ITEMS.c.id)
            await until(partial(went_on, before))
        ended.set()
        await asyncio.gather(*lanes)
        assert mover.map.version == 7, "two versions for each change"
        assert totals
        found: dict[int, int] = {}
        for rows in await first.each(select(ITEMS.c.id, ITEMS.c.likes), ITEMS.c.id):
            found |= {row.id: row.likes for row in rows}
        assert found == {id: raised[id] for id in ids}
        assert sum([len(await four.rows(name)) for name in NAMES]) == len(ids), "cleaned"


async def copied(move: Move) -> None:
    await move.copy(ITEMS, ITEMS.c.id)


async def test_a_change_waits_for_a_writer_under_way_and_keeps_out_an_old_map(four: Four) -> None:
    """The planted bug stands below: without the fence this row would be lost."""
    await four.shards().create(MAPS["range"])
    async with four.shards() as mover, four.shards() as old:
        async with old.writing(1) as session:
            await session.execute(insert(ITEMS).values(id=1, field=0))
            change = asyncio.create_task(mover.change(ShardMap("range", [(0, "b")]), copied))
            await until(lambda: any(part.held for part in mover.map.parts))
            assert not change.done()
        await change
        assert await four.rows("b") == [1], "the row of the writer under way was copied"
        assert old.map.version == 1, "it has not looked"
        await put(old, 2)
        assert await four.rows("b") == [1, 2]
        assert old.map.version == 3


async def test_a_writer_that_has_written_nothing_yet_holds_the_fence(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as mover, four.shards() as old:
        async with old.writing(1) as session:
            change = asyncio.create_task(mover.change(ShardMap("range", [(0, "b")]), copied))
            await until(lambda: any(part.held for part in mover.map.parts))
            await session.execute(insert(ITEMS).values(id=1, field=0))
            assert not change.done()
        await change
        assert await mover.sums(select(func.count()).select_from(ITEMS), ITEMS.c.id) == (1,)


async def test_without_the_fence_an_old_map_would_lose_its_rows(four: Four, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_to_all(*_: Any, **more: Any) -> None:
        return

    await four.shards().create(MAPS["range"])
    async with four.shards() as mover, four.shards() as old:
        await mover.change(ShardMap("range", [(0, "b")]), copied)
        monkeypatch.setattr(Shards, "_fenced", open_to_all)
        await put(old, 2)
        assert await mover.sums(select(func.count()).select_from(ITEMS), ITEMS.c.id) == (0,)


async def test_a_change_that_fails_leaves_the_old_map(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as shards, four.shards(hold_s=0.0) as other:
        await put(shards, 1)

        async def failing(move: Move) -> None:
            assert await move.copy(ITEMS, ITEMS.c.id) == 1
            with pytest.raises(Moved):
                await put(other, 2)
            async with other.reading(1) as session:
                assert (await session.execute(select(func.count()).select_from(ITEMS))).scalar_one() == 1
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await shards.change(ShardMap("range", [(0, "b")]), failing)
        assert (shards.map.parts, shards.map.version) == (MAPS["range"].parts, 3)
        await put(other, 2)
        assert await shards.sums(select(func.count()).select_from(ITEMS), ITEMS.c.id) == (2,)
        move = await shards.change(ShardMap("range", [(0, "b")]), copied)
        assert await move.clean(ITEMS, ITEMS.c.id) == 2
        assert (await four.rows("a"), await four.rows("b")) == ([], [1, 2])


async def test_a_change_whose_program_died_is_released(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as dead, four.shards(hold_s=0.0) as other:
        held = dead.map.held(ShardMap("range", [(0, "b")]))
        await dead._publish(held)
        await dead._raise_fences(held.version)  # and it dies
        with pytest.raises(Moved):
            await put(other, 1)
        with pytest.raises(Moved, match="call release"):
            await other.change(MAPS["range"], copied)
        await other.release()
        await put(other, 1)
        assert await four.rows("a") == [1]


async def test_two_changes_at_once_are_refused(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as shards, four.shards() as other:

        async def meanwhile(move: Move) -> None:
            with pytest.raises(Moved, match="another change"):
                await other.change(ShardMap("range", [(0, "c")]), copied)

        await shards.change(ShardMap("range", [(0, "b")]), meanwhile)
        with pytest.raises(muster.Invalid, match="cannot become"):
            await shards.change(MAPS["hash"], copied)
        with pytest.raises(muster.Invalid, match="no database of that name"):
            await shards.change(ShardMap("range", [(0, "nowhere")]), copied)


async def test_a_map_or_fence_that_is_missing_is_named(four: Four) -> None:
    async with four.one.begin() as connection:
        await connection.run_sync(FENCES.metadata.create_all)
    with pytest.raises(muster.Invalid, match="no map 'main'; make it with create"):
        await four.shards().open()
    await four.shards().create(MAPS["range"])
    async with four.replicas["b"].writing() as session:
        await session.execute(delete(FENCES))
    async with four.shards() as shards:
        await put(shards, 1)
        with pytest.raises(muster.Invalid, match="shard 'b' has no fence"):
            await put(shards, 300)
    with pytest.raises(muster.Invalid, match="not read yet"):
        _ = four.shards().map


async def test_a_position_of_a_newer_map_is_read_where_that_map_says(four: Four) -> None:
    await four.shards().create(MAPS["range"])
    async with four.shards() as mover, four.shards() as old:
        await mover.change(ShardMap("range", [(0, "b")]), copied)
        async with mover.writing(1) as session:
            await session.execute(insert(ITEMS).values(id=1, field=0))
        token = session.info["position"] or "b~3~x"  # SQLite has none
        assert token.startswith("b~3~")
        await old._seen_map(token)
        assert old.map.version == 3
        await old._seen_map(f"b~{'9' * 400}~x")


async def test_a_replica_with_an_older_fence_than_the_map_is_not_read(replicated: Replicated) -> None:
    """It may lack the rows that have just moved to it."""
    found = await databases(replicated)
    primary, prompt = (create_async_engine(driven(each.url)) for each in (found[0], found[2]))
    async with primary.begin() as connection:
        await connection.run_sync(ITEMS.metadata.create_all)
    count = select(func.count()).select_from(ITEMS)
    async with Replicas(primary, [prompt], look_s=0.05, answer_s=PATIENT_S, lag_s_max=600, wait_s=60.0) as db:
        await Shards(db, {"a": db, "b": db}).create(ShardMap("range", [(0, "a"), (300, "b")]))
        async with Shards(db, {"a": db, "b": db}, look_s=600) as shards:
            await until(lambda: not any(state.why for state in db.states()))
            async with db.writing() as session:
                await session.execute(insert(ITEMS).values(id=1, field=0))
            async with db.reading(session.info["position"]) as session:
                assert (await session.execute(count)).scalar_one() == 1, "the replica has all of it"
            await replicated.stop_applying(found[2].server)
            try:
                await shards.change(ShardMap("range", [(0, "b")]), nothing)
                async with db.writing() as session:
                    await session.execute(insert(ITEMS).values(id=2, field=0))
                async with shards.reading(2) as session:
                    assert (await session.execute(select(ITEMS.c.id).where(ITEMS.c.id == 2))).scalar_one() == 2
                assert await shards.sums(count, ITEMS.c.id) == (2,)
            finally:
                await replicated.go_on_applying(found[2].server)
    for engine in (primary, prompt):
        await engine.dispose()


async def nothing(move: Move) -> None:
    """Both names are one database."""


async def test_a_shard_that_is_away_fails_its_ids_alone(tmp_path: Path) -> None:
    engines = [create_async_engine(f"sqlite+aiosqlite:///{tmp_path / name}.db") for name in NAMES]
    replicas = {name: Replicas(engine) for name, engine in zip(NAMES, engines, strict=True)}
    shards = Shards(replicas["a"], replicas)
    await shards.create(MAPS["range"])
    for engine in engines:
        async with engine.begin() as connection:
            await connection.run_sync(ITEMS.metadata.create_all)
    away = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}")  # a folder
    async with Shards(replicas["a"], replicas | {"b": Replicas(away)}) as shards:
        await put(shards, 1)
        with pytest.raises(SQLAlchemyError):
            await put(shards, 300)
        with pytest.raises(SQLAlchemyError):
            await shards.sums(COUNTS, ITEMS.c.id)
        with pytest.raises(SQLAlchemyError):
            await shards.change(ShardMap("range", [(0, "c")]), nothing)
        assert shards.map.parts == MAPS["range"].parts, "no part stays held"
        await put(shards, 2)
    for engine in [*engines, away]:
        await engine.dispose()


async def test_a_position_of_one_shard_is_read_there(replicated: Replicated) -> None:
    found = await databases(replicated)
    primary, late, prompt = (create_async_engine(driven(each.url)) for each in found)
    async with primary.begin() as connection:
        await connection.run_sync(ITEMS.metadata.create_all)
    async with Replicas(primary, [late, prompt], look_s=0.05, wait_s=60.0, answer_s=PATIENT_S, lag_s_max=600) as db:
        first = Shards(db, {"a": db})
        await first.create(ShardMap("range", [(0, "a")]))
        async with first as shards:
            await until(lambda: not any(state.why for state in db.states()))
            for id in range(8):
                async with shards.writing(id) as session:
                    await session.execute(insert(ITEMS).values(id=id, field=0))
                token = session.info["position"]
                assert token.startswith("a~1~")
                async with shards.reading(id, token) as session:
                    assert (await session.execute(select(func.count()).select_from(ITEMS))).scalar_one() == id + 1
                assert await shards.sums(COUNTS, ITEMS.c.id, seen=token) == (id + 1, None, 0)
            assert db.figures().replica_reads >= 16
            before = db.figures().unknown
            async with shards.reading(0, "a cookie that was changed") as session:
                await session.execute(select(ITEMS.c.id))
            assert db.figures().unknown == before + 1
            async with shards.reading(0, "other~1~0-1-1") as session:
                await session.execute(select(ITEMS.c.id))
    for engine in (primary, late, prompt):
        await engine.dispose()

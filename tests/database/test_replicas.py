"""Reads on replicas over real replication: a reader misses nothing that it wrote, writes never reach a replica, and replicas
that lag, die or hang are left out."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

import muster
from muster.database.positions import Sqlite
from muster.database.replicas import Replicas, SyncReplicas
from tests.database.replication import Replicated, databases, driven, driven_sync
from tests.databases import Served
from tests.waiting import PATIENT_S, until

PAIRS = int(os.environ.get("MUSTERTEST_PAIRS", "200"))
LANES = 20
WRITE = text("INSERT INTO pairs (id, value) VALUES (:id, :value)")
READ = text("SELECT value FROM pairs WHERE id = :id")
PATIENT = {"answer_s": PATIENT_S}  # no replica is slow because the machine is


class Servers:
    """Engines of the primary, the late replica and the prompt one, for one test."""

    def __init__(self, replicated: Replicated, found: list[Served]) -> None:
        self.replicated = replicated
        self.primary, self.late, self.prompt = (
            create_async_engine(driven(each.url), pool_size=LANES) for each in found
        )
        self.served = found

    def replicas(self, *engines: AsyncEngine, **options: Any) -> Replicas:
        return Replicas(self.primary, engines, **(PATIENT | {"look_s": 0.05} | options))

    async def close(self) -> None:
        for engine in (self.primary, self.late, self.prompt):
            await engine.dispose()


@pytest.fixture
async def servers(replicated: Replicated) -> AsyncIterator[Servers]:
    made = Servers(replicated, await databases(replicated))
    yield made
    await made.close()


async def served(db: Replicas, count: int) -> None:
    """So many replicas serve reads."""
    await until(lambda: sum(not state.why for state in db.states()) == count)


async def applied(db: Replicas, position: str) -> None:
    """All replicas have applied this position."""
    includes = db._standings.positions.includes
    await until(lambda: all(includes(state.position, position) for state in db.states()))


async def pairs(db: Replicas, count: int, *, remember: bool = True) -> int:
    """Write and then read, in lanes side by side; return how many reads missed the write."""
    numbers = iter(range(count))

    async def lane() -> int:
        missing = 0
        for number in numbers:
            async with db.writing() as session:
                await session.execute(WRITE, {"id": number, "value": number})
            seen = session.info["position"] if remember else ""
            async with db.reading(seen) as session:
                missing += (await session.execute(READ, {"id": number})).scalar_one_or_none() != number
        return missing

    return sum(await asyncio.gather(*(lane() for _ in range(LANES))))


@pytest.mark.parametrize("count", [PAIRS, pytest.param(10_000, marks=pytest.mark.soak)], ids=["short", "long"])
async def test_no_read_over_a_late_replica_misses_the_write_before_it(
    servers: Servers, count: int, record_property: Callable[[str, object], None]
) -> None:
    async with servers.replicas(servers.late, wait_s=0.05) as db:
        await served(db, 1)
        assert await pairs(db, count) == 0
        figures = db.figures()
        assert figures.replica_reads + figures.primary_reads == count
        assert figures.primary_reads == figures.behind + figures.out
        record_property("pairs", f"{count} pairs, 0 missing, {figures.replica_reads} on the replica")


async def test_a_read_waits_at_a_late_replica_for_the_write_before_it(servers: Servers) -> None:
    async with servers.replicas(servers.late, wait_s=60.0) as db:
        await served(db, 1)
        assert await pairs(db, LANES * 2) == 0
        assert db.figures().replica_reads == LANES * 2


async def test_without_its_position_a_reader_misses_its_write(servers: Servers) -> None:
    """The planted bug: the tests above can fail."""
    prompt = servers.served[2].server
    async with servers.replicas(servers.prompt, lag_s_max=600) as db:
        await served(db, 1)
        await servers.replicated.stop_applying(prompt)
        try:
            assert await pairs(db, LANES, remember=False) == LANES
            assert db.figures().replica_reads == LANES
            async with db.writing() as session:
                await session.execute(WRITE, {"id": LANES, "value": LANES})
            async with db.reading(session.info["position"]) as session:
                assert (await session.execute(READ, {"id": LANES})).scalar_one() == LANES
            assert (db.figures().behind, db.figures().primary_reads) == (1, 1)
        finally:
            await servers.replicated.go_on_applying(prompt)


async def test_other_reads_are_spread_over_replicas(servers: Servers) -> None:
    async with servers.replicas(servers.late, servers.prompt) as db:
        await served(db, 2)
        ports = set()
        for _ in range(4):
            async with db.reading() as session:
                ports.add((await session.connection()).engine.url.port)
        assert ports == {servers.late.url.port, servers.prompt.url.port}
        assert (db.figures().replica_reads, db.figures().primary_reads) == (4, 0)


async def test_a_position_travels_to_another_process_and_form(servers: Servers) -> None:
    async with servers.replicas(servers.late, wait_s=60.0) as db:
        async with db.writing() as session:
            await session.execute(WRITE, {"id": 1, "value": 1})
        token = session.info["position"]
        assert token
        assert token.replace("-", "").replace("_", "").replace(".", "").isalnum(), "fit for a cookie"
    urls = [driven_sync(each.url) for each in servers.served]

    def read() -> tuple[int | None, int]:
        primary, late, _ = engines = [create_engine(url, poolclass=NullPool) for url in urls]
        with SyncReplicas(primary, [late], wait_s=60.0, look_s=0.02) as there:
            with there.writing() as session:
                session.execute(WRITE, {"id": 2, "value": 2})
            while there.states()[0].why:
                there.look()
            with there.reading(there.newest(token, session.info["position"])) as session:
                found = len(session.execute(text("SELECT id FROM pairs")).all())
            with pytest.raises(muster.Invalid, match="cannot write"), there.reading() as session:
                session.execute(WRITE, {"id": 3, "value": 3})
            for engine in engines:
                engine.dispose()
            return found, there.figures().replica_reads

    assert await asyncio.to_thread(read) == (2, 2)


@pytest.mark.parametrize("seen", ["", "primary"], ids=["on the replica", "on the primary"])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO pairs (id, value) VALUES (1, 1)",
        "/* a comment */ UPDATE pairs SET value = 2",
        "DELETE FROM pairs",
        "CREATE TABLE other (id BIGINT)",
    ],
)
async def test_a_write_as_text_in_a_reading_session_is_refused_and_changes_nothing(
    servers: Servers, statement: str, seen: str
) -> None:
    async with servers.replicas(servers.prompt) as db:
        await served(db, 1)
        with pytest.raises(muster.Invalid, match="cannot write; use writing"):
            async with db.reading(seen) as session:
                await session.execute(text(statement))
        async with db.writing() as session:  # the connection is as before
            await session.execute(WRITE, {"id": 7, "value": 7})
            assert (await session.execute(text("SELECT count(*) FROM pairs"))).scalar_one() == 1


async def wrote_and_failed(db: Replicas) -> None:
    async with db.writing() as session:
        await session.execute(WRITE, {"id": 3, "value": 3})
        raise ZeroDivisionError


async def test_reads_and_text_writes_of_a_writing_session_are_on_the_primary(servers: Servers) -> None:
    async with servers.replicas(servers.prompt) as db:
        await served(db, 1)
        async with db.writing() as session:
            assert (await session.connection()).engine.url.port == servers.primary.url.port
            await session.execute(text("INSERT INTO pairs (id, value) VALUES (1, 1)"))
            assert (await session.execute(READ, {"id": 1})).scalar_one() == 1
            await session.commit()
            first = session.info["position"]
            async with session.begin_nested():
                await session.execute(WRITE, {"id": 2, "value": 2})
            assert session.info["position"] == first, "a savepoint is no commit"
        assert db.newest(first, session.info["position"]) == session.info["position"] != first
        with pytest.raises(ZeroDivisionError):
            await wrote_and_failed(db)
        async with db.reading(db.newest(first, "")) as session:
            assert (await session.execute(READ, {"id": 3})).scalar_one_or_none() is None, "rolled back"


async def test_a_replica_that_lags_is_left_out_until_it_has_caught_up(servers: Servers) -> None:
    prompt = servers.served[2].server
    async with servers.replicas(servers.prompt, lag_s_max=0.3) as db:
        await served(db, 1)
        await servers.replicated.stop_applying(prompt)
        try:
            async with db.writing() as session:
                await session.execute(WRITE, {"id": 1, "value": 1})
            await served(db, 0)
            (state,) = db.states()
            assert "lags by more than 0.3 s" in state.why
            async with db.reading() as session:
                assert (await session.execute(READ, {"id": 1})).scalar_one() == 1, "the primary has it"
            assert db.figures().out == 1
        finally:
            await servers.replicated.go_on_applying(prompt)
        await served(db, 1)
        async with db.reading() as session:
            assert (await session.execute(READ, {"id": 1})).scalar_one() == 1


async def test_replicas_that_die_or_hang_are_left_out_and_come_back(servers: Servers) -> None:
    late, prompt = servers.served[1], servers.served[2]
    async with servers.replicas(servers.late, servers.prompt, look_s=0.5, answer_s=0.5, lag_s_max=600) as db:
        await served(db, 2)
        late.kill()
        prompt.stand_still()
        try:
            for number in range(4):
                async with db.writing() as session:
                    await session.execute(WRITE, {"id": number, "value": number})
                async with db.reading(session.info["position"]) as session:
                    assert (await session.execute(READ, {"id": number})).scalar_one() == number
            assert [bool(state.why) for state in db.states()] == [True, True]
            assert db.figures().primary_reads == 4
        finally:
            prompt.go_on()
            late.start()
        await served(db, 2)


async def test_a_primary_is_no_replica(servers: Servers) -> None:
    async with servers.replicas(servers.primary) as db:
        assert "no replica" in db.states()[0].why


@pytest.mark.parametrize("token", ["x", "0/0", "' OR 1=1", "0-1-1,0-1-2", "9" * 500, "0-1-2\n", "é"])
async def test_a_position_that_was_changed_is_read_on_the_primary(servers: Servers, token: str) -> None:
    async with servers.replicas(servers.prompt) as db:
        await served(db, 1)
        async with db.reading(token) as session:
            await session.execute(READ, {"id": 1})
        assert (db.figures().malformed, db.figures().primary_reads) == (1, 1)
        assert db.newest(token, "0-1-1") in {"primary", "0-1-1"}


async def test_sqlite_has_the_same_sessions_and_no_replica(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'one.db'}")
    with pytest.raises(muster.Invalid, match="has no replicas"):
        Replicas(engine, [engine])
    async with Replicas(engine) as db:
        async with db.writing() as session:
            await session.execute(text("CREATE TABLE pairs (id BIGINT PRIMARY KEY, value BIGINT)"))
        assert await pairs(db, LANES) == 0
        with pytest.raises(muster.Invalid, match="cannot write"):
            async with db.reading(session.info["position"]) as session:
                await session.execute(text("DELETE FROM pairs"))
        async with db.writing() as session:
            await session.execute(text("DELETE FROM pairs"))
    await engine.dispose()


async def test_a_commit_whose_position_is_not_answered_stands_and_is_read_on_the_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'one.db'}")

    def lost(*_: object) -> str:
        raise OperationalError("SELECT", None, Exception("the connection was lost"))

    async with Replicas(engine) as db:
        async with db.writing() as session:
            await session.execute(text("CREATE TABLE pairs (id BIGINT PRIMARY KEY, value BIGINT)"))
        monkeypatch.setattr(Sqlite, "committed", lost)
        async with db.writing() as session:
            await session.execute(WRITE, {"id": 1, "value": 1})
        assert session.info["position"] == db.newest("0-1-1", "primary") == "primary"
        async with db.reading(session.info["position"]) as session:
            assert (await session.execute(READ, {"id": 1})).scalar_one() == 1
        assert db.figures().unknown == 1
    await engine.dispose()


async def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'one.db'}")
    wrong: list[dict[str, Any]] = [{"wait_s": -1}, {"wait_s": 61}, {"lag_s_max": 0}, {"look_s": 0}, {"answer_s": 0}]
    for options in wrong:
        with pytest.raises(muster.Invalid, match=f"invalid {next(iter(options))}"):
            Replicas(engine, **options)
    other = create_async_engine("postgresql+asyncpg://x@127.0.0.1/x")
    with pytest.raises(muster.Invalid, match="different kinds"):
        Replicas(other, [engine])
    with contextlib.suppress(SQLAlchemyError):
        await engine.dispose()


async def test_replicas_serve_reads_while_the_primary_is_away(servers: Servers) -> None:
    async with servers.replicas(servers.prompt) as db:
        async with db.writing() as session:
            await session.execute(WRITE, {"id": 1, "value": 1})
        token = session.info["position"]
        await served(db, 1)
        await applied(db, token)
        servers.served[0].kill()
        try:
            async with db.reading(token) as session:
                assert (await session.execute(READ, {"id": 1})).scalar_one() == 1
            with pytest.raises((SQLAlchemyError, OSError)):
                async with db.writing() as session:
                    await session.execute(WRITE, {"id": 2, "value": 2})
        finally:
            servers.served[0].start()
            await servers.replicated.started()

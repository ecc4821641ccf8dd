"""The store of a fleet in each database: one lead, each turn whole, each result once, and nothing of a lead before."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.systems.fleet.questions import Draw, Kept, TaskRow
from muster_server.systems.fleet.records import Lead, ResultRow, Rolled, RunRow
from muster_server.systems.fleet.rollups import Sample, rolled
from muster_server.systems.fleet.wheel import MissedRuns
from tests.waiting import PATIENT_S

if TYPE_CHECKING:
    from muster_server.systems.fleet.database.store import SqlStore
    from tests.databases import Database

TASK = TaskRow(name="shop", kind="ping", target="t", selector="country=CN", every_minutes=5, pick=3, options={"n": [1]})
RUN = RunRow(task="shop", minute=7, kind="ping", target="t", selector="country=CN", wanted=2, options={"n": [1]})
DRAW = Draw(1 << 63, 1, 2, 10, 0, 0, 1.5, 7, 4, b"\x00state")


@pytest.fixture
async def mariadb_of_a_test(request: pytest.FixtureRequest) -> "Database":
    """An empty database of MariaDB."""
    from tests.databases import made

    return await made(request.getfixturevalue("mariadb"))


@pytest.fixture
async def stores(database: "Database") -> "AsyncIterator[list[SqlStore]]":
    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    made = [SqlStore(location(database.url), name) for name in ("one", "one", "other")]
    yield made
    for store in made:
        await store.close()


async def test_one_lead_at_a_time_and_the_one_before_writes_nothing(stores: "list[SqlStore]") -> None:
    first, second, other = stores
    assert await first.lead() is None
    one = await first.claim(None, "a")
    assert one == Lead(1, 0, "a", 0)
    assert await second.claim(None, "b") is None
    seen = await second.lead()
    await first.beat(1)
    assert await second.claim(seen, "b") is None  # it lives
    two = await second.claim(await second.lead(), "b")
    assert two == Lead(2, 0, "b", 0)
    for write in (
        first.beat(1),
        first.turn(1, 0, 7, [RUN], []),
        first.write(1, [RUN], []),
        first.resign(1),
    ):
        with pytest.raises(Fenced):
            await write
    assert await first.open_runs() == []
    assert (await other.claim(None, "c")) == Lead(1, 0, "c", 0)
    await second.resign(2)
    assert await first.claim(await first.lead(), "a") == Lead(3, 0, "a", 0)


async def test_of_two_that_take_over_at_once_one_leads(stores: "list[SqlStore]") -> None:
    first, second, _ = stores
    lead = await first.claim(None, "a")
    taken = await asyncio.gather(first.claim(lead, "b"), second.claim(lead, "c"))
    assert len([each for each in taken if each is not None]) == 1


async def test_a_turn_is_written_once_and_whole(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    missed = [MissedRuns("shop", 1, 6, 2, 6)]
    await store.turn(1, 0, 7, [RUN], missed)
    with pytest.raises(Fenced):
        await store.turn(1, 0, 7, [msgspec.structs.replace(RUN, minute=8)], [])
    assert [run.name for run in await store.open_runs()] == [("shop", 7)]
    lead = await store.lead()
    assert lead is not None
    assert lead.last_minute == 7


async def test_a_run_goes_forward_only_and_each_result_is_kept_once(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    running = msgspec.structs.replace(RUN, state="running", started_ms=5, draws=[DRAW], asked=[[("c1", 3), ("c2", 1)]])
    replaced = msgspec.structs.replace(running, replaced=["c1"], asked=[*running.asked, [("c3", 9)]])
    done = msgspec.structs.replace(replaced, state="done", done=2)
    rows = [ResultRow("shop", 7, client, True, b'{"ms":"\xc3\xbc"}', "", at) for client, at in (("c2", 2), ("c3", 1))]
    await store.turn(1, 0, 7, [RUN], [])
    await store.write(1, [running], [])
    await store.write(1, [replaced], rows)
    assert await store.open_runs() == [replaced]
    await store.write(1, [done], [msgspec.structs.replace(rows[0], value=b"2", ok=False)])
    await store.write(1, [running], [])
    assert await store.open_runs() == []
    assert await store.run("shop", None) == done
    assert await store.results_of(("shop", 7)) == [rows[1], rows[0]]
    assert await store.sent(1, 9) == {7: 3}
    assert await stores[2].run("shop", 7) is None
    await store.prune(6, 0)
    assert await store.run("shop", 7) is None
    assert await store.results_of(("shop", 7)) == []


async def test_the_history_has_each_started_run_once_the_newest_first(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    names = [("shop", 7, 50), ("shop", 8, 60), ("tills", 8, 60), ("shop", 9, 60), ("later", 10, 0)]
    runs = [
        msgspec.structs.replace(RUN, task=task, minute=minute, started_ms=at, asked=[[("c1", 3)]], done=1, state="done")
        for task, minute, at in names
    ]
    await store.turn(1, 0, 10, runs, [])
    seen, after = [], None
    while page := await store.runs(2, after):
        assert len(page) <= 2
        seen += [brief for _, brief in page]
        after = page[-1][0]
    assert [brief.run for brief in seen] == ["shop@9", "shop@8", "tills@8", "shop@7"]
    assert {(brief.kind, brief.wanted, brief.asked, brief.done) for brief in seen} == {("ping", 2, 1, 1)}
    assert await stores[2].runs(10, None) == []


def ended(minute: int, task: str = "shop") -> "tuple[RunRow, list[ResultRow], Rolled]":
    """A run with three clients of two marks, all its rows."""
    asked = [[("c1", 3), ("c2", 4)], [("c3", 5)]]
    run = msgspec.structs.replace(
        RUN, task=task, minute=minute, state="done", started_ms=minute, asked=asked, marks=[["a", "b"], ["a"]], done=3
    )
    results = [
        ResultRow(task, minute, "c1", True, b'{"ms": 1.5}', "", 1, "a", 1.5),
        ResultRow(task, minute, "c2", False, b"null", "no", 2, "b"),
        ResultRow(task, minute, "c3", True, b"[1]", "", 3, "a"),
    ]
    samples = [Sample(each.mark, each.ok, each.ms) for each in results]
    return run, results, Rolled(run.name, rolled(run, samples, []), True)


async def test_results_of_a_task_come_in_pages_with_what_was_asked(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    for minute in (7, 8, 9):
        run, results, end = ended(minute)
        assert not await store.write(1, [run], results, [end])
    run, results, end = ended(8, "other")
    await store.write(1, [run], results, [end])
    seen, after = [], None
    while page := await store.results_in("shop", 7, 8, 2, after):
        assert len(page) <= 2
        seen += page
        after = page[-1].minute, page[-1].client
    assert [(each.minute, each.client) for each in seen] == [(m, c) for m in (7, 8) for c in ("c1", "c2", "c3")]
    assert seen[0] == Kept("shop", 7, "c1", "a", "ping", "t", True, 1.5, "", 1, b'{"ms": 1.5}')
    assert (seen[1].ok, seen[1].ms, seen[1].error, seen[1].mark) == (False, None, "no", "b")
    assert await stores[2].results_in("shop", 0, 99, 9, None) == []
    assert [each.mark for each in await store.results_of(("shop", 7))] == ["a", "b", "a"]
    known = await store.run("shop", 9)
    assert known is not None
    assert known.mark_of == {"c1": "a", "c2": "b", "c3": "a"}


async def test_roll_ups_are_kept_once_in_pages_and_longer_than_runs(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    for minute in (7, 8):
        run, results, end = ended(minute)
        for _ in range(2):  # a write whose answer was lost
            await store.write(1, [run], results, [end])
    seen, after = [], None
    while page := await store.minutes_of("shop", 0, 99, None, 2, after):
        seen += page
        after = page[-1].minute, page[-1].mark
    assert [(each.minute, each.mark, each.results, each.failed, each.p50) for each in seen] == [
        (minute, *row) for minute in (7, 8) for row in (("", 3, 1, 1.5), ("a", 2, 0, 1.5), ("b", 1, 1, None))
    ]
    assert [each.minute for each in await store.minutes_of("shop", 0, 99, "a", 9, None)] == [7, 8]
    assert [each.mark for each in await store.minutes_of("shop", 7, 7, "", 9, None)] == [""]
    assert await stores[2].minutes_of("shop", 0, 99, None, 9, None) == []
    await store.prune(100, 8)
    assert await store.run("shop", 8) is None
    assert [each.minute for each in await store.minutes_of("shop", 0, 99, "", 9, None)] == [8]
    assert await store.outbox(9) == ([], 0)


async def test_ended_runs_wait_in_order_until_they_are_handed_over(stores: "list[SqlStore]") -> None:
    store, second, other = stores
    await store.claim(None, "a")
    for minute in (9, 7, 8):
        run, results, end = ended(minute)
        await store.write(1, [run], results, [end])
    names, count = await store.outbox(2)
    assert count == 3
    assert len(names) == 2
    assert await other.outbox(9) == ([], 0)
    await store.handed_over(1, names)
    rest, count = await store.outbox(9)
    assert (count, {*names, *rest}) == (1, {("shop", 7), ("shop", 8), ("shop", 9)})
    await second.claim(await second.lead(), "b")
    with pytest.raises(Fenced):
        await store.handed_over(1, rest)
    assert (await second.outbox(9))[1] == 1
    run, results, end = ended(10)
    with pytest.raises(Fenced):
        await store.write(1, [run], results, [end])
    assert await second.minutes_of("shop", 10, 10, None, 9, None) == []


async def test_a_nul_of_a_client_is_kept_as_another_character(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    running = msgspec.structs.replace(RUN, state="missed", reason="a\0b", started_ms=5)
    nul = ResultRow("shop", 7, "c1", False, b'"\\u0000"', "a\0b", 1)
    assert not await store.write(1, [running], [nul])
    kept = msgspec.structs.replace(nul, error="a\N{REPLACEMENT CHARACTER}b")
    assert await store.results_of(("shop", 7)) == [kept]


async def test_a_row_that_the_database_cannot_hold_keeps_no_other_one_back(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    runs = [msgspec.structs.replace(RUN, minute=minute) for minute in range(7, 12)]
    runs[2] = msgspec.structs.replace(runs[2], wanted=1 << 70)
    missed = [MissedRuns("shop", 1, 6, 2, 6), MissedRuns("other", 1, 6, 1 << 70, 6)]
    refused = await store.turn(1, 0, 7, runs, missed)
    assert [(each.run, each.client) for each in refused] == [(("shop", 9), ""), (("other", 1), "")]
    assert all(each.reason for each in refused)
    assert [run.minute for run in await store.open_runs()] == [7, 8, 10, 11]
    lead = await store.lead()
    assert lead is not None
    assert lead.last_minute == 7
    results = [ResultRow("shop", 7, f"c{number}", True, b"1", "", number) for number in range(9)]
    results[4] = msgspec.structs.replace(results[4], at_ms=1 << 70)
    refused = await store.write(1, [msgspec.structs.replace(runs[0], state="done")], results)
    assert [(each.run, each.client) for each in refused] == [(("shop", 7), "c4")]
    assert len(await store.results_of(("shop", 7))) == 8
    assert [run.minute for run in await store.open_runs()] == [8, 10, 11]


async def test_options_that_cannot_be_packed_keep_no_run_back(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    bad = msgspec.structs.replace(RUN, minute=8, options={"n": 1 << 70})
    refused = await store.turn(1, 0, 7, [RUN, bad], [])
    assert [each.run for each in refused] == [("shop", 8)]
    assert [run.minute for run in await store.open_runs()] == [7]


@pytest.mark.parametrize(("field", "text"), [("kind", "k" * 65), ("target", "t" * 1_025)])
async def test_a_text_that_is_too_long_for_a_server_keeps_no_run_back(
    served: "Database", field: str, text: str
) -> None:
    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    store = SqlStore(location(served.url), "one")
    await store.claim(None, "a")
    long = msgspec.structs.replace(RUN, minute=8, **{field: text})
    assert [each.run for each in await store.turn(1, 0, 7, [RUN, long], [])] == [("shop", 8)]
    assert [run.minute for run in await store.open_runs()] == [7]
    await store.close()


async def test_a_clock_that_was_ahead_is_healed(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    rows = [msgspec.structs.replace(TASK, name=f"t{minute}", since_minute=minute) for minute in (3, 50, 101, 500)]
    for row in rows:
        await store.put_task(row, new=True)
    missed = [MissedRuns("a", 1, 6, 6, 12), MissedRuns("b", 8, 27, 10, 40), MissedRuns("c", 11, 98, 88, 88)]
    await store.turn(1, 0, 100, [msgspec.structs.replace(RUN, minute=minute) for minute in (99, 100)], missed)
    with pytest.raises(Fenced):
        await store.heal(1, 99, 10)
    await store.heal(1, 100, 10)
    lead = await store.lead()
    assert lead is not None
    assert lead.last_minute == 10
    assert [task.since_minute for task in await store.tasks()] == [11, 3, 11, 500]
    assert await store.handed(99, 99) == {("shop", 99)}
    assert (await store.last_run(), await stores[2].last_run()) == (100, 0)
    assert await store.missed(1, 1_000) == [
        MissedRuns("a", 1, 6, 6, 12),
        MissedRuns("b", 8, 10, 1, 6),
    ]


async def test_names_that_differ_in_spaces_at_the_end_are_different(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    for pick, name in enumerate(("shop", "shop ", "shop  "), 1):
        assert await store.put_task(msgspec.structs.replace(TASK, name=name, pick=pick), new=True)
    assert {task.name: task.pick for task in await store.tasks()} == {"shop": 1, "shop ": 2, "shop  ": 3}
    rows = [ResultRow("shop", 7, client, True, b"1", "", 1) for client in ("probe", "probe ")]
    assert not await store.write(1, [], rows)
    assert {row.client for row in await store.results_of(("shop", 7))} == {"probe", "probe "}
    assert await store.drop_task("shop ")
    assert {task.name for task in await store.tasks()} == {"shop", "shop  "}


async def test_names_that_differ_in_case_are_different(stores: "list[SqlStore]") -> None:
    store = stores[0]
    await store.claim(None, "a")
    names = ["Shop", "shop", "sh\N{LATIN SMALL LETTER O WITH DIAERESIS}p"]
    for pick, name in enumerate(names, 1):
        assert await store.put_task(msgspec.structs.replace(TASK, name=name, pick=pick), new=True)
    assert {task.name: task.pick for task in await store.tasks()} == dict(zip(names, (1, 2, 3), strict=True))
    await store.turn(1, 0, 7, [msgspec.structs.replace(RUN, task=name) for name in names], [])
    rows = [ResultRow(name, 7, client, True, b"1", "", 1) for name in names for client in ("Probe", "probe")]
    assert not await store.write(1, [], rows)
    for name in names:
        assert {row.client for row in await store.results_of((name, 7))} == {"Probe", "probe"}
    assert await store.drop_task("SHOP") is False
    assert await store.drop_task("Shop")
    assert {task.name for task in await store.tasks()} == set(names[1:])


@pytest.mark.parametrize(("collation", "step"), [("utf8mb4_general_ci", "0001"), ("utf8mb4_bin", "0002")])
async def test_tables_of_before_are_brought_to_compare_bytes(
    mariadb_of_a_test: "Database", collation: str, step: str
) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    where = location(mariadb_of_a_test.url)
    before = SqlStore(where, "one")
    assert await before.put_task(TASK, new=True)
    await before.close()
    engine = create_async_engine(where.url)
    async with engine.begin() as connection:
        for change in (
            f"ALTER TABLE muster_fleet_tasks CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}",
            f"UPDATE muster_fleet_schema SET version_num = '{step}'",
        ):
            await connection.execute(text(change))
    await engine.dispose()
    store = SqlStore(where, "one")
    names = ("SHOP", "shop ")
    for name in names:
        assert await store.put_task(msgspec.structs.replace(TASK, name=name), new=True)
    assert {task.name for task in await store.tasks()} == {"shop", *names}
    await store.close()


async def test_tasks_are_written_changed_and_removed(stores: "list[SqlStore]") -> None:
    store = stores[0]
    assert await store.put_task(TASK, new=True)
    assert not await store.put_task(TASK, new=True)
    paused = msgspec.structs.replace(TASK, paused=True, every_minutes=None, pick=None, per_hour=30)
    assert await store.put_task(paused, new=False)
    assert await store.tasks() == [paused]
    assert await stores[2].tasks() == []
    assert await store.drop_task("shop")
    assert not await store.drop_task("shop")


async def test_a_lead_that_stands_still_in_a_transaction_holds_up_nobody(served: "Database") -> None:
    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    first, second = SqlStore(location(served.url), "one", call_s=60), SqlStore(location(served.url), "one")
    await first.claim(None, "a")
    inside = asyncio.Event()

    async def sleeping(connection: object) -> None:
        inside.set()
        await asyncio.sleep(30)

    standing = asyncio.create_task(first._fenced(1, sleeping))
    await inside.wait()
    async with asyncio.timeout(PATIENT_S):
        assert await second.claim(await second.lead(), "b") == Lead(2, 0, "b", 0)
    standing.cancel()
    await asyncio.gather(standing, return_exceptions=True)
    with pytest.raises(StoreError):
        await first.beat(1)
    await asyncio.gather(first.close(), second.close())


async def test_a_database_that_comes_back_is_written_again(served: "Database") -> None:
    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    store = SqlStore(location(served.url), "one")
    await store.claim(None, "a")
    served.kill()
    with pytest.raises(StoreError):
        await store.beat(1)
    served.start()
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                await store.beat(1)
                break
            except StoreError:
                await asyncio.sleep(0.1)
    lead = await store.lead()
    assert lead is not None
    assert lead.beat == 1
    await store.close()

"""Schedulers by a clock that the test moves, with a real store: each (task, minute) runs once or is told as missed."""

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from muster_server.plane.calls import CallError
from muster_server.plane.database.url import location
from muster_server.plane.ownership.errors import Fenced
from muster_server.systems.fleet import leading as led
from muster_server.systems.fleet import scheduler as module
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.database.store import SqlStore
from muster_server.systems.fleet.leading import Leading
from muster_server.systems.fleet.options import Fleet, FleetSettings
from muster_server.systems.fleet.questions import Draw, Explain, Hour, Picked, PickOne, RunNow, TaskRow
from muster_server.systems.fleet.records import Lead, RunRow, Unstored, scheduled
from muster_server.systems.fleet.scheduler import Scheduler
from muster_server.systems.fleet.schema import Order, Result
from muster_server.systems.fleet.watching import Queue
from muster_server.systems.fleet.wheel import MissedRuns, due
from tests.waiting import PATIENT_S, until

START = 29_700_000


class Clock:
    """The wall; the steady clock goes by itself."""

    def __init__(self) -> None:
        self.wall = START * 60 + 30.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return time.monotonic()


class Nodes:
    """Index nodes that pick the first clients, and remember who asked."""

    def __init__(self) -> None:
        self.clients = [f"c{number}" for number in range(10)]
        self.asked: list[PickOne] = []
        self.released: list[str] = []
        self.epoch = 0
        self.away = False
        self.on_alive: Callable[[], None] = lambda: None
        self.online = 10

    async def pick(self, question: PickOne) -> Picked:
        if self.away:
            raise CallError("away", "no index node answers")
        if question.epoch < self.epoch:
            raise CallError("superseded", "another one leads")
        self.epoch = question.epoch
        self.asked.append(question)
        found = [each for each in self.clients if each not in question.without][: question.wanted]
        draw = Draw(question.seed, 0, len(found), 10, 0, 0, 1.0, START, 1)
        return Picked([(client, 1) for client in found], draw, question.selector)

    def tell(self, question: Any, without: int = 0) -> None:
        if hasattr(question, "run"):
            self.released.append(question.run)


class Air:
    """The broker and all clients: they answer, unless they are deaf, and remember what they were asked."""

    def __init__(self) -> None:
        self.orders: Counter[tuple[str, str]] = Counter()
        self.deaf: set[str] = set()
        self.connected = True
        self.sent = self.lost = self.received = 0
        self._heard: list[Callable[[str, bytes], None]] = []
        self._done: set[tuple[str, str]] = set()
        self.did: Counter[tuple[str, str]] = Counter()

    def link(self, heard: Callable[[str, bytes], None]) -> "Air":
        self._heard.append(heard)
        return self

    async def open(self) -> None:
        """It is."""

    async def close(self) -> None:
        """The next one listens."""

    def send(self, topic: str, payload: bytes, quality: int) -> None:
        client = topic.split("/")[2]
        order = msgspec.json.decode(payload, type=Order)
        self.orders[client, order.run] += 1
        if client in self.deaf:
            return
        if (client, order.run) not in self._done:
            self._done.add((client, order.run))
            self.did[client, order.run] += 1
        asyncio.get_running_loop().call_soon(self._answer, client, order.run)

    def _answer(self, client: str, run: str) -> None:
        self._heard[-1](schema.up(client, "result"), schema.written(Result(run, 1, True, msgspec.Raw(b"1"))))


class House:
    """Schedulers that lead one after the other, or both believe to, over one store."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock, self.nodes, self.air = clock, Nodes(), Air()
        self.url = f"sqlite:///{folder / 'fleet.db'}"
        self.store = SqlStore(location(self.url), "x")
        self.settings = FleetSettings(
            brokers=(),
            tls=False,
            user="",
            password_file="",
            folder=str(folder),
            redis="",
            redis_password_file="",
            database=self.url,
            database_password_file="",
            instance="x",
            fleet=Fleet(receipt_ms=300, result_ms=1_000, lease_ms=90_000),
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, name: str, every: int, pick: int = 2) -> None:
        row = TaskRow(
            name=name, kind="ping", target="", selector="", every_minutes=every, pick=pick, since_minute=START
        )
        await self.store.put_task(row, new=True)

    async def lead(self) -> Leading:
        """One more scheduler takes over and works."""
        taken: Lead | None = None
        while taken is None:  # a lead that lives beats in between
            taken = await self.store.claim(await self.store.lead(), "me")
        nodes: Any = self.nodes
        link: Any = self.air.link
        made = Leading(taken, self.store, nodes, self.settings, link, structlog.get_logger())
        began = asyncio.Event()
        self.tasks.append(asyncio.create_task(made.work(began.set)))
        await asyncio.wait_for(began.wait(), PATIENT_S)
        return made

    async def kill(self) -> None:
        """The last one stops in the middle of whatever it does."""
        task = self.tasks.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def runs(self) -> dict[tuple[str, int], RunRow]:
        found = {}
        for task in await self.store.tasks():
            for minute in range(START - 5, START + 200):
                if row := await self.store.run(task.name, minute):
                    found[row.name] = row
        return found

    async def settled(self, minute: int) -> None:
        """All up to this minute is handed out, and every run is over."""

        async def over() -> bool:
            lead = await self.store.lead()
            return lead is not None and lead.last_minute >= minute and not await self.store.open_runs()

        async with asyncio.timeout(PATIENT_S):
            while not await over():  # noqa: ASYNC110 - it happens in another task and a database
                await asyncio.sleep(0.02)


async def ended(queue: Queue) -> None:
    """Until the run of this queue is over."""
    async with asyncio.timeout(60):
        while (event := await queue.get()) is not None and event.what != "ended":
            pass


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(led, "time", clock)
    monkeypatch.setattr(led, "BEAT_S", 0.05)
    real = asyncio.sleep

    async def soon(seconds: float) -> None:
        await real(min(seconds, 0.02))  # a minute is not waited for

    monkeypatch.setattr(asyncio, "sleep", soon)
    made = House(tmp_path, clock)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    await made.store.close()


async def test_each_minute_is_handed_out_once_over_restarts(house: House) -> None:
    await house.add("each", 1)
    await house.add("third", 3)
    await house.lead()
    await house.settled(START)
    for minute in range(START + 1, START + 10):
        house.clock.wall = minute * 60.0 + 1
        if minute % 2:
            await house.kill()
            await house.lead()
        await house.settled(minute)
    found = await house.runs()
    assert [minute for name, minute in sorted(found) if name == "each"] == list(range(START + 1, START + 10))
    assert len([name for name, _ in found if name == "third"]) == 3
    assert {row.state for row in found.values()} == {"done"}
    assert max(house.air.did.values()) == 1


async def test_minutes_that_no_scheduler_saw_are_told_as_missed(house: House) -> None:
    await house.add("each", 1)
    await house.lead()
    await house.settled(START)
    await house.kill()
    house.clock.wall += 20 * 60
    told: list[MissedRuns] = []
    turn = house.store.turn

    async def noted(epoch: int, before: int, after: int, runs: Any, missed: Any) -> list[Unstored]:
        told.extend(missed)
        return await turn(epoch, before, after, runs, missed)

    house.store.turn = noted  # type: ignore[method-assign]
    await house.lead()
    await house.settled(START + 20)
    found = await house.runs()
    assert sorted(minute for _, minute in found) == [START + 19, START + 20]  # one minute late still runs
    assert [(each.task, each.first, each.last, each.runs) for each in told] == [("each", START + 1, START + 18, 18)]


async def test_a_minute_that_was_missed_is_told_from_one_with_nothing_due(house: House) -> None:
    await house.add("third", 3)
    await house.lead()
    await house.settled(START)
    await house.kill()
    house.clock.wall = (START + 20) * 60.0 + 1
    leading = await house.lead()
    await house.settled(START + 20)
    asked = Scheduler.__new__(Scheduler)
    asked._leading, asked._made = leading, house.store
    due_at = [minute for minute in range(START + 1, START + 21) if due(scheduled(leading.table["third"]), minute)]
    assert due_at
    missed = await asked._explain(Explain(f"third@{due_at[0]}"))
    assert (missed.state, missed.run) == ("missed", f"third@{due_at[0]}")
    assert f"no scheduler ran in the minutes {START + 1} to {START + 18}" in missed.reason
    idle = next(minute for minute in (START + 19, START + 20) if minute not in due_at)
    for run, why in (
        (f"third@{idle}", f"no run of task third was due in minute {idle}"),
        (f"third@{START + 99}", "has not been handed out yet"),
        (f"nothing@{idle}", "there is no run nothing"),
        ("a\0b@7", "there is no run"),
        (f"third@{'9' * 40}", "there is no run"),
    ):
        with pytest.raises(CallError, match=why):
            await asked._explain(Explain(run))
    slots = {slot.minute: slot for slot in (await asked._hour(Hour())).slots}
    assert [minute for minute, slot in slots.items() if slot.missed] == list(range(START + 1, START + 19))


async def test_a_clock_that_steps_back_runs_nothing_twice(house: House) -> None:
    await house.add("each", 1)
    await house.lead()
    for minute in (START + 1, START + 2, START - 3, START, START + 2, START + 3):
        house.clock.wall = minute * 60.0 + 1
        await house.settled(max(START + 1, minute))
        await asyncio.sleep(0)
    found = await house.runs()
    assert sorted(minute for _, minute in found) == [START + 1, START + 2, START + 3]
    assert max(house.air.orders.values()) == 1


async def test_tasks_go_on_by_the_clock_that_was_ahead_once_it_was_healed(house: House) -> None:
    await house.add("each", 1)
    leading = await house.lead()
    house.clock.wall = (START + 1) * 60.0 + 1
    await house.settled(START + 1)
    house.clock.wall = (START + 50) * 60.0 + 1
    await house.settled(START + 50)
    await house.store.put_task(
        TaskRow(name="new", kind="ping", target="", selector="", every_minutes=1, pick=1, since_minute=START + 51),
        new=True,
    )
    house.clock.wall = (START + 2) * 60.0 + 1
    assert leading.ahead == 48
    assert await leading.heal() == 48
    assert await leading.heal() == 0
    assert leading.ahead == 0
    for minute in (START + 3, START + 4):
        house.clock.wall = minute * 60.0 + 1
        await house.settled(minute)
    assert set(await house.runs()) == {
        ("each", START + 1),
        ("each", START + 3),
        ("each", START + 4),
        ("each", START + 49),
        ("each", START + 50),
        ("new", START + 3),
        ("new", START + 4),
    }
    await house.kill()
    house.clock.wall = (START + 48) * 60.0 + 1
    await house.lead()
    for minute in (START + 49, START + 50, START + 51):
        house.clock.wall = minute * 60.0 + 1
        await house.settled(minute)
    runs = await house.runs()
    assert {("each", minute) for minute in (START + 49, START + 50, START + 51)} <= set(runs)
    assert max(house.air.orders.values()) == 1, "nothing runs twice, also after another death"


async def test_a_clock_that_was_ahead_stops_tasks_for_a_bounded_time(house: House) -> None:
    await house.add("each", 1)
    house.settings = msgspec.structs.replace(
        house.settings, fleet=msgspec.structs.replace(house.settings.fleet, clock_wait_s=0)
    )
    leading = await house.lead()
    house.clock.wall = (START + 50) * 60.0 + 1
    await house.settled(START + 50)
    house.clock.wall = (START + 2) * 60.0 + 1
    await until(lambda: leading.ahead == 0)
    house.clock.wall = (START + 3) * 60.0 + 1
    await house.settled(START + 3)
    assert ("each", START + 3) in await house.runs()


async def test_nothing_is_deleted_by_age_after_a_step_of_the_clock(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[int] = []

    async def noted(before_ms: int, before_minute: int) -> None:
        pruned.append(before_ms)

    house.store.prune = noted  # type: ignore[method-assign]
    await house.add("each", 1)
    leading = await house.lead()
    monkeypatch.setattr(led, "TRUSTED_S", 0.0)
    await until(lambda: bool(pruned))
    monkeypatch.setattr(led, "TRUSTED_S", 3_600.0)
    leading._steps_since -= 7_200
    assert leading.trusts_clock
    house.clock.wall += 400 * 86_400
    await house.settled(START + 400 * 1_440)
    assert not leading.trusts_clock
    pruned.clear()
    await house.kill()
    leading = await house.lead()
    assert not leading.trusts_clock, "another lead does not know it yet"
    assert not pruned


async def test_of_two_that_believe_to_lead_one_works(house: House) -> None:
    await house.add("each", 1)
    await house.lead()
    await house.settled(START)
    first = house.tasks[0]
    await house.lead()
    house.clock.wall += 60
    await house.settled(START + 1)
    await until(first.done)
    assert isinstance(first.exception(), Fenced)
    assert set(await house.runs()) == {("each", START + 1)}
    assert max(house.air.orders.values()) == 1


async def test_a_run_of_a_lead_that_died_is_taken_up_and_no_client_does_it_twice(house: House) -> None:
    await house.add("each", 1, pick=4)
    house.air.deaf = {"c2", "c3"}
    await house.lead()
    house.clock.wall += 60
    await until(lambda: house.air.orders["c3", f"each@{START + 1}"] == 1)
    async with asyncio.timeout(PATIENT_S):
        while len(await house.store.results_of(("each", START + 1))) < 2:  # noqa: ASYNC110 - a database
            await asyncio.sleep(0.01)
    await house.kill()
    house.air.deaf = set()
    await house.lead()
    await house.settled(START + 1)
    row = (await house.runs())["each", START + 1]
    assert (row.state, row.done, row.missed, row.replaced) == ("done", 4, 0, None)
    assert house.air.orders["c0", f"each@{START + 1}"] == 1  # its result was kept
    assert house.air.orders["c3", f"each@{START + 1}"] == 2
    assert max(house.air.did.values()) == 1


async def test_an_open_run_that_cannot_be_read_stops_no_other_one(house: House) -> None:
    await house.add("bad", 1)
    await house.add("each", 1)
    house.air.deaf = {f"c{number}" for number in range(10)}
    await house.lead()
    house.clock.wall += 60
    await until(lambda: len(house.air.orders) >= 4)
    await house.kill()
    with contextlib.closing(sqlite3.connect(house.url.removeprefix("sqlite:///"))) as raw, raw:
        raw.execute("UPDATE muster_fleet_runs SET detail = x'c1' WHERE task = 'bad'")
    house.air.deaf = set()
    await house.lead()
    await house.settled(START + 1)
    runs = await house.runs()
    bad, each = runs["bad", START + 1], runs["each", START + 1]
    assert (bad.state, bad.reason) == ("missed", "the stored run is unreadable")
    assert each.state == "done"


async def test_silent_clients_are_replaced_once_and_the_draw_is_kept(house: House) -> None:
    await house.add("each", 1, pick=4)
    house.air.deaf = {"c0", "c1", "c4"}
    await house.lead()
    house.clock.wall += 60
    await house.settled(START + 1)
    row = (await house.runs())["each", START + 1]
    assert (row.done, row.replaced, row.missed) == (3, ["c0", "c1"], 1)  # c4 was silent too, and nobody came for it
    assert [[client for client, _ in asked] for asked in row.asked] == [["c0", "c1", "c2", "c3"], ["c4", "c5"]]
    assert house.nodes.released == [f"each@{START + 1}"]


async def test_a_run_without_index_nodes_is_missed_and_says_why(house: House) -> None:
    await house.add("each", 1)
    house.nodes.away = True
    await house.lead()
    house.clock.wall += 60
    await house.settled(START + 1)
    row = (await house.runs())["each", START + 1]
    assert (row.state, row.reason) == ("missed", "no index node answers")


WRONG = {
    "customer": "customer = 'gold'",
    "class": "customer = 'Major'",
    "no number": "pick = 'many'",
    "part": "pick = 1.5",
    "negative": "pick = -1",
    "both": "per_hour = 3",
    "neither": "every_minutes = NULL",
    "slip": "slip_ms = 'x'",
    "paused": "paused = 7",
    "selector": "selector = '(('",
    "name": "name = 'a name'",
    "no json": "options = '{'",
    "list": "options = '[1]'",
    "deep": f"options = '{'[' * 2_000}{']' * 2_000}'",
    "large number": "options = '{\"n\": 99999999999999999999999}'",
    "large options": f'options = \'{{"n": "{"x" * 20_000}"}}\'',
    "since": "since_minute = -1",
    "far": "since_minute = 9223372036854775807",
    "kind": f"kind = '{'x' * 65}'",
    "target": f"target = '{'x' * 1_025}'",
    "nul": "target = 'a' || char(0)",
    "bytes": "target = CAST(x'ff' AS TEXT)",
    "blob": "target = x'ff00'",
    "bytes in the name": "name = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_row_that_is_wrong_stops_no_other_task(house: House, wrong: str) -> None:
    await house.add("each", 1)
    await house.add("bad", 1)
    with contextlib.closing(sqlite3.connect(house.url.removeprefix("sqlite:///"))) as raw, raw:
        raw.execute(f"UPDATE muster_fleet_tasks SET {wrong} WHERE name = 'bad'")
    leading = await house.lead()
    house.clock.wall += 60
    await house.settled(START + 1)
    row = await house.store.run("each", START + 1)
    assert row is not None
    assert row.state == "done"
    assert len(leading.refused) == 1
    assert all(leading.refused.values())
    assert [task.name for task in leading.wheel.tasks.values()] == ["each"]
    assert len(await house.store.tasks()) == 2, "it is left"


async def test_more_tasks_than_fit_are_refused_and_the_first_ones_run(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led, "TASKS_MAX", 2)
    for name in ("a", "b", "c", "d"):
        await house.add(name, 1)
    leading = await house.lead()
    assert set(leading.wheel.tasks) == {"a", "b"}
    assert set(leading.refused) == {"c", "d"}


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("kind", "k" * 65, "kind: too long: 65 characters"),
        ("target", "t" * 1_025, "target: too long: 1025 characters"),
        ("kind", "a\0b", "NUL"),
        ("target", "\0", "NUL"),
        ("selector", 'country="a\0"', "NUL"),
    ],
)
async def test_an_instant_run_that_no_database_holds_is_refused(house: House, field: str, text: str, why: str) -> None:
    leading = await house.lead()
    asked = RunNow(**{"kind": "ping", "target": "", "selector": "", "pick": 2, field: text})  # type: ignore[arg-type]
    with pytest.raises(CallError, match=why):
        await leading.instant(asked)
    run, queue = await leading.instant(RunNow("ping", "", "", 2))
    await ended(queue)
    row = await house.store.run(*run)
    assert row is not None
    assert row.state == "done"


async def test_a_run_that_the_database_refuses_is_missed_and_its_clients_are_free(house: House) -> None:
    write = house.store.write

    async def refuses(epoch: int, runs: Any, results: Any, ends: Any = ()) -> list[Unstored]:
        refused = [each for each in runs if each.kind == "bad" and each.state == "running"]
        await write(epoch, [each for each in runs if each not in refused], results)
        return [Unstored(each.name, "", "too large") for each in refused]

    house.store.write = refuses  # type: ignore[method-assign]
    leading = await house.lead()
    bad, queue = await leading.instant(RunNow("bad", "", "", 2))
    good, other = await leading.instant(RunNow("ping", "", "", 2))
    await ended(queue)
    await ended(other)
    missed, done = await house.store.run(*bad), await house.store.run(*good)
    assert missed is not None
    assert done is not None
    assert (missed.state, missed.reason) == ("missed", "the database cannot hold this run: too large")
    assert done.state == "done"
    assert schema.run_name(*bad) in house.nodes.released
    assert not [run for _, run in house.air.orders if run == schema.run_name(*bad)], "no client was asked"
    assert leading.unstored == 1


async def test_a_result_that_the_database_refuses_is_replaced_by_its_reason(house: House) -> None:
    write = house.store.write

    async def refuses(epoch: int, runs: Any, results: Any, ends: Any = ()) -> list[Unstored]:
        bad = [each for each in results if each.client == "c0" and each.ok]
        await write(epoch, runs, [each for each in results if each not in bad])
        return [Unstored((each.task, each.minute), each.client, "too large") for each in bad]

    house.store.write = refuses  # type: ignore[method-assign]
    leading = await house.lead()
    run, queue = await leading.instant(RunNow("ping", "", "", 2))
    await ended(queue)
    results = {each.client: each for each in await house.store.results_of(run)}
    assert (results["c0"].ok, results["c1"].ok) == (False, True)
    assert results["c0"].error == "the database cannot hold this result: too large"


async def test_no_client_is_asked_before_it_is_written(house: House) -> None:
    """Else a lead that dies in between leaves clients at work that nobody knows of."""
    await house.add("each", 1, pick=4)
    house.air.deaf = {"c0"}
    written: set[tuple[str, str]] = set()
    unwritten: list[tuple[str, str]] = []
    write, send = house.store.write, house.air.send

    async def noted(epoch: int, runs: Any, results: Any, ends: Any = ()) -> list[Unstored]:
        unstored = await write(epoch, runs, results, ends)
        for run in runs:
            written.update((client, f"{run.task}@{run.minute}") for asked in run.asked for client, _ in asked)
        return unstored

    def seen(topic: str, payload: bytes, quality: int) -> None:
        order = (topic.split("/")[2], msgspec.json.decode(payload, type=Order).run)
        if order not in written:
            unwritten.append(order)
        send(topic, payload, quality)

    house.store.write, house.air.send = noted, seen  # type: ignore[method-assign]
    await house.lead()
    house.clock.wall += 60
    await house.settled(START + 1)
    assert house.air.orders["c4", f"each@{START + 1}"] == 1  # in place of c0
    assert unwritten == []

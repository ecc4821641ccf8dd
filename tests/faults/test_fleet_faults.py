"""Each process of a fleet is killed, and stands still, under clients and runs: every run is accounted for, none twice.

The long form (`-m soak`) strikes them, the database and ZooKeeper in any order.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from muster_server.control.cluster.instance import find
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.spec import secret
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import Event, Explain, Explained, RunNow
from tests import strikes
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.swarm import Swarm, broker, program, swarm
from tests.faults.test_fleet import FLEET, online
from tests.fleet.mosquitto import needs_mosquitto
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until, until_asked

if TYPE_CHECKING:
    from tests.databases import Database

CLIENTS = 2_000
MANY = FLEET | {"beat_ms": 2_000}
"""1,000 beats a second, which the plane, the broker and the clients share two cores for."""
PICK = 20
AT_ONCE = 4
STRIKES = int(os.environ.get("MUSTERTEST_STRIKES", "60"))
SEED = int(os.environ.get("MUSTERTEST_SEED", "37"))
AWAY_S = (0.5, 6.0)
GOES_ON_S = 20.0
"""5 s are meant, on a machine that does nothing else; the figures say what it took. A busier one gets more."""
STANDS_S = 5.0


class Load:
    """Instant runs, several at once, from the beginning to the end of the context."""

    def __init__(self, instance: Instance) -> None:
        self.ended: list[tuple[float, float, Event]] = []
        """When it began and ended, and its account."""
        self.broken: list[str] = []
        """Runs whose end nobody was told of: their scheduler went."""
        key = key_of(secret(str(instance.folder.cluster_secret), 32))
        self._asking = Asking(lambda: find(instance.folder).processes, key)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(AT_ONCE)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        try:
            await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENT_S)
        finally:
            await self._asking.close()

    async def _ask(self) -> None:
        while not self._over.is_set():
            run, began = "", time.monotonic()
            try:
                async for event in self._asking.follow(RunNow("ping", "t", "country=CN", PICK), Event):
                    run = event.run
                    if event.what == "ended":
                        self.ended.append((began, time.monotonic(), event))
            except CallError:
                if run:
                    self.broken.append(run)
                await asyncio.sleep(0.05)

    async def goes_on(self, since: float) -> float:
        """Wait until a run that began afterwards is whole; seconds since then."""

        def whole() -> list[float]:
            new = [(at, event) for began, at, event in self.ended if began > since]
            return [at for at, event in new if len(event.done) == PICK and not event.replaced and not event.missed]

        await until(whole)
        return whole()[0] - since

    async def explained(self, run: str) -> Explained:
        return await self._asking.lead(Explain(run), Explained)


async def lead(instance: Instance) -> str:
    """The scheduler that leads, once all nodes are there and know each other."""
    found: list[str] = []

    def settled() -> bool:
        try:
            record = instance.record()
            said = {name: instance.status(name) for name in instance.names("scheduler")}
            known = [instance.status(name)["clients"] for name in instance.names("index")]
        except (OSError, AssertionError):
            return False  # one of them begins just now
        found[:] = [name for name, each in said.items() if each["leads"]]
        ready = all(each.ready for each in (*record.processes, *(record.programs or ())))
        nodes = all(len(each["index_nodes"]) == len(known) for each in said.values())
        return ready and nodes and len(found) == 1 and known == [CLIENTS] * len(known)

    await until_asked(settled)
    return found[0]


def pid_of(instance: Instance, name: str) -> int:
    """Of a node or a program."""
    return program(instance, name).pid if name in {"mosquitto", "redis"} else instance.process(name).pid


def pids(instance: Instance) -> set[int]:
    """Of all nodes and programs."""
    record = instance.record()
    return {each.pid for each in (*record.processes, *(record.programs or ()))}


def database(instance: Instance) -> str:
    """The URL of an instance that keeps its runs in a file."""
    return f"sqlite:///{instance.folder.path / 'fleet.db'}"


async def accounted(url: str, clients: Swarm) -> Counter[str]:
    """By outcome. Every client of every run is in one of them, and did nothing twice."""
    from tests.databases import plain

    twice = {what: count for what, count in clients.did().items() if count > 1}
    assert not twice
    counts: Counter[str] = Counter()
    rows: list[Any] = await plain(url, "SELECT task, state, asked, done, replaced, missed FROM muster_fleet_runs")
    stored = Counter(task for (task,) in await plain(url, "SELECT task FROM muster_fleet_results"))
    for task, state, asked, done, replaced, missed in rows:
        assert state in {"done", "missed"}, (task, state)
        assert asked == done + replaced + missed, task
        assert stored[task] == done, task
        counts.update({"runs": 1, "done": done, "replaced": replaced, "missed": missed, "unasked": state == "missed"})
    return counts


async def all_over(url: str) -> None:
    """Until no run is open."""
    from tests.databases import plain

    wanted = "SELECT count(*) FROM muster_fleet_runs WHERE state IN ('due', 'running')"
    async with asyncio.timeout(PATIENT_S):
        while await plain(url, wanted) != [(0,)]:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.2)


@needs_mosquitto
async def test_each_process_is_killed_and_work_goes_on(make: Make, figures: Callable[..., None]) -> None:
    instance = make(fleet=MANY)
    seconds: dict[str, float] = {}
    with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
        async with swarm(instance, CLIENTS) as clients:
            await online(instance, CLIENTS)
            slowness = Slowness(pids(instance))
            async with Load(instance) as load:
                await load.goes_on(time.monotonic())
                for name in ("index", "index-1", "the lead", "the other", "mosquitto", "redis"):
                    leads = await lead(instance)
                    others = [each for each in instance.names("scheduler") if each != leads]
                    struck = {"the lead": leads, "the other": others[0]}.get(name, name)
                    pid = pid_of(instance, struck)
                    since = time.monotonic()
                    strikes.kill(pid)
                    if name == "mosquitto":
                        await until(lambda pid=pid: broker(instance).pid not in {0, pid})  # type: ignore[misc]
                        await until(lambda: clients.connected == CLIENTS)
                    seconds[name] = round(await load.goes_on(since), 2)
                    await until(lambda pid=pid: pid not in pids(instance))  # type: ignore[misc]
                await lead(instance)
            await all_over(database(instance))
            counts = await accounted(database(instance), clients)
            limit = slowness.limit(GOES_ON_S)
            broken = [await _state(database(instance), run) for run in load.broken]
    figures(goes_on_after_s=seconds, **counts)
    assert max(seconds.values()) < limit, (seconds, limit)
    assert set(broken) <= {"done", "missed"}


@needs_mosquitto
async def test_each_process_stands_still_and_work_goes_on(make: Make, figures: Callable[..., None]) -> None:
    instance = make(fleet=MANY)
    seconds: dict[str, float] = {}
    with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
        async with swarm(instance, CLIENTS) as clients:
            await online(instance, CLIENTS)
            slowness = Slowness(pids(instance))
            async with Load(instance) as load:
                await load.goes_on(time.monotonic())
                for name in ("index", "index-1", "the lead", "mosquitto", "redis"):
                    leads = await lead(instance)
                    struck = leads if name == "the lead" else name
                    pid = pid_of(instance, struck)
                    since = time.monotonic()
                    with strikes.standing_still(pid):
                        if name != "mosquitto":
                            seconds[name] = round(await load.goes_on(since), 2)
                        await asyncio.sleep(max(0.0, STANDS_S - time.monotonic() + since))
                    since = time.monotonic()
                    again = round(await load.goes_on(since), 2)
                    seconds.setdefault(name, again)
                await lead(instance)
            await all_over(database(instance))
            counts = await accounted(database(instance), clients)
            limit = slowness.limit(GOES_ON_S)
    figures(goes_on_after_s=seconds, **counts)
    assert max(seconds.values()) < limit, (seconds, limit)


@pytest.mark.soak
@needs_mosquitto
async def test_all_roles_and_services_are_struck_in_any_order(
    make: Make, tmp_path: Path, zookeeper: ZooKeeper, served: "Database", figures: Callable[..., None]
) -> None:
    """`MUSTERTEST_STRIKES` strikes, kill -9 or SIGSTOP, in the order of `MUSTERTEST_SEED`."""
    from tests.databases import PASSWORD, QUOTED

    (tmp_path / "word").write_text(PASSWORD)
    kept = {"url": served.url.replace(f":{QUOTED}@", "@"), "password_file": str(tmp_path / "word")}
    instance = make(fleet=MANY, database=kept, registry={"url": zookeeper.url})
    dice, seconds = Random(SEED), dict[str, list[float]]()
    with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
        async with swarm(instance, CLIENTS, spread_s=3.0) as clients:
            await online(instance, CLIENTS)
            async with Load(instance) as load:
                await load.goes_on(time.monotonic())
                for _ in range(STRIKES):
                    leads = await lead(instance)
                    name = dice.choice(("index", "index-1", "the lead", "mosquitto", "redis", "database", "zookeeper"))
                    killed, away_s = dice.random() < 0.5, dice.uniform(*AWAY_S)
                    if name == "database":
                        await _strike_database(served, killed, away_s)
                    elif name == "zookeeper":
                        await _strike_zookeeper(zookeeper, killed, away_s)
                    else:
                        pid = pid_of(instance, leads if name == "the lead" else name)
                        await _strike(instance, pid, killed, away_s)
                    took = await load.goes_on(time.monotonic())
                    seconds.setdefault(f"{name} {'killed' if killed else 'stood still'}", []).append(round(took, 1))
                    await until(lambda: clients.connected == CLIENTS)
                await lead(instance)
            await all_over(served.url)
            counts = await accounted(served.url, clients)
            broken = [await _state(served.url, run) for run in load.broken]
    figures(goes_on_after_s={name: max(each) for name, each in seconds.items()}, **counts)
    assert set(broken) <= {"done", "missed"}


async def _strike(instance: Instance, pid: int, killed: bool, away_s: float) -> None:
    """A node or a program; `muster up` starts again what is killed."""
    if killed:
        strikes.kill(pid)
        await until_asked(lambda: pid not in pids(instance))
        return
    with strikes.standing_still(pid):
        await asyncio.sleep(away_s)


async def _strike_database(served: "Database", killed: bool, away_s: float) -> None:
    (served.kill if killed else served.stand_still)()
    await asyncio.sleep(away_s)
    await asyncio.to_thread(served.start if killed else served.go_on)


async def _strike_zookeeper(zookeeper: ZooKeeper, killed: bool, away_s: float) -> None:
    if killed:
        await zookeeper.stop()
        await asyncio.sleep(away_s)
        await zookeeper.start()
        return
    with zookeeper.standing_still():
        await asyncio.sleep(away_s)


async def _state(url: str, run: str) -> str:
    """In the store; a run that nobody was asked for may not be there."""
    from tests.databases import plain

    rows = await plain(url, f"SELECT state FROM muster_fleet_runs WHERE task = '{run.partition('@')[0]}'")
    return str(rows[0][0]) if rows else "missed"

"""Each process of a fleet is killed, and stands still, under clients and runs: every run is accounted for, none twice."""

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable

from control.cluster.instance import find
from control.fleet.asking import Asking
from plane.fleet.calls import CallError, key_of
from plane.fleet.questions import Event, Explain, Explained, RunNow
from plane.spec import secret
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.swarm import Swarm, broker, program, swarm
from tests.faults.test_fleet import FLEET, online
from tests.plane.fleet.mosquitto import needs_mosquitto
from tests.waiting import until, until_asked

CLIENTS = 500
PICK = 20
AT_ONCE = 4
GOES_ON_S = 20.0
"""5 s are meant, on a machine that does nothing else; the figures say what it took."""
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
            await asyncio.wait_for(asyncio.gather(*self._tasks), 30)
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

        await until(whole, 60)
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

    await until_asked(settled, 40)
    return found[0]


def pid_of(instance: Instance, name: str) -> int:
    """Of a node or a program."""
    return program(instance, name).pid if name in {"mosquitto", "redis"} else instance.process(name).pid


def pids(instance: Instance) -> set[int]:
    """Of all nodes and programs."""
    record = instance.record()
    return {each.pid for each in (*record.processes, *(record.programs or ()))}


def accounted(instance: Instance, clients: Swarm) -> Counter[str]:
    """By outcome. Every client of every run is in one of them, and did nothing twice."""
    twice = {what: count for what, count in clients.did().items() if count > 1}
    assert not twice
    counts: Counter[str] = Counter()
    with contextlib.closing(sqlite3.connect(instance.folder.path / "fleet.db")) as database:
        rows = database.execute("SELECT task, state, asked, done, replaced, missed FROM muster_fleet_runs").fetchall()
        stored = Counter(task for (task,) in database.execute("SELECT task FROM muster_fleet_results"))
    for task, state, asked, done, replaced, missed in rows:
        assert state in {"done", "missed"}, (task, state)
        assert asked == done + replaced + missed, task
        assert stored[task] == done, task
        counts.update({"runs": 1, "done": done, "replaced": replaced, "missed": missed, "unasked": state == "missed"})
    return counts


async def all_over(instance: Instance) -> None:
    """Until no run is open."""

    def over() -> bool:
        with contextlib.closing(sqlite3.connect(instance.folder.path / "fleet.db")) as database:
            wanted = "SELECT count(*) FROM muster_fleet_runs WHERE state IN ('due', 'running')"
            return bool(database.execute(wanted).fetchone() == (0,))

    await until(over, 40)


@needs_mosquitto
async def test_each_process_is_killed_and_work_goes_on(make: Make, figures: Callable[..., None]) -> None:
    instance = make(fleet=FLEET)
    seconds: dict[str, float] = {}
    with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
        async with swarm(instance, CLIENTS) as clients:
            await online(instance, CLIENTS)
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
                        await until(lambda pid=pid: broker(instance).pid not in {0, pid}, 20)  # type: ignore[misc]
                        await until(lambda: clients.connected == CLIENTS, 30)
                    seconds[name] = round(await load.goes_on(since), 2)
                    await until(lambda pid=pid: pid not in pids(instance), 20)  # type: ignore[misc]
                await lead(instance)
            await all_over(instance)
            counts = accounted(instance, clients)
            broken = [await _state(instance, run) for run in load.broken]
    figures(goes_on_after_s=seconds, **counts)
    assert max(seconds.values()) < GOES_ON_S, seconds
    assert set(broken) <= {"done", "missed"}


@needs_mosquitto
async def test_each_process_stands_still_and_work_goes_on(make: Make, figures: Callable[..., None]) -> None:
    instance = make(fleet=FLEET)
    seconds: dict[str, float] = {}
    with instance.running("--with", "fleet", "--index", "2", "--schedulers", "2"):
        async with swarm(instance, CLIENTS) as clients:
            await online(instance, CLIENTS)
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
            await all_over(instance)
            counts = accounted(instance, clients)
    figures(goes_on_after_s=seconds, **counts)
    assert max(seconds.values()) < GOES_ON_S, seconds


async def _state(instance: Instance, run: str) -> str:
    """In the store; a run that nobody was asked for may not be there."""
    task = run.partition("@")[0]
    with contextlib.closing(sqlite3.connect(instance.folder.path / "fleet.db")) as database:
        row = database.execute("SELECT state FROM muster_fleet_runs WHERE task = ?", (task,)).fetchone()
    return "missed" if row is None else str(row[0])

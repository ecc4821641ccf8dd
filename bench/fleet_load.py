"""A whole fleet on this machine: so many real MQTT sessions from one process, and 1,000 tasks a minute with results.

At the end the broker is killed under all of them: how its clients come back, and whether the index lost one.

Owns the instance (`muster up --with fleet`) and its clients, which are those that users have (`muster.fleet.Agent`). CPU is
stated of each process apart, the broker's too, since on other machines it would be another's. The harness shares the
machine with what it measures: rates are what both together hold.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import cpu, whole
from bench.child import ChildFailedError, private_directory, python_environment
from bench.null.sockets import allow_files
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave
from muster.fleet import Agent
from muster_server.control.cluster import instance as folders
from muster_server.control.cluster.instance import Folder, Record
from muster_server.control.terminal import common
from muster_server.plane.calls import key_of
from muster_server.plane.spec import secret
from muster_server.systems.fleet.asking import asking
from muster_server.systems.fleet.broker import NAME, enroll
from muster_server.systems.fleet.questions import Event, RunNow

CLIENTS: Final = 19_900
"""What the usual limit of 20,000 open files leaves, which mosquitto and the harness each have."""
CLIENTS_QUICK: Final = 2_000
TASKS: Final = 1_000
RUNS_QUICK: Final = 100
RATE_QUICK: Final = 10.0
"""Instant runs a second: a quick run waits for no minute."""
PICK: Final = 100
MINUTES: Final = 2
ONLINE_BOUND_S: Final = 60.0
START_S: Final = 60.0
LOOK_S: Final = 0.2
CONNECT_AT_ONCE: Final = 200
AFTER_S: Final = 105.0
"""A minute's slip, the time for a result, and more: the last runs are over, also those of a minute that had begun when
the tasks were paused."""
SPREAD_S: Final = 20.0
"""Over which clients come back when they lose their broker: about 1,000 a second."""
BACK_S: Final = 600.0
AFTER_BACK_S: Final = 25.0
"""More than the shortened lease of a client whose connection ended (`fleet.hint_ms`)."""

ONLINE, ALL, LOST = "all online, s", "results of orders", "clients missed or replaced"
LATE: Final = "runs missed"
BACK, MOST, GONE = (
    "broker killed: all back, s",
    "broker killed: most connects in a second",
    "broker killed: clients lost",
)


def run(*, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """One run, since it takes minutes. Raises `ChildFailedError`."""
    clients = CLIENTS_QUICK if quick else CLIENTS
    what = f"{RUNS_QUICK:,} instant runs" if quick else f"{TASKS:,} tasks a minute"
    name = f"{clients:,} clients, {what} of {PICK}"
    results = interleave([Entry(name, lambda: Sample(once(clients, quick=quick)))], 1, progress)
    goals = {
        ONLINE: Goal("PF-18", "<=", ONLINE_BOUND_S),
        ALL: Goal("PF-18", ">=", 1.0),
        LATE: Goal("PF-18", "<=", 0.0),
        GONE: Goal("PF-18", "<=", 0.0),
    }
    return tuple(Case.judged(results, name, name, goals, quick=quick))


def once(clients: int, *, quick: bool) -> dict[str, float]:
    """The figures of one run."""
    allow_files(clients + 90)  # sockets, pipes and files of its own
    with private_directory("fleet") as place, whole.running(Path(place), "fleet") as folder:
        return uvloop.run(_measured(folder, clients, quick))


async def _measured(folder: Folder, count: int, quick: bool) -> dict[str, float]:
    record = folders.find(folder)
    broker = next(each for each in record.programs or () if each.name == NAME)
    pids = {"broker": broker.pid, "harness": os.getpid()}
    pids |= {role: record.of(role)[0].pid for role in ("index", "scheduler")}
    names = [f"c{number}" for number in range(count)]
    words = enroll(folder.program(NAME), names)
    os.kill(broker.pid, signal.SIGHUP)
    await asyncio.sleep(2.0)  # it reads them
    memory = {who: cpu.rss_bytes(pid) for who, pid in pids.items()}
    url = f"mqtt://{broker.bind[0]}:{broker.bind[1]}"
    agents = [_agent(url, name, words[name], number) for number, name in enumerate(names)]
    began = time.monotonic()
    running: list[asyncio.Task[None]] = []
    try:
        for number, agent in enumerate(agents):
            running.append(asyncio.create_task(agent.run()))
            if number % CONNECT_AT_ONCE == CONNECT_AT_ONCE - 1:  # the broker's backlog has no more
                await _connected(agents[number + 1 - CONNECT_AT_ONCE : number + 1], running[-CONNECT_AT_ONCE:])
        await _connected(agents, running)
        await _known(record, count)
        online_s = time.monotonic() - began
        grown = {who: (cpu.rss_bytes(pid) - memory[who]) / count / 1024 for who, pid in pids.items()}
        before = {who: cpu.process_ns(pid) for who, pid in pids.items()}
        since = time.monotonic()
        wanted = RUNS_QUICK if quick else TASKS * MINUTES
        counts = await (_instant(folder) if quick else _worked(folder))
        lasted = time.monotonic() - since
        used = {who: cpu.process_ns(pid) - before[who] for who, pid in pids.items()}
        back = await _broker_killed(folder, agents, running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    asked = counts["asked"]
    figures = {
        ONLINE: online_s,
        "clients asked": asked,
        ALL: counts["done"] / asked if asked else 0.0,
        LOST: counts["missed"] + counts["replaced"],
        LATE: counts["unasked"] + max(0, wanted - counts["runs"]),
    }
    for who in pids:
        figures[f"{who}: kB a client"] = grown[who]
        figures[f"{who}: µs CPU an order with its result"] = used[who] / 1000 / asked if asked else 0.0
        figures[f"{who}: share of a core"] = used[who] / 1e9 / lasted
    return figures | back


async def _broker_killed(folder: Folder, agents: list["Timed"], running: list[asyncio.Task[None]]) -> dict[str, float]:
    """kill -9, and the way back of all clients to the one that `muster up` starts anew."""
    record = folders.find(folder)
    went = await _went(record)
    began = time.monotonic()
    os.kill(next(each for each in record.programs or () if each.name == NAME).pid, signal.SIGKILL)
    while any(agent.connects[-1] < began for agent in agents):  # noqa: ASYNC110 - until they see it
        await asyncio.sleep(LOOK_S)
    await _connected(agents, running, BACK_S)
    back_s = time.monotonic() - began
    seconds = Counter(int(agent.connects[-1] - began) for agent in agents)
    await asyncio.sleep(AFTER_BACK_S)
    await _known(record, len(agents))
    return {BACK: back_s, MOST: max(seconds.values()), GONE: await _went(record) - went}


async def _went(record: Record) -> float:
    """Clients whose leases ended so far."""
    (node,) = record.of("index")
    _, page = await asyncio.to_thread(common.fetch, node, "/metrics")
    found = re.search(rb"^muster_fleet_clients_went_total(?:{[^}]*})? (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def _connected(
    agents: Sequence["Timed"], running: Sequence[asyncio.Task[None]], seconds: float = 2 * ONLINE_BOUND_S
) -> None:
    deadline = time.monotonic() + seconds
    while not all(agent.connected for agent in agents):
        for task in running:
            if task.done() and (error := task.exception()) is not None:
                raise ChildFailedError(f"a client ended: {error}") from None
        if time.monotonic() > deadline:
            raise ChildFailedError(f"{sum(agent.connected for agent in agents)} of {len(agents)} clients connected")
        await asyncio.sleep(0.01 if len(agents) <= CONNECT_AT_ONCE else LOOK_S)


async def _known(record: Record, count: int) -> None:
    """Until the index knows them all."""
    (node,) = record.of("index")
    while (await asyncio.to_thread(common.get, node, "/api/v1/status"))[1]["clients"] < count:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)


async def _instant(folder: Folder) -> dict[str, int]:
    """Begin instant runs at their rate; return what came of them."""
    key = key_of(secret(str(folder.cluster_secret), 32))
    async with asking(lambda: folders.find(folder).processes, key) as opened:

        async def one(number: int) -> None:
            await asyncio.sleep(number / RATE_QUICK)
            async for _ in opened.follow(RunNow("ping", "t", "", PICK), Event):
                pass

        await asyncio.gather(*(one(number) for number in range(RUNS_QUICK)))
    return _counts(folder.path / "fleet.db")


async def _worked(folder: Folder) -> dict[str, int]:
    """So many tasks each minute for some minutes; what came of them."""
    file = folder.path / "fleet.db"
    first = int(time.time() // 60) + 1
    rows = [("muster", f"task-{number}", "ping", "t", "", 1, PICK, 59_000, first) for number in range(TASKS)]
    columns = "instance, name, kind, target, selector, every_minutes, pick, slip_ms, since_minute"
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        database.executemany(f"INSERT INTO muster_fleet_tasks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    await _refresh(folder)
    await asyncio.sleep(max(0.0, (first + MINUTES) * 60 - 0.5 - time.time()))
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        database.execute("UPDATE muster_fleet_tasks SET paused = 1")
        database.commit()
    await _refresh(folder)
    deadline = time.monotonic() + AFTER_S
    while time.monotonic() < deadline and _counts(file)["open"]:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(1.0)
    return _counts(file)


def _counts(file: Path) -> dict[str, int]:
    wanted = (
        "SELECT count(*), sum(asked), sum(done), sum(replaced), sum(missed), sum(state = 'missed'), "
        "sum(state IN ('due', 'running')) FROM muster_fleet_runs"
    )
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        row = database.execute(wanted).fetchone()
    names = ("runs", "asked", "done", "replaced", "missed", "unasked", "open")
    return {name: int(value or 0) for name, value in zip(names, row, strict=True)}


async def _refresh(folder: Folder) -> None:
    environment = python_environment() | {"MUSTER_INSTANCE__DIR": str(folder.path)}
    command = [sys.executable, "-m", "muster_server", "fleet", "refresh", "--json"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise ChildFailedError(f"muster fleet refresh: {json.loads(said or b'{}')}")


class Timed(Agent):
    """Remembers when it connected."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.connects: list[float] = []
        super().__init__(*words, **more)

    async def _serve(self) -> None:
        self.connects.append(float("inf"))  # not yet
        await super()._serve()

    def _beat_soon(self, part: float = 1.0) -> None:
        if self.connected and self.connects[-1] == float("inf"):
            self.connects[-1] = time.monotonic()
        super()._beat_soon(part)


def _agent(url: str, name: str, word: str, number: int) -> Timed:
    attributes = {"country": ["CN"], "province": [str(520_000 + number % 30)], "carrier": [str(number % 3)]}
    agent = Timed(url, name, word, attributes, spread_s=SPREAD_S)
    agent.task("ping")(_ping)
    return agent


async def _ping(target: str, options: dict[str, Any]) -> dict[str, float]:
    return {"ms": 12.5}

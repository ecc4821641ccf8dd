"""Time until messages flow again after a node dies or stands still: one of two of each role, under a steady load.

Real processes of `muster up` run: two gateways, two brokers and two routers of one partition, two proxies. Small rooms
get a message every 40 ms on a fixed schedule. Meanwhile a node is killed (kill -9; `muster up` restarts it) or stopped
(SIGSTOP, until the end of the run).

*Served again* is the time from the fault until every member of every room has had a message published after it.
*Longest silence* is the longest pause of any member from the fault to the end of the run, so the node's return is
included. No message goes through a router: it serves joins. So its runs judge empty rooms, from the fault to the first
message at each member, which connects meanwhile.

All publishers use one proxy, so that one fails; of the other roles the two nodes take turns. All servers share one
core, also with a process that restarts.
"""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench import asked
from bench.muster import LIVE, PATIENCE_SECONDS, Instance
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.control.cluster.instance import Process

ROUNDS, ROUNDS_QUICK = 10, 3
NODES: Final[dict[str, object]] = {"up.gateways": 2, "up.brokers": "1x2", "up.routers": "1x2", "up.proxies": 2}
ROLES = ("gateway", "broker", "router", "proxy")
FAULTS: Final = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
ROOMS, ROOM_MEMBERS, RATE = 40, 5, 1_000.0
NEW_ROOMS, NEW_MEMBERS, NEW_RATE = 10, 20, 100.0
BEFORE_SECONDS = 0.5
WATCH_AFTER_SECONDS = 0.02  # a message this long after the fault was certainly published after it
AWAY_MS = 250.0
BACK_MS_MAX = 1_500.0
LATE_MS_MAX = 50.0  # a generator that is later than this lacks CPU, and so do the servers

BACK, SILENCE, AWAY, AWAY_P50 = "served again, ms", "longest silence, ms", "places that waited", "of these p50, ms"
NEW_ROOM, UNSERVED, CORRUPTED = "new rooms served, ms", "places never served again", "corrupted"
MISSED, LATE = "deliveries missed", "driver late p99 ms"


@dataclass(frozen=True)
class Lasts:
    """Seconds before the fault: members must learn how often they hear of their gateway, as they ask after twice
    that."""

    warm_up: float
    after: float


FULL: Final = Lasts(5.0, 5.0)
QUICK: Final = Lasts(2.5, 2.5)


@dataclass(frozen=True)
class Sighting:
    """The time of the fault, and the end of the time in which new rooms were served."""

    at: float
    new_rooms_ms: float


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """One instance, with all nodes back before each fault."""
    lasts = QUICK if quick else FULL
    instance = Instance(settings=NODES)
    try:
        instance.start()
        turns = itertools.count()

        def entry(role: str, fault: str) -> Entry:
            def once() -> Sample:
                sample = _once(instance, role, fault, next(turns), lasts, payload_bytes)
                return sample if quick else _on_time(sample)

            return Entry(_name(role, fault), once)

        kinds = [(role, fault) for role in ROLES for fault in FAULTS]
        results = interleave([entry(role, fault) for role, fault in kinds], rounds, progress)
    finally:
        instance.stop()
    return tuple(case for role, fault in kinds for case in _cases(results, role, fault, quick=quick))


def _name(role: str, fault: str) -> str:
    return f"{role}, {fault}"


def _on_time(sample: Sample) -> Sample:
    """Void if the generator was late. A message that never came is reported in any case."""
    late, wrong = sample.figures[LATE], sample.figures[UNSERVED] or sample.figures[CORRUPTED]
    too_late = f"messages left {late:.0f} ms late" if late > LATE_MS_MAX and not wrong else ""
    return Sample(sample.figures, sample.void or too_late)


def _once(instance: Instance, role: str, fault: str, turn: int, lasts: Lasts, payload_bytes: int) -> Sample:
    asked.until_whole(instance.look)
    rooms = [instance.room(LIVE) for _ in range(ROOMS)]
    with (
        instance.clients(ROOMS * ROOM_MEMBERS, rooms=rooms) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        engine.pace(payload_bytes, RATE, lasts.warm_up, PATIENCE_SECONDS)
        victim = _victim(instance, role, turn)
        at = time.monotonic() + BEFORE_SECONDS
        watched = at + WATCH_AFTER_SECONDS
        engine.watch(watched)
        breaking = pool.submit(_break, instance, victim, fault, at, payload_bytes)
        try:
            done = engine.pace(payload_bytes, RATE, BEFORE_SECONDS + lasts.after, PATIENCE_SECONDS)
            seen = breaking.result()
        finally:
            if FAULTS[fault] == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
        first, silence = (np.frombuffer(times, dtype="<u4")[: ROOMS * ROOM_MEMBERS] for times in engine.heard())
    since_ms = (watched - seen.at) * 1000
    came = first[first < np.iinfo(np.uint32).max] / 1000 + since_ms
    away = came[came > AWAY_MS]
    unserved = len(first) - len(came)
    figures = {
        BACK: float("inf") if unserved else float(came.max()),
        SILENCE: float(silence.max()) / 1000 + since_ms,
        AWAY: float(len(away)),
        AWAY_P50: float(np.median(away)) if len(away) else 0.0,
        UNSERVED: float(unserved),
        CORRUPTED: float(done["corrupted"]),
        MISSED: float(max(0, done["published"] * ROOM_MEMBERS - done["delivered"])),
        LATE: done["late_p99_us"] / 1000,
    }
    if role == "router":
        figures[NEW_ROOM] = seen.new_rooms_ms
    return Sample(figures, "" if since_ms > 0 else "the fault came too late")


def _break(instance: Instance, victim: Process, fault: str, at: float, payload_bytes: int) -> Sighting:
    """Waits for the time, and for the first messages in new rooms if the fault is a router's."""
    time.sleep(max(0.0, at - time.monotonic()))
    os.kill(victim.pid, FAULTS[fault])
    at = time.monotonic()
    if victim.role != "router":
        return Sighting(at, 0.0)
    rooms = [instance.room(LIVE) for _ in range(NEW_ROOMS)]
    with instance.clients(NEW_MEMBERS, rooms=rooms) as engine:
        engine.watch(at)
        engine.pace(payload_bytes, NEW_RATE, 2 * NEW_ROOMS / NEW_RATE, PATIENCE_SECONDS)
        first = np.frombuffer(engine.heard()[0], dtype="<u4")
    most = int(first.max())
    return Sighting(at, float("inf") if most == np.iinfo(np.uint32).max else most / 1000)


def _victim(instance: Instance, role: str, turn: int) -> Process:
    """Returns the publishers' proxy; of other roles, each node in turn."""
    nodes = [process for process in instance.look().processes if process.role == role]
    if role == "proxy":
        return max(nodes, key=lambda node: asked.metrics(node)["muster_sessions"])
    return nodes[turn % len(nodes)]


def _cases(results: Results, role: str, fault: str, *, quick: bool) -> Iterator[Case]:
    name = _name(role, fault)
    judged = NEW_ROOM if role == "router" else BACK
    goal, never = Goal("failover", "<=", BACK_MS_MAX), Goal("failover", "<=", 0.0)
    for figure in results.figures(name):
        series = results.series(name, figure)
        if figure in (UNSERVED, CORRUPTED):
            yield Case.worst(f"{name}: {figure}", series, never, quick=quick)
        elif figure == judged:
            yield Case.limit(f"{name}: {figure}", series, goal, quick=quick)
            yield Case.worst(f"{name}: {figure}", series, goal, quick=quick)
        else:
            yield Case.plain(f"{name}: {figure}", series)

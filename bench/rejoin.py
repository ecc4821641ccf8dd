"""All members of a dead gateway come back to the other one at once: the time it takes, and that gateway's load.

There are two gateways. One has all 20,000 members, each with a socket, in several processes on the driver core. Their
rooms of a hundred have a message every 2 s each. The gateway is killed (kill -9) while its supervisor stands still, so
it stays dead. All members must find out, knock, authenticate, and join with their positions at the other one. A member
is *back* when it has a message published after the death.

The members have just joined, so they do not know yet how often they hear of their gateway, and all ask after the same
keepalive of 15 s. 128 of each process knock at a time, together as many as the gateway lets wait. One core plays all
members, and their own part of a handshake is not the gateway's cost.

The gateway answers at most four handshakes each time it looks at its sockets, and from one network at most 1,000 a
second after the first 2,000. The bench reads its counters five times a second and judges the largest number of
handshakes per look. An unanswered hello is repeated, so there may be more handshakes than members.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bench import asked, cpu
from bench.listeners import Listeners
from bench.muster import GATEWAY, KEEPALIVES, LIVE, Instance, reach
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave
from muster_server._engines import LoadEngine
from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError

SETTINGS: Final[dict[str, object]] = {
    **KEEPALIVES,
    "up.gateways": 2,
    "registry.url": "none",  # without one the supervisor may stand still
}
MEMBERS, MEMBERS_QUICK = 20_000, 2_000
ROOM_MEMBERS, ROOM_RATE = 100, 0.5
KNOCKING = 128  # in each process; the gateway lets 256 wait
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.2
BACK_SECONDS_MAX = 60.0
HANDSHAKES_A_LOOK = 4.0
LATE_MS_MAX = 50.0

NAME = "rejoin"
BACK, HALF, AWAY, PER_LOOK = "all back, s", "half back, s", "never back", "handshakes for a look at the sockets, most"
LATE = "driver late p99 ms"


@dataclass
class Looks:
    """A gateway's counters and CPU, reading by reading."""

    node: Process
    at: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)

    def look(self) -> None:
        try:
            figures = asked.metrics(self.node)
        except UserError:
            return  # too busy: the next reading covers this one
        self.at.append(time.monotonic())
        self.cpu_s.append(cpu.process_ns(self.node.pid) / 1e9)
        self.metrics.append(figures)

    def grown(self, name: str) -> float:
        return self.metrics[-1][name] - self.metrics[0][name]

    def most(self, what: list[float], per: list[float]) -> float:
        """Largest growth of one counter per growth of another, between two readings."""
        grown = zip(np.diff(what), np.diff(per), strict=True)
        return max((float(one / other) for one, other in grown if other), default=0.0)

    def counted(self, name: str) -> list[float]:
        return [figures[name] for figures in self.metrics]


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Each round has new members, and the gateways take turns to die."""
    members = MEMBERS_QUICK if quick else MEMBERS
    turns = itertools.count()
    with ExitStack() as stack:
        instance = Instance(settings=SETTINGS)
        stack.callback(instance.stop)
        instance.start()

        def once() -> Sample:
            sample = _once(instance, next(turns), members, payload_bytes)
            return sample if quick else _on_time(sample)

        results = interleave([Entry(NAME, once)], rounds, progress)
    goals = {
        BACK: Goal(NAME, "<=", BACK_SECONDS_MAX),
        AWAY: Goal(NAME, "<=", 0.0),
        PER_LOOK: Goal(NAME, "<=", HANDSHAKES_A_LOOK),
    }
    return tuple(Case.judged(results, NAME, f"{members:,} members of a gateway that dies", goals, quick=quick))


def _on_time(sample: Sample) -> Sample:
    """Void if the publisher was late. A member that never came back is reported in any case."""
    late, away = sample.figures[LATE], sample.figures[AWAY]
    return Sample(sample.figures, f"messages left {late:.0f} ms late" if late > LATE_MS_MAX and not away else "")


def _once(instance: Instance, turn: int, members: int, payload_bytes: int) -> Sample:
    asked.until_whole(instance.look)
    record = instance.look()
    rooms = [instance.room(LIVE) for _ in range(max(1, members // ROOM_MEMBERS))]
    ends = reach(record.gateways)
    nodes = [process for process in record.processes if process.role == GATEWAY]
    dying, staying = turn % 2, 1 - turn % 2
    began = time.monotonic()
    with (
        instance.listeners(
            members, rooms=rooms, payload_bytes=payload_bytes, gateways=[ends[dying]], storm=KNOCKING
        ) as listeners,
        instance.clients(1, rooms=rooms, gateways=[ends[staying]]) as engine,
        _watching(nodes[staying]) as looks,
        _left_dead(record.pid),
    ):
        joined = time.monotonic() - began
        listeners.redirect(ends)
        engine.pace(payload_bytes, ROOM_RATE * len(rooms), 2.0, 0.0)  # they know how often they hear of it
        lost = listeners.sums()["sessions_lost"]
        os.kill(nodes[dying].pid, signal.SIGKILL)
        at = time.monotonic()
        listeners.watch(at)
        late_ms = _publish(engine, listeners, payload_bytes, ROOM_RATE * len(rooms), at)
        waited, sums = listeners.waited(), listeners.sums()
    back = waited[np.isfinite(waited)]
    half, most = np.percentile(back, (50, 99)) if len(back) else (np.inf, np.inf)
    accepted, looked = (looks.counted(f"muster_{name}_total") for name in ("handshakes_accepted", "looks"))
    figures = {
        BACK: float(waited.max()),
        "first back, s": float(waited.min()),
        HALF: half,
        "99 of 100 back, s": most,
        AWAY: float(len(waited) - len(back)),
        PER_LOOK: looks.most(accepted, looked),
        "handshakes a second, most": looks.most(accepted, looks.at),
        "handshakes": looks.grown("muster_handshakes_accepted_total"),
        "hellos dropped: too many of a network": looks.grown("muster_dropped_hello_rate_total"),
        "hellos dropped: too many wait": looks.grown("muster_dropped_hello_busy_total"),
        "sessions lost and lost again": float(sums["sessions_lost"] - lost),
        "gateway busy until then, %": 100 * _busy(looks, at + float(back.max(initial=0.0))),
        "gateway busy, most, %": 100 * looks.most(looks.cpu_s, looks.at),
        "joined before, s": joined,
        LATE: late_ms,
    }
    return Sample({name: float(value) for name, value in figures.items()})


def _publish(engine: LoadEngine, listeners: Listeners, payload_bytes: int, rate: float, at: float) -> float:
    """Publish to all rooms in turn until everybody is back. Returns the lateness of the publishes."""
    late_ms = 0.0
    while time.monotonic() < at + PATIENCE_SECONDS:
        done = engine.pace(payload_bytes, rate, 1.0, 0.0, shed=True)
        late_ms = max(late_ms, done["late_p99_us"] / 1000)
        if np.isfinite(listeners.waited()).all():
            break
    return late_ms


def _busy(looks: Looks, until: float) -> float:
    """Share of a core, over the readings until then."""
    last = max(1, int(np.searchsorted(looks.at, until)))
    last = min(last, len(looks.at) - 1)
    return (looks.cpu_s[last] - looks.cpu_s[0]) / (looks.at[last] - looks.at[0])


@contextmanager
def _watching(node: Process) -> Iterator[Looks]:
    """Reads it five times a second."""
    looks, stop = Looks(node), threading.Event()
    looks.look()

    def work() -> None:
        while not stop.wait(LOOK_SECONDS):
            looks.look()
        looks.look()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield looks
    finally:
        stop.set()
        thread.join()


@contextmanager
def _left_dead(supervisor: int) -> Iterator[None]:
    """No node is restarted inside."""
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)

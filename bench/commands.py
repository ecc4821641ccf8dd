"""Reliable commands of thousands of users over lossy links: each delivered once or reported, and the time it takes.

Real servers run: two gateways, brokers 2x2, routers 1x2, three proxies. Their drivers lose datagrams on every link and
in both directions of every client's sessions. So each of a command's three copies crosses eight lossy hops with its
answer, by different proxies. A second run has no copies: each client knows one proxy.

Every user is a member of a room of five and sends commands to other users' rooms, one in fifty to an empty room. A
command is *silent* if no answer ever comes. It is *late* if the answer comes after its time and the protocol's extra
second. It is *doubled* if a member reads it twice, and *missed* for every member that did not read a command reported
as delivered.

Latency counts from the intended time of an open schedule to the answer. Only refused commands are left out, and
counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.child import ChildFailedError
from bench.muster import LIVE, Instance
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave

NODES: Final[dict[str, object]] = {"up.gateways": 2, "up.brokers": "2x2", "up.routers": "1x2", "up.proxies": 3}
USERS, USERS_QUICK = 5_000, 1_000
EACH, EACH_QUICK = 20, 5
EVERY_SECONDS, EVERY_SECONDS_QUICK = 10.0, 2.0  # the load that servers on one core can carry
EXPIRES_SECONDS = 5.0
ROOM_MEMBERS = 5
VACANT = 50  # one command in this many goes to an empty room
P99_MS_MAX = 300.0
LATE_MS_MAX = 50.0  # a generator that is later than this lacks CPU, and so do its servers

LATE = "driver late p99 ms"
ANSWERS = ("delivered", "no_member", "expired", "refused")
FAULTS = ("silent", "late", "doubled", "missed", "strays")
JUDGED = frozenset({"silent", "doubled", "missed", "strays"})


@dataclass(frozen=True)
class Weather:
    """The loss that the servers' drivers inject, and the number of proxies that each client knows (else all)."""

    name: str
    loss: float
    burst: float = 1.0
    proxies_each: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        return {"faults.loss": self.loss, "faults.burst": self.burst} if self.loss else {}


CALM = Weather("no loss", 0.0)
LOSSY = Weather("1 % loss", 0.01)
BURSTS = Weather("5 % loss in bursts of 4", 0.05, 4.0)
LOSSY_ALONE = Weather("1 % loss, one copy each", 0.01, proxies_each=1)
WEATHERS, WEATHERS_QUICK = (CALM, LOSSY, LOSSY_ALONE, BURSTS), (LOSSY, LOSSY_ALONE, BURSTS)


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """One instance per run."""
    weathers = WEATHERS_QUICK if quick else WEATHERS
    users, each = (USERS_QUICK, EACH_QUICK) if quick else (USERS, EACH)
    every = EVERY_SECONDS_QUICK if quick else EVERY_SECONDS
    entries = [_entry(weather, users, each, every, payload_bytes) for weather in weathers]
    results = interleave(entries if quick else [_on_time(entry) for entry in entries], rounds, progress)
    return tuple(case for weather in weathers for case in _cases(results, weather, users * each, quick=quick))


def _entry(weather: Weather, users: int, each: int, every: float, payload_bytes: int) -> Entry:
    return Entry(weather.name, lambda: _once(weather, users, each, every, payload_bytes))


def _on_time(entry: Entry) -> Entry:
    """Void if the generator was late. Errors that no machine's load excuses are reported in any case."""

    def once() -> Sample:
        sample = entry.run()
        late, wrong = sample.figures[LATE], any(sample.figures[name] for name in JUDGED)
        return Sample(sample.figures, f"commands left {late:.0f} ms late" if late > LATE_MS_MAX and not wrong else "")

    return Entry(entry.name, once)


def _once(weather: Weather, users: int, each: int, every: float, payload_bytes: int) -> Sample:
    instance = Instance(settings={**NODES, **weather.settings})
    try:
        instance.start()
        rooms = [instance.room(LIVE) for _ in range(max(1, users // ROOM_MEMBERS))]
        with instance.clients(users, rooms=rooms, commanding=True, proxies_each=weather.proxies_each) as engine:
            before, lost_before = instance.cpu_ns(), engine.sessions_lost()
            done = engine.command(each, every, EXPIRES_SECONDS, payload_bytes, VACANT)
            used = {role: ns - before[role] for role, ns in instance.cpu_ns().items()}
            lost = engine.sessions_lost() - lost_before
    finally:
        instance.stop()
    answered = sum(done[kind] for kind in ANSWERS)
    if answered + done["silent"] != done["sent"] or done["sent"] != users * each:
        raise ChildFailedError(f"muster: of {users * each} commands the account has {answered} and {done['silent']}")
    times = np.frombuffer(done["latencies_us"], dtype="<u4") / 1000
    p50, p90, p99, most = np.percentile(times, (50, 90, 99, 100)) if len(times) else [float("inf")] * 4
    figures = {"p50 ms": p50, "p90 ms": p90, "p99 ms": p99, "max ms": most}
    figures |= {kind: done[kind] for kind in (*ANSWERS, *FAULTS, "away", "miscounted", "expired_told")}
    figures |= {f"{role} CPU µs per command": ns / 1000 / done["sent"] for role, ns in used.items()}
    figures |= {"sessions lost": lost, LATE: done["late_p99_us"] / 1000}
    figures["commands/s"] = done["sent"] / max(done["wall_us"], 1) * 1e6
    return Sample({name: float(value) for name, value in figures.items()})


def _cases(results: Results, weather: Weather, count: int, *, quick: bool) -> Iterator[Case]:
    words = {
        "no_member": "no member",
        "strays": "told though refused or never sent",
        "missed": "delivered and missed",
        "away": "missed by who lost their session",
        "miscounted": "members told more or fewer than counted",
        "expired_told": "expired, and all had it",
    }
    goals = {name: Goal("commands", "<=", 0.0) for name in JUDGED}
    if weather == LOSSY and not quick:
        goals["p99 ms"] = Goal("commands", "<=", P99_MS_MAX)
    for figure in results.figures(weather.name):
        series = results.series(weather.name, figure)
        title = f"{count:,} commands, {weather.name}: {words.get(figure, figure)}"
        if figure in JUDGED:  # in every round, not in most
            yield Case.worst(title, series, goals[figure], quick=quick)
        elif goal := goals.get(figure):
            yield Case.limit(title, series, goal, quick=quick)
        else:
            yield Case.plain(title, series)

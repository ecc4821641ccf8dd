"""The effect of a hot room, and of slow or stopped members, on the delivery times of everybody else.

*Hot*: one room of 100,000 members, in processes of their own with a hundred per socket, beside a thousand rooms of
three with a message a second each. A round measures the quiet rooms alone, then beside a rate that the hot room's
gateway can carry, then beside far more. *Still*: a member of a live room of a hundred, in a process of its own, is
stopped for 10 s (SIGSTOP). *Slow*: one program reads at a tenth of the room's rate, beside a hundred members there and
a hundred in another room. *Untold* are messages that a member neither had nor was told as lost.

The gateway has the server core; everything else shares the driver core. Listeners run there only when nothing else
wants to, so the times are those of the servers (as root; without it the order is not strict). Listeners that cannot
keep up lose their sessions and open others: reported, and no reason to repeat the run.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from bench import cpu, pin
from bench.listeners import Listeners, Publishing, Sums
from bench.muster import GATEWAY, JOIN_SECONDS, KEEPALIVES, LIVE, PATIENCE_SECONDS, Instance, Outcome, latency
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave
from bench.slow import slow_member
from bench.targets import LATE_US_MAX
from muster_server._engines import LoadEngine

ROOMS, ROOM_MEMBERS, QUIET_RATE = 1_000, 3, 1_000.0
HOT, HOT_QUICK = 100_000, 5_000
HOT_EACH = 100  # members per socket
CARRIED, BEYOND = 50_000.0, 1_000_000.0  # deliveries a second of the hot room
HOT_SECONDS, HOT_SECONDS_QUICK = 20.0, 4.0
STILL_MEMBERS, STILL_RATE = 100, 100.0
STILL_SECONDS, STILL_SECONDS_QUICK = 10.0, 6.5  # messages older than 5 s are skipped
SLOW_RATE = STILL_RATE / 10
SLOW_SECONDS, SLOW_SECONDS_QUICK = (
    20.0,
    12.0,
)  # first its client's buffer fills, then the gateway skips messages older than 5 s
GROWTH_MAX, MEMORY_MAX = 2.0, 1.1

ALONE, P50, P99, GROWTH, UNTOLD, LOST = "alone", "p50 ms", "p99 ms", "p99 over that before", "untold", "lost by others"
SESSIONS, HOT_SESSIONS = "sessions lost", "hot sessions lost"
GAPS, MEMORY, LATE = "told as gaps", "gateway memory over that before", "driver late p99 ms"
HOT_RUN, STILL_RUN, SLOW_RUN = "hot", "still", "slow"


@dataclass(frozen=True)
class Size:
    hot: int
    hot_seconds: float
    still_seconds: float
    slow_seconds: float
    payload_bytes: int


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """One instance, whose hot room is joined once."""
    size = (
        Size(HOT_QUICK, HOT_SECONDS_QUICK, STILL_SECONDS_QUICK, SLOW_SECONDS_QUICK, payload_bytes)
        if quick
        else Size(HOT, HOT_SECONDS, STILL_SECONDS, SLOW_SECONDS, payload_bytes)
    )
    with ExitStack() as stack:
        instance = Instance("--gateway-alone", settings=KEEPALIVES)
        stack.callback(instance.stop)
        instance.start()
        rooms, hot = [instance.room(LIVE) for _ in range(ROOMS)], instance.room(LIVE)
        idle = cpu.rss_bytes(instance.pids[GATEWAY])
        listeners = stack.enter_context(
            instance.listeners(size.hot, rooms=[hot], payload_bytes=payload_bytes, members_each=HOT_EACH)
        )
        held = cpu.rss_bytes(instance.pids[GATEWAY]) - idle
        # The last listeners to join: they hear nothing while they wait, and then have to catch up.
        engine = stack.enter_context(instance.clients(ROOMS * ROOM_MEMBERS, rooms=rooms))
        stack.enter_context(pin.ahead(pid for role, pid in instance.pids.items() if role != GATEWAY))
        entries = [
            Entry(HOT_RUN, lambda: _judged(_hot(instance, engine, listeners, size), quick=quick)),
            Entry(STILL_RUN, lambda: _judged(_still(instance, size), quick=quick)),
            Entry(SLOW_RUN, lambda: _judged(_slow(instance, size), quick=quick)),
        ]
        results = interleave(entries, rounds, progress)
    return (*_hot_cases(results, size, held, quick=quick), *_behind_cases(results, size, quick=quick))


def _judged(figures: dict[str, float], *, quick: bool) -> Sample:
    """Void if sessions were lost or the generator was late: then it lacked CPU, and its times mean nothing."""
    lost, late = figures[SESSIONS], max(value for name, value in figures.items() if name.endswith(LATE))
    if lost:
        return Sample(figures, f"{lost:.0f} sessions were lost")
    return Sample(figures, f"messages left {late:.1f} ms late" if late > LATE_US_MAX / 1000 and not quick else "")


def _times(name: str, done: Outcome) -> dict[str, float]:
    times = latency(done)
    figures = {P50: times.p50 / 1000, P99: times.p99 / 1000, LATE: done["late_p99_us"] / 1000}
    return {f"{name}, {figure}": value for figure, value in figures.items()}


def _hot(instance: Instance, engine: LoadEngine, listeners: Listeners, size: Size) -> dict[str, float]:
    """The quiet rooms alone, and beside the hot one at each rate."""

    def quiet() -> Outcome:
        return engine.pace(size.payload_bytes, QUIET_RATE, size.hot_seconds, PATIENCE_SECONDS)

    listeners.sums()
    sessions = engine.sessions_lost()
    with ExitStack() as undisturbed:
        # A kernel thread that scans memory for 4 ms twice a second makes a 99th percentile by itself. So the gateway
        # too runs before everything else on its core, unless it is overloaded: the kernel keeps a twentieth of the core
        # from it.
        undisturbed.enter_context(pin.ahead([instance.pids[GATEWAY]]))
        done = quiet()
        figures = _times(ALONE, done)
        calm, lost, hot_lost = figures[f"{ALONE}, {P99}"], _lacking(done, ROOM_MEMBERS), 0
        for name, deliveries in (("carried", CARRIED), ("beyond", BEYOND)):
            if deliveries == BEYOND:
                undisturbed.close()
            rate = deliveries / listeners.members
            before = instance.cpu_ns()[GATEWAY]
            listeners.publish(Publishing(rate, size.hot_seconds, PATIENCE_SECONDS))
            began = time.monotonic()
            done = quiet()
            busy = (instance.cpu_ns()[GATEWAY] - before) / 1e9 / (time.monotonic() - began)
            published = listeners.published()
            owed = published["published"] * listeners.members
            sums = _until_told(engine, listeners, owed, published["delivered"] + published["lost"])
            had = sums["delivered"] + sums["lost"] + published["delivered"] + published["lost"]
            figures |= _times(name, done)
            figures |= {
                f"{name}, {GROWTH}": figures[f"{name}, {P99}"] / calm,
                f"{name}, {UNTOLD}": owed - had,
                f"{name}, {GAPS} %": 100 * (sums["lost"] + published["lost"]) / max(1, owed),
                f"{name}, hot messages": published["published"],
                f"{name}, hot p99 ms": latency(published).p99 / 1000,
                f"{name}, gateway busy %": 100 * busy,
            }
            lost, hot_lost = lost + _lacking(done, ROOM_MEMBERS), hot_lost + sums["sessions_lost"]
    figures[HOT_SESSIONS] = hot_lost
    return figures | {LOST: lost, SESSIONS: engine.sessions_lost() - sessions}


def _lacking(done: Outcome, fanout: int) -> float:
    return float(done["published"] * fanout - done["delivered"])


def _until_told(engine: LoadEngine, listeners: Listeners, owed: int, had: int) -> Sums:
    """Deliveries to all processes but the publishing one, once nothing is owed or nothing has come for a while."""
    total, until = listeners.sums(), time.monotonic() + PATIENCE_SECONDS
    while had + total["delivered"] + total["lost"] < owed and time.monotonic() < until:
        engine.idle(0.1)
        more = listeners.sums()
        if more["delivered"] or more["lost"]:
            until = time.monotonic() + PATIENCE_SECONDS
        total = {name: count + more[name] for name, count in total.items()}
    return total


def _still(instance: Instance, size: Size) -> dict[str, float]:
    """A room of a hundred before one more member stands still, and while it does."""
    room = instance.room(LIVE)
    with (
        instance.clients(STILL_MEMBERS, rooms=[room]) as engine,
        instance.listeners(1, rooms=[room], payload_bytes=size.payload_bytes) as member,
    ):

        def busy() -> Outcome:
            return engine.pace(size.payload_bytes, STILL_RATE, size.still_seconds, PATIENCE_SECONDS)

        done = [busy()]
        before = cpu.rss_bytes(instance.pids[GATEWAY])
        with member.stopped():
            done.append(busy())
            memory = cpu.rss_bytes(instance.pids[GATEWAY]) / before
        owed = sum(outcome["published"] for outcome in done)
        sums, lost = _until_told(engine, member, owed, 0), engine.sessions_lost()
    figures = _times(ALONE, done[0]) | _times("still", done[1])
    return figures | {
        GROWTH: figures[f"still, {P99}"] / figures[f"{ALONE}, {P99}"],
        MEMORY: memory,
        UNTOLD: float(abs(owed - sums["delivered"] - sums["lost"])),
        GAPS: float(sums["lost"]),
        LOST: sum(_lacking(outcome, STILL_MEMBERS) for outcome in done),
        SESSIONS: float(lost + sums["sessions_lost"]),
    }


def _slow(instance: Instance, size: Size) -> dict[str, float]:
    """A room of a hundred, and another room, before one more member reads the first at a tenth of its rate, and while
    it does."""
    room, other = instance.room(LIVE), instance.room(LIVE)
    with instance.clients(2 * STILL_MEMBERS, rooms=[room, other]) as engine:

        def busy() -> Outcome:
            return engine.pace(size.payload_bytes, 2 * STILL_RATE, size.slow_seconds, PATIENCE_SECONDS)

        done = [busy()]
        before = cpu.rss_bytes(instance.pids[GATEWAY])
        with slow_member(instance.folder, room, SLOW_RATE, JOIN_SECONDS) as member:
            done.append(busy())
            memory = cpu.rss_bytes(instance.pids[GATEWAY]) / before
            owed = (done[1]["published"] + 1) // 2  # the first of the two rooms gets the messages
            had = member.had(owed, PATIENCE_SECONDS)
        lost = engine.sessions_lost()
    figures = _times(ALONE, done[0]) | _times("slow", done[1])
    return figures | {
        GROWTH: figures[f"slow, {P99}"] / figures[f"{ALONE}, {P99}"],
        MEMORY: memory,
        UNTOLD: float(abs(owed - had.messages - had.too_slow)),
        GAPS: float(had.too_slow),
        LOST: sum(_lacking(outcome, STILL_MEMBERS) for outcome in done),
        SESSIONS: float(lost),
    }


def _hot_cases(results: Results, size: Size, held: int, *, quick: bool) -> Iterator[Case]:
    goals = {
        f"carried, {GROWTH}": Goal("isolation", "<", GROWTH_MAX),
        f"carried, {UNTOLD}": Goal("isolation", "<=", 0.0),
        f"beyond, {UNTOLD}": Goal("isolation", "<=", 0.0),
        LOST: Goal("isolation", "<=", 0.0),
    }
    title = f"{ROOMS:,} quiet rooms beside one of {size.hot:,}"
    yield from Case.judged(results, HOT_RUN, title, goals, quick=quick)
    yield Case.plain(f"{title}: gateway's bytes for each of its members", Series((held / size.hot,)))


def _behind_cases(results: Results, size: Size, *, quick: bool) -> Iterator[Case]:
    goals = {
        GROWTH: Goal("isolation", "<", GROWTH_MAX),
        MEMORY: Goal("isolation", "<=", MEMORY_MAX),
        UNTOLD: Goal("isolation", "<=", 0.0),
        GAPS: Goal("isolation", ">=", 1.0),
        LOST: Goal("isolation", "<=", 0.0),
    }
    title = f"{STILL_MEMBERS} members beside one that stands still for {size.still_seconds:g} s"
    yield from Case.judged(results, STILL_RUN, title, goals, quick=quick)
    title = (
        f"{STILL_MEMBERS} members, and as many elsewhere, beside one that reads at a tenth for {size.slow_seconds:g} s"
    )
    yield from Case.judged(results, SLOW_RUN, title, goals, quick=quick)

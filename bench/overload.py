"""Twice the capacity (PF-8): the share still delivered, its age, and the delay of the loops.

Once with a process for each role, and once with one for all. The peak is the larger rate of two publishers: one sends
whenever there is credit, the other tries twice that rate. Then a publisher tries twice the peak on a fixed schedule and
drops messages without credit. Age counts from the moment a message was taken. The room is `live`: messages that a member
cannot take become a gap. A 10 ms timer of each role watches the loops. With 10 members the servers are the limit; with
100 the members are, which share the driver core.

Ten times the peak for a minute, from a thousand rooms, is in `bench.storm`.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from bench import storm
from bench.muster import APART, LIVE, PATIENCE_SECONDS, TOGETHER, Instance, Outcome, late_percentile_us
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave

FANOUTS = (10, 100)
LAYOUTS = {APART: "", TOGETHER: " in one process"}
"""What names of cases say of them."""
TIMES_PEAK = 2.0
SHARE_MIN, AGE_MS_MAX, TICK_MS_MAX = 0.9, 250.0, 30.0

STORM = "storm"
STORM_SHARE_MIN, NORMAL_SECONDS_MAX, MEMORY_MAX = 0.8, 10.0, 1.1

PEAK, SHARE, RATE, AGE, TICK = "peak", "share of the peak", "deliveries/s", "age p99 ms", "10 ms timer late p99.9 ms"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Peak and overload follow each other in each round."""
    seconds = 1.0 if quick else 3.0
    scale = storm.QUICK if quick else storm.FULL
    entries: list[Entry] = []
    with ExitStack() as stack:
        for layout, words in LAYOUTS.items():
            instance = Instance(ticks=True, settings={"up.processes": layout})
            stack.callback(instance.stop)
            instance.start()
            entries += [_entry(instance, f"x{fanout}{words}", fanout, payload_bytes, seconds) for fanout in FANOUTS]
            entries.append(_storm(instance, STORM + words, scale, payload_bytes))
        results = interleave(entries, rounds, progress)
    judged = {
        SHARE: Goal("PF-8", ">=", SHARE_MIN),
        AGE: Goal("PF-8", "<=", AGE_MS_MAX),
        TICK: Goal("PF-8", "<=", TICK_MS_MAX),
    }
    cases: list[Case] = []
    for words in LAYOUTS.values():
        for entry in (f"x{fanout}{words}" for fanout in FANOUTS):
            for figure in results.figures(entry):
                name, series = f"{entry} at twice the capacity, {figure}", results.series(entry, figure)
                goal = judged.get(figure)
                cases.append(Case.limit(name, series, goal, quick=quick) if goal else Case.plain(name, series))
        cases += _storm_cases(results, words, scale, quick=quick)
    return tuple(cases)


def _storm_cases(results: Results, words: str, scale: storm.Scale, *, quick: bool) -> Iterator[Case]:
    goals = {
        storm.SHARE: Goal("overload", ">=", STORM_SHARE_MIN),
        storm.NORMAL_AGAIN: Goal("overload", "<=", NORMAL_SECONDS_MAX),
        storm.MEMORY: Goal("overload", "<=", MEMORY_MAX),
        storm.UNACCOUNTED: Goal("overload", "<=", 0.0),
    }
    rooms = f"{scale.rooms:,} rooms of {scale.fanout}{words}"
    title = f"{rooms} at {storm.TIMES_PEAK:g} times the capacity for {scale.seconds:g} s"
    yield from Case.judged(results, STORM + words, title, goals, quick=quick)


def _storm(instance: Instance, name: str, scale: storm.Scale, payload_bytes: int) -> Entry:
    return Entry(name, lambda: storm.once(instance, scale, payload_bytes))


def _entry(instance: Instance, name: str, fanout: int, payload_bytes: int, seconds: float) -> Entry:
    return Entry(name, lambda: _once(instance, fanout, payload_bytes, seconds))


def _rate(outcome: Outcome) -> float:
    return float(outcome["delivered"] / outcome["wall_us"] * 1e6)


def _once(instance: Instance, fanout: int, payload_bytes: int, seconds: float) -> Sample:
    with instance.clients(fanout, rooms=[instance.room(LIVE)]) as engine:

        def overload(peak_rate: float, seconds: float) -> Outcome:
            return engine.pace(payload_bytes, TIMES_PEAK * peak_rate / fanout, seconds, PATIENCE_SECONDS, shed=True)

        engine.saturate(payload_bytes, seconds / 4, PATIENCE_SECONDS)
        peak_rate = _rate(engine.saturate(payload_bytes, seconds, PATIENCE_SECONDS))
        peak_rate = max(peak_rate, _rate(overload(peak_rate, seconds / 2)))
        before = {role: instance.late_ticks(role) for role in instance.pids}
        done = overload(peak_rate, seconds)
        ticks = {role: instance.late_ticks(role) - counts for role, counts in before.items()}
    rate = _rate(done)
    ages = np.frombuffer(done["latencies_us"], dtype="<u4")
    figures = {
        SHARE: rate / peak_rate,
        AGE: float(np.percentile(ages, 99)) / 1000 if len(ages) else float("inf"),
        TICK: max(late_percentile_us(counts, 99.9) for counts in ticks.values()) / 1000,
        f"{PEAK}, {RATE}": peak_rate,
        RATE: rate,
        "messages shed %": 100 * done["shed"] / max(1, done["shed"] + done["published"]),
        "told as gaps %": 100 * done["lost"] / max(1, done["published"] * fanout),
        "corrupted": float(done["corrupted"]),
    }
    return Sample(figures)

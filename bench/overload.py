"""Twice what Muster can do (PF-8): how much is still delivered, how old it is, and whether the loops stay awake.

The peak is what a publisher reaches who sends whenever there is credit. Then one tries twice as much on a fixed schedule:
what finds no credit is dropped at the publisher. Age counts from the moment a message was taken. The room's flow is `live`:
what a member cannot take becomes a gap. Loops are watched by a 10 ms timer in each role.
"""

import numpy as np

from bench.muster import LIVE, PATIENCE_SECONDS, Instance, late_percentile_us
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave

FANOUT = 100
TIMES_PEAK = 2.0
SHARE_MIN, AGE_MS_MAX, TICK_MS_MAX = 0.9, 250.0, 30.0

PEAK, SHARE, RATE, AGE, TICK = "peak", "share of the peak", "deliveries/s", "age p99 ms", "10 ms timer late p99.9 ms"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Peak and overload follow each other in each round."""
    seconds = 1.0 if quick else 3.0
    instance = Instance(ticks=True)
    try:
        instance.start()
        results = interleave([Entry("x100", lambda: _once(instance, payload_bytes, seconds))], rounds, progress)
    finally:
        instance.stop()
    series = {figure: results.series("x100", figure) for figure in results.figures("x100")}
    name = f"x{FANOUT} at twice the capacity"
    judged = {
        SHARE: Goal("PF-8", ">=", SHARE_MIN),
        AGE: Goal("PF-8", "<=", AGE_MS_MAX),
        TICK: Goal("PF-8", "<=", TICK_MS_MAX),
    }
    return tuple(
        Case.limit(f"{name}, {figure}", one, judged[figure], quick=quick)
        if figure in judged
        else Case.plain(f"{name}, {figure}", one)
        for figure, one in series.items()
    )


def _once(instance: Instance, payload_bytes: int, seconds: float) -> Sample:
    with instance.clients(FANOUT, rooms=[instance.room(LIVE)]) as engine:
        engine.saturate(payload_bytes, seconds / 4, PATIENCE_SECONDS)
        peak = engine.saturate(payload_bytes, seconds, PATIENCE_SECONDS)
        peak_rate = peak["delivered"] / peak["wall_us"] * 1e6
        before = {role: instance.late_ticks(role) for role in instance.pids}
        tried = TIMES_PEAK * peak_rate / FANOUT
        done = engine.pace(payload_bytes, tried, seconds, PATIENCE_SECONDS, shed=True)
        ticks = {role: instance.late_ticks(role) - counts for role, counts in before.items()}
    rate = done["delivered"] / done["wall_us"] * 1e6
    ages = np.frombuffer(done["latencies_us"], dtype="<u4")
    figures = {
        SHARE: rate / peak_rate,
        AGE: float(np.percentile(ages, 99)) / 1000 if len(ages) else float("inf"),
        TICK: max(late_percentile_us(counts, 99.9) for counts in ticks.values()) / 1000,
        f"{PEAK}, {RATE}": peak_rate,
        RATE: rate,
        "messages shed %": 100 * done["shed"] / max(1, done["shed"] + done["published"]),
        "told as gaps %": 100 * done["lost"] / max(1, done["published"] * FANOUT),
        "corrupted": float(done["corrupted"]),
    }
    return Sample(figures)

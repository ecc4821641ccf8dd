"""Ten times the capacity for a minute, from a thousand rooms at once: deliveries, costs, and the time of recovery.

The peak is the larger rate of two groups of publishers: one sends whenever there is credit, the other tries ten times
that rate. Then follow a sixth of the peak as the normal load, ten times the peak, and the normal load again, in windows
of a second. The overload ends with the first window that refuses nothing and has at most twice the normal 99th
percentile.

A refusal is a publish without credit: its publisher knows at once. Every taken message must be acknowledged, and each
member must have it or be told that it is lost. Messages of which neither happened are *unaccounted*.
"""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cpu
from bench.muster import LIVE, PATIENCE_SECONDS, Instance, Outcome, latency
from bench.rounds import Sample
from muster_server._engines import LoadEngine

TIMES_PEAK: Final = 10.0
NORMAL: Final = 1 / 6  # of the peak
WINDOW_SECONDS, WINDOW_PATIENCE_SECONDS, WINDOWS_MAX = 1.0, 0.25, 30
P99_GROWTH_MAX: Final = 2.0

SHARE, NORMAL_AGAIN, MEMORY, UNACCOUNTED = (
    "share of the peak",
    "s until normal",
    "memory over that before",
    "unaccounted",
)


@dataclass(frozen=True)
class Scale:
    rooms: int
    fanout: int
    peak_seconds: float
    seconds: float


FULL: Final = Scale(rooms=1_024, fanout=4, peak_seconds=5.0, seconds=60.0)
QUICK: Final = Scale(rooms=256, fanout=4, peak_seconds=1.0, seconds=5.0)


class _Account:
    """All offered messages and their fates, over all runs of an engine."""

    def __init__(self, engine: LoadEngine, payload_bytes: int, fanout: int) -> None:
        self._engine, self._payload_bytes, self._fanout = engine, payload_bytes, fanout
        self.total: Counter[str] = Counter()
        self._acknowledged = 0

    def add(self, done: Outcome) -> Outcome:
        for name in ("published", "shed", "delivered", "lost", "corrupted"):
            self.total[name] += done[name]
        self._acknowledged = done["acknowledged"]
        return done

    def pace(self, rate: float, seconds: float, patience: float) -> Outcome:
        return self.add(self._engine.pace(self._payload_bytes, rate, seconds, patience, shed=True))

    def unaccounted(self) -> int:
        """Once nothing more comes: messages without an acknowledgement, and deliveries without any word."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self._owed() > 0 or self._unacknowledged() > 0:
            for name, count in self._engine.listen(self._payload_bytes, 0.1).items():
                self.total[name] += count
            self.pace(1.0, 0.0, 0.0)  # a publisher that is silent learns how much is acknowledged
            if time.monotonic() > until:
                break
        return abs(self._owed()) + abs(self._unacknowledged()) + self.total["corrupted"]

    def _unacknowledged(self) -> int:
        return self.total["published"] - self._acknowledged

    def _owed(self) -> int:
        return self.total["published"] * self._fanout - self.total["delivered"] - self.total["lost"]


def once(instance: Instance, scale: Scale, payload_bytes: int) -> Sample:
    """Peak, normal load, overload, and normal load again."""
    rooms = [instance.room(LIVE) for _ in range(scale.rooms)]
    with instance.clients(scale.rooms * scale.fanout, rooms=rooms) as engine:
        account = _Account(engine, payload_bytes, scale.fanout)
        peak = _rate(account.add(engine.saturate(payload_bytes, scale.peak_seconds, PATIENCE_SECONDS)))
        tried = account.pace(TIMES_PEAK * peak / scale.fanout, scale.peak_seconds, PATIENCE_SECONDS)
        peak = max(peak, _rate(tried))
        normal_rate, over_rate = NORMAL * peak / scale.fanout, TIMES_PEAK * peak / scale.fanout
        normal = latency(account.pace(normal_rate, scale.peak_seconds, PATIENCE_SECONDS)).p99
        processes = instance.processes()
        before = {roles: cpu.rss_bytes(pid) for roles, pid in processes.items()}
        for pid in processes.values():
            _forget_most_resident(pid)
        done = account.pace(over_rate, scale.seconds, 0.0)
        back = _until_normal(account, normal_rate, normal)
        most = {roles: _most_resident(pid) for roles, pid in processes.items()}
        after = {roles: cpu.rss_bytes(pid) for roles, pid in processes.items()}
        unaccounted, lost = account.unaccounted(), engine.sessions_lost()
    figures = {
        SHARE: _rate(done) / peak,
        NORMAL_AGAIN: back,
        MEMORY: max(most[roles] / held for roles, held in before.items()),
        UNACCOUNTED: float(unaccounted),
        "peak, deliveries/s": peak,
        "deliveries/s": _rate(done),
        "offered messages": float(done["published"] + done["shed"]),
        "refused, told to the publisher, %": 100 * done["shed"] / max(1, done["published"] + done["shed"]),
        "told as gaps, % of deliveries": 100
        * account.total["lost"]
        / max(1, account.total["published"] * scale.fanout),
        "age p99 ms": latency(done).p99 / 1000,
        "normal p99 ms": normal / 1000,
    }
    for roles, held in before.items():
        figures |= {
            f"{roles} MiB before": held / 2**20,
            f"{roles} MiB most": most[roles] / 2**20,
            f"{roles} MiB after": after[roles] / 2**20,
        }
    return Sample(figures, f"{lost} sessions were lost" if lost else "")


def _rate(done: Outcome) -> float:
    return float(done["delivered"] / max(done["wall_us"], 1) * 1e6)


def _until_normal(account: _Account, rate: float, normal_us: float) -> float:
    """Seconds from the end of the overload to the first window that is as before; infinity if there is none."""
    began = time.monotonic()
    for _ in range(WINDOWS_MAX):
        at = time.monotonic() - began
        done = account.pace(rate, WINDOW_SECONDS, WINDOW_PATIENCE_SECONDS)
        if done["complete"] and not done["shed"] and latency(done).p99 <= P99_GROWTH_MAX * normal_us:
            return at
    return float("inf")


def _forget_most_resident(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _most_resident(pid: int) -> int:
    """The most resident memory since the last reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

"""A run second by second: counts, latencies, and the CPU of the servers.

Owns the arithmetic of rates and percentiles. The seconds of several hosts add up.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from muster_server.control.load.generator import Slice, histogram
from muster_server.pyext.histogram import Histogram

PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a run. Rates are per second, latencies in ms."""

    at_s: float
    sent_per_s: float
    done_per_s: float
    wrong: int
    """Counts that should be 0, since the start."""
    latency_ms: Mapping[str, float | None]
    """By the names of `PERCENTILES`; None where nothing arrived."""
    late_p99_ms: float | None
    """How late the generator was."""
    cpu: Mapping[str, float] = {}
    """Cores that the servers used, by role."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a generator by their use; see `Generator`."""

    sent: str
    done: str
    wrong: Sequence[str]


class Second(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one host since its last report, in a form that crosses to another host. Counts are since the start."""

    counts: Mapping[str, int]
    latency: bytes = b""
    """`packed` histograms."""
    late: bytes = b""
    over: bool = False
    complete: bool = False


class Series:
    """The points of one run."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.points: list[Point] = []
        self.counts: dict[str, int] = {}
        self.latency, self.late = histogram(), histogram()

    def add(self, at_s: float, counts: Mapping[str, int], seconds: Iterable[Second], cpu: Mapping[str, float]) -> Point:
        """Take what all hosts did since the last point; `counts` are theirs together."""
        before, at_before = self.counts, self.points[-1].at_s if self.points else 0.0
        self.counts = dict(counts)
        latency, late = histogram(), histogram()
        for second in seconds:
            unpack(second.latency, latency)
            unpack(second.late, late)
        self.latency.merge(latency)
        self.late.merge(late)
        took = max(at_s - at_before, 1e-6)

        def rate(name: str) -> float:
            return round((self.counts.get(name, 0) - before.get(name, 0)) / took, 1)

        point = Point(
            at_s=round(at_s, 3),
            sent_per_s=rate(self.names.sent),
            done_per_s=rate(self.names.done),
            wrong=self.wrong,
            latency_ms=percentiles(latency),
            late_p99_ms=percentiles(late)["p99"],
            cpu=cpu,
        )
        self.points.append(point)
        return point

    @property
    def wrong(self) -> int:
        """All counts that should be 0."""
        return sum(self.counts.get(name, 0) for name in self.names.wrong)


def percentiles(of: Histogram) -> dict[str, float | None]:
    """Percentiles in ms; None in an empty histogram."""
    if not int(of.counts.sum()):
        return dict.fromkeys(PERCENTILES)
    values = of.percentiles(list(PERCENTILES.values()))
    return {name: round(float(value) / 1_000, 3) for name, value in zip(PERCENTILES, values, strict=True)}


def second(of: Slice) -> Second:
    """A slice with its latencies as histograms."""
    latency, late = histogram(), histogram()
    latency.record(of.latencies)
    late.record(of.late)
    return Second(counts=of.counts, latency=packed(latency), late=packed(late), over=of.over, complete=of.complete)


def packed(of: Histogram) -> bytes:
    """Its counts that are not 0: their indexes as u32, then the counts as u64."""
    at = np.flatnonzero(of.counts)
    return at.astype("<u4").tobytes() + of.counts[at].astype("<u8").tobytes()


def unpack(data: bytes, into: Histogram) -> None:
    """Add `packed` counts to a histogram of the same form. Raises `ValueError` if they do not fit."""
    count, rest = divmod(len(data), 12)
    at = np.frombuffer(data[: count * 4], dtype="<u4")
    if rest or (count and int(at.max()) >= len(into.counts)):
        raise ValueError("these are not the counts of a histogram of this form")
    np.add.at(into.counts, at, np.frombuffer(data[count * 4 :], dtype="<u8").astype(np.int64))

"""Roll-ups of a run: how many answered, how many failed, and percentiles, over all its clients and by mark.

Owns the arithmetic. It must not know a store or a run in flight. A run is one minute of its task, so that percentiles
are exact, and are reckoned once, when it ends.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from muster_server.systems.fleet.questions import MinuteRow
from muster_server.systems.fleet.records import RunRow

MARKS_MAX: Final = 1_000
"""Limit of marks of a run that have a row of their own, those of the most clients; all others count in the row of all."""


class Sample(msgspec.Struct, frozen=True):
    """An answer, as far as it counts here."""

    mark: str
    ok: bool
    ms: float | None


class _Value(msgspec.Struct):
    ms: float | None = None


_object: Final = msgspec.json.Decoder(_Value)
_number: Final = msgspec.json.Decoder(float)


def measured(value: bytes) -> float | None:
    """The number that stands for a result, given in JSON: its field `ms`, or the result itself. None: it has none."""
    try:
        found = _object.decode(value).ms if value[:1] == b"{" else _number.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found is not None and math.isfinite(found) else None


def rolled(run: RunRow, samples: Sequence[Sample], missed: Iterable[str]) -> list[MinuteRow]:
    """The rows of a run that has ended; the first one has all clients. `missed`: the mark of each client that was asked
    and did not answer."""
    by: dict[str, list[Sample]] = {}
    absent: dict[str, int] = {}
    for each in samples:
        by.setdefault(each.mark, []).append(each)
    silent = 0
    for mark in missed:
        silent += 1
        absent[mark] = absent.get(mark, 0) + 1
    counts = {mark: len(by.get(mark, ())) + absent.get(mark, 0) for mark in {*by, *absent} if mark}
    most = sorted(counts, key=lambda mark: (-counts[mark], mark))[:MARKS_MAX]
    rows = [_row(run, "", samples, silent)]
    return rows + [_row(run, mark, by.get(mark, ()), absent.get(mark, 0)) for mark in sorted(most)]


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest of these numbers, in order, that at least `percent` of 100 do not exceed; None without numbers."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def _row(run: RunRow, mark: str, samples: Sequence[Sample], missed: int) -> MinuteRow:
    ordered = sorted(each.ms for each in samples if each.ok and each.ms is not None)
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    failed = sum(not each.ok for each in samples)
    return MinuteRow(run.task, run.minute, mark, run.kind, run.target, len(samples), failed, missed, p50, p90, p99)

"""The figures of each topic's messages, minute by minute.

Owns the counts and the computation of lateness. It must not know clocks (minutes come in) or messages.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

MINUTES_MAX: Final = 120
"""Limit of minutes of each topic: two hours."""
BOUNDS_MS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1_000, 5_000, 60_000, 3_600_000)
"""Upper bounds of the buckets of lateness and of the time of callbacks."""


Sums = tuple[int, int, float, int, int, int, Sequence[int], bool]
"""Sums of a topic's results: its number, attempts, their duration in ms, fired, retries, dead, first attempts by
lateness, and whether its worker has free credits."""


class Minute(msgspec.Struct):
    """One topic in one minute."""

    at: int
    """Minutes since 1970."""
    accepted: int = 0
    fired: int = 0
    """Callbacks that succeeded."""
    attempts: int = 0
    retries: int = 0
    """Failed attempts that are retried."""
    dead: int = 0
    expired: int = 0
    withdrawn: int = 0
    took_ms: float = 0.0
    """Duration of all attempts."""
    late: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    """First attempts by lateness."""

    def lateness(self, part: float) -> float | None:
        """The lateness in ms that this share of the messages did not exceed; None without messages."""
        total = sum(self.late)
        if not total:
            return None
        wanted, found = part * total, 0
        for bound, count in zip((*BOUNDS_MS, BOUNDS_MS[-1]), self.late, strict=True):
            found += count
            if found >= wanted:
                return float(bound)
        return float(BOUNDS_MS[-1])


class Figures:
    """The figures of all topics, by their numbers. The totals are since the start."""

    def __init__(self) -> None:
        self._minutes: dict[int, deque[Minute]] = {}
        self.totals = Minute(0)

    def minute(self, topic: int, at: int) -> Minute:
        """The minute to count in. `at` in minutes since 1970; a clock that was set back counts in the last one."""
        minutes = self._minutes.get(topic)
        if minutes is None:
            minutes = self._minutes[topic] = deque(maxlen=MINUTES_MAX)
        if not minutes or minutes[-1].at < at:
            minutes.append(Minute(at))
        return minutes[-1]

    def count(self, topic: int, at: int, name: str, count: int = 1) -> None:
        """Add `count` to one figure."""
        for each in (self.minute(topic, at), self.totals):
            setattr(each, name, getattr(each, name) + count)

    def results(self, topic: int, at: int, sums: "Sums") -> None:
        """Count the results of one topic."""
        _, attempts, took_ms, fired, retries, dead, late, _ = sums
        for each in (self.minute(topic, at), self.totals):
            each.attempts += attempts
            each.took_ms += took_ms
            each.fired += fired
            each.retries += retries
            each.dead += dead
            each.late = [one + other for one, other in zip(each.late, late, strict=True)]

    def of(self, topic: int) -> Sequence[Minute]:
        """The minutes of a topic with any event, oldest first."""
        return tuple(self._minutes.get(topic, ()))

    def forget(self, known: Sequence[int]) -> None:
        """Drop the minutes of removed topics."""
        for topic in self._minutes.keys() - set(known):
            del self._minutes[topic]


def rows(minutes: Sequence[Minute]) -> Iterator[dict[str, float | int | None]]:
    """The rows for operators."""
    for each in minutes:
        yield {
            "minute": each.at * 60_000,
            "accepted": each.accepted,
            "fired": each.fired,
            "attempts": each.attempts,
            "retries": each.retries,
            "dead": each.dead,
            "expired": each.expired,
            "withdrawn": each.withdrawn,
            "lateness_p50_ms": each.lateness(0.5),
            "lateness_p99_ms": each.lateness(0.99),
            "callback_ms": round(each.took_ms / each.attempts, 3) if each.attempts else None,
        }

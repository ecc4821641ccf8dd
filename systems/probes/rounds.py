"""The turns of pairs: each proxy and broker once per `every_ms`, and at most `per_s_max` probes per second.

With more pairs a round takes longer. Knows no clock.
"""

from collections.abc import Sequence
from typing import Final

BEHIND_S: Final = 0.1
"""A longer stall is not caught up, in seconds."""

Pair = tuple[int, int]
"""Proxy and broker."""


class Rounds:
    """Yields the pairs in turn."""

    def __init__(self, every_s: float, per_s_max: float) -> None:
        self._every_s, self._step_min_s = every_s, 1 / per_s_max
        self._pairs: Sequence[Pair] = ()
        self._at = 0
        self._next: float | None = None

    def limit(self, every_s: float, per_s_max: float) -> None:
        """Use these limits from now on."""
        self._every_s, self._step_min_s, self._next = every_s, 1 / per_s_max, None

    def follow(self, pairs: Sequence[Pair]) -> None:
        """Set the current pairs; continues after the last pair that had its turn."""
        if pairs != self._pairs:
            last = self._pairs[self._at - 1] if self._pairs else None
            self._pairs = pairs
            self._at = next((at for at, pair in enumerate(pairs) if last is not None and pair > last), 0)

    @property
    def step_s(self) -> float:
        """The time between two probes."""
        return max(self._every_s / max(1, len(self._pairs)), self._step_min_s)

    def due(self, now: float) -> list[Pair]:
        """The pairs whose turn has come by `now`, each at most once."""
        if not self._pairs:
            self._next = None
            return []
        if self._next is None or now - self._next > max(BEHIND_S, self.step_s):
            self._next = now
        found: list[Pair] = []
        while self._next <= now and len(found) < len(self._pairs):
            found.append(self._pairs[self._at])
            self._at = (self._at + 1) % len(self._pairs)
            self._next += self.step_s
        return found

    def wait_s(self, now: float) -> float:
        """The time until the next turn."""
        return self.step_s if self._next is None else max(0.0, self._next - now)

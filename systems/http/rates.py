"""How much each caller may do: a token bucket per name, in bounded memory. Time is given to it."""

from collections import OrderedDict
from typing import Final

NAMES_MAX: Final = 10_000
BURST: Final = 2
"""Seconds of its rate that a caller may take at once."""


class Buckets:
    """A bucket per caller: `rate` a second, twice that at once."""

    def __init__(self, rate: int, names_max: int = NAMES_MAX) -> None:
        self._rate, self._names_max = rate, names_max
        self._full: OrderedDict[str, float] = OrderedDict()
        """When each bucket is full again, seconds; the caller that asked last comes last. A full bucket need not be kept."""

    def set_rate(self, rate: int) -> None:
        """Use another rate from now on; a bucket in debt is full again when it would have been."""
        self._rate = rate

    def take(self, name: str, count: int, now: float) -> float:
        """Take this many, or return the seconds until there are enough; nothing is taken then.

        More than a bucket holds is taken from a full one, which is in debt afterwards.
        """
        full = max(self._full.get(name, now), now)
        wait = full - now + min(count / self._rate, BURST) - BURST
        if wait > 1e-9:
            return wait
        self._full[name] = full + count / self._rate
        self._full.move_to_end(name)
        while len(self._full) > self._names_max:
            self._full.popitem(last=False)
        return 0.0

    def give(self, name: str, count: int) -> None:
        """Give back what was taken for nothing."""
        if name in self._full:
            self._full[name] -= count / self._rate

    @property
    def size(self) -> int:
        """How much a full bucket holds."""
        return self._rate * BURST

    def __len__(self) -> int:
        return len(self._full)

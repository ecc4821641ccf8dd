"""Rates of callers: a token bucket per name, in bounded memory. Time is passed in."""

from collections import OrderedDict
from typing import Final

NAMES_MAX: Final = 10_000
BURST: Final = 2
"""Seconds of its rate that a caller may use at once."""


class Buckets:
    """A bucket per caller: `rate` per second, a burst of twice that."""

    def __init__(self, rate: int, names_max: int = NAMES_MAX) -> None:
        self._rate, self._names_max = rate, names_max
        self._full: OrderedDict[str, float] = OrderedDict()
        """Time at which each bucket is full again, in seconds, in order of use. A full bucket need not be stored."""

    def set_rate(self, rate: int) -> None:
        """Use another rate from now on; a bucket in debt is full again at the same time as before."""
        self._rate = rate

    def take(self, name: str, count: int, now: float) -> float:
        """Take `count`, or return the seconds until there are enough; nothing is taken then.

        More than a bucket's size is taken from a full one, which is in debt afterwards.
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
        """Give back what was taken for a request that did nothing."""
        if name in self._full:
            self._full[name] -= count / self._rate

    @property
    def size(self) -> int:
        """The size of a full bucket."""
        return self._rate * BURST

    def __len__(self) -> int:
        return len(self._full)

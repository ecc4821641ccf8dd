"""Level 1: values in this process, by their last use and how often they are used, bound by bytes.

It must not know keys' meaning, levels nor flights. Values are shared by all callers.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from moka_py import Moka

OVERHEAD: Final = 300
"""Bytes of an entry beside its key and its value."""
WEIGHT_MAX: Final = (1 << 32) - 1


class Kept:
    """A value with the times, on the monotonic clock, until which it may be served and before which none looks further."""

    __slots__ = ("early", "ends", "load_s", "made", "until", "value", "weight")

    def __init__(
        self, value: Any, until: float, early: float, ends: float, load_s: float, made: bytes, weight: int
    ) -> None:
        self.value = value
        self.until = until
        self.early = early
        """From here on, one caller begins to load anew, and the value is still served."""
        self.ends = ends
        """Until when a stale value may be served."""
        self.load_s = load_s
        self.made = made
        self.weight = weight


class Near:
    """The entries. `get` is the call that a hit costs."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.get: Callable[[str], Kept | None]
        self.clear()

    def clear(self) -> None:
        """Begin empty: a new store, so that no entry put at this very moment stays."""
        self._store: Moka[str, Kept] = Moka(self._bytes_max, weigher=_weigh)
        self.get = self._store.get

    def put(self, key: str, kept: Kept) -> None:
        """Keep it until it ends, or room is needed. One that is as large as all room is not kept."""
        left_s = kept.ends - monotonic()
        if left_s > 0 and _weigh(key, kept) <= self._bytes_max:
            self._store.set(key, kept, ttl=left_s)

    def remove(self, key: str) -> None:
        self._store.remove(key)

    @property
    def bytes(self) -> int:
        """Their estimated size."""
        self._store.run_pending_tasks()
        return self._store.weighted_size()

    @property
    def count(self) -> int:
        self._store.run_pending_tasks()
        return self._store.count()


def _weigh(key: str, kept: Kept) -> int:
    return min(len(key) + OVERHEAD + kept.weight, WEIGHT_MAX)

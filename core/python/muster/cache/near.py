"""Level 1: values in this process, evicted by last use and frequency of use, bounded by bytes.

It must not know the meaning of keys, nor levels or flights. All callers share the values.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from moka_py import Moka

OVERHEAD: Final = 300
"""Bytes of an entry besides its key and its value."""
WEIGHT_MAX: Final = (1 << 32) - 1


class Entry:
    """A value and its times on the monotonic clock. A read before `until` serves it without a further check."""

    __slots__ = ("early", "ends", "load_s", "made", "until", "value", "weight")

    def __init__(
        self, value: Any, until: float, early: float, ends: float, load_s: float, made: bytes, weight: int
    ) -> None:
        self.value = value
        self.until = until
        self.early = early
        """From this time on, one caller reloads the value while it is still served."""
        self.ends = ends
        """End of the time in which a stale value may be served."""
        self.load_s = load_s
        self.made = made
        self.weight = weight


class Near:
    """The store of entries. `get` is the whole cost of a hit."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.get: Callable[[str], Entry | None]
        self.clear()

    def clear(self) -> None:
        """Empty the level. It makes a new store, so no entry that another thread puts at this moment stays."""
        self._store: Moka[str, Entry] = Moka(self._bytes_max, weigher=_weigh)
        self.get = self._store.get

    def put(self, key: str, kept: Entry) -> None:
        """Store the value until it expires or is evicted. A value as large as the whole level is not stored."""
        left_s = kept.ends - monotonic()
        if left_s > 0 and _weigh(key, kept) <= self._bytes_max:
            self._store.set(key, kept, ttl=left_s)

    def remove(self, key: str) -> None:
        self._store.remove(key)

    @property
    def bytes(self) -> int:
        """Estimated size of all entries, in bytes."""
        self._store.run_pending_tasks()
        return self._store.weighted_size()

    @property
    def count(self) -> int:
        self._store.run_pending_tasks()
        return self._store.count()


def _weigh(key: str, kept: Entry) -> int:
    return min(len(key) + OVERHEAD + kept.weight, WEIGHT_MAX)

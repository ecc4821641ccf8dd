"""Level 1 as an ordered dict: slow, and obvious. What was used last goes last, and what has ended is not there."""

from collections import OrderedDict
from time import monotonic

from muster.cache.near import OVERHEAD, Entry


class Lru:
    """The same calls as `muster.cache.near.Near`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, Entry] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()

    def get(self, key: str) -> Entry | None:
        kept = self._kept.get(key)
        if kept is not None and kept.ends <= monotonic():
            self.remove(key)
            return None
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def put(self, key: str, kept: Entry) -> None:
        if len(key) + OVERHEAD + kept.weight > self._bytes_max:
            return
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while self.bytes > self._bytes_max:
            self._kept.popitem(last=False)

    def remove(self, key: str) -> None:
        self._kept.pop(key, None)

    @property
    def bytes(self) -> int:
        return sum(len(key) + OVERHEAD + kept.weight for key, kept in self._kept.items())

    @property
    def count(self) -> int:
        return len(self._kept)

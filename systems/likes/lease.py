"""The time for which a node may answer questions without asking anybody whether it still owns what it serves.

Owns the clock: it goes on while the process or the machine stands still. The registry's side is in
`systems/likes/board.py`: nobody takes a partition over before the lease of its owner has ended.
"""

import time


def now_s() -> float:
    """A clock that nobody sets and that no sleep stops."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Of one node, for all of its partitions."""

    def __init__(self) -> None:
        self._until = 0.0

    def renew(self, until: float) -> None:
        """It lasts until then, by `now_s`."""
        self._until = until

    def end(self) -> None:
        """Another node may own everything from now on."""
        self._until = 0.0

    def lasts(self) -> bool:
        """Whether it has not ended yet."""
        return now_s() < self._until

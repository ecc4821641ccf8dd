"""The time for which a node may answer questions without checking whether it still owns its partitions.

Owns the clock, which continues while the process or the machine is stopped. The registry's side is in
`systems/likes/board.py`: no node takes a partition over before the lease of its owner has ended.
"""

import time


def now_s() -> float:
    """A clock that is never set and that no suspend stops."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of one node, for all of its partitions."""

    def __init__(self) -> None:
        self._until = 0.0

    def renew(self, until: float) -> None:
        """Extend the lease until this time of `now_s`."""
        self._until = until

    def end(self) -> None:
        """End the lease: another node may own everything from now on."""
        self._until = 0.0

    def lasts(self) -> bool:
        """Whether the lease has not ended yet."""
        return now_s() < self._until

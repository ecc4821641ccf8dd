"""The time in which a node could hear clients: leases end by it, and by no other clock.

Owns one count of ms. While the node has no broker it stands still. Of a time in which the process stood still, one second
counts at most: what clients said meanwhile still waits to be heard.
"""

import time
from collections.abc import Callable
from typing import Final

GAP_MS: Final = 1_000
"""A node that works asks for the time at least four times a second."""


class Hearing:
    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._at = int(steady_s() * 1000)
        self._passed = 0
        self._hears = True

    def now(self) -> int:
        """In ms since some moment; never goes back."""
        at = int(self._steady_s() * 1000)
        if self._hears:
            self._passed += min(at - self._at, GAP_MS)
        self._at = at
        return self._passed

    def hears(self, whether: bool) -> None:
        """Whether it has a broker, from now on."""
        self.now()
        self._hears = whether

"""The time in which a node could receive clients' messages: leases end by this time only.

Owns one count of ms. It stands still while the node has no broker. If the process stalls, at most one second of it
counts: messages of clients that arrived meanwhile still wait to be read.
"""

import time
from collections.abc import Callable
from typing import Final

GAP_MS: Final = 1_000
"""Limit of the time that counts between two calls; a working node asks for the time at least four times per second."""


class Hearing:
    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._at = int(steady_s() * 1000)
        self._passed = 0
        self._hears = True

    def now(self) -> int:
        """The time in ms since an arbitrary moment; never goes back."""
        at = int(self._steady_s() * 1000)
        if self._hears:
            self._passed += min(at - self._at, GAP_MS)
        self._at = at
        return self._passed

    def hears(self, whether: bool) -> None:
        """Set whether the node has a broker from now on."""
        self.now()
        self._hears = whether

"""The minutes by which weights recover: those of the wall clock, or of the steady one while the wall clock is behind.

Owns one count of minutes since 1970 that never goes back. It must not know weights.
"""

import time
from collections.abc import Callable
from typing import Final

MINUTE_S: Final = 60


class Minutes:
    """Continues from the highest minute if the wall clock was ahead."""

    def __init__(
        self, first: int = 0, *, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`first`: the stored count."""
        self._wall_s, self._steady_s = wall_s, steady_s
        self._minute, self._since = first, steady_s()

    def now(self) -> int:
        """The present minute."""
        wall, steady = int(self._wall_s() // MINUTE_S), self._steady_s()
        if wall >= self._minute:
            self._minute, self._since = wall, steady
        elif passed := int((steady - self._since) // MINUTE_S):
            self._minute += passed
            self._since += passed * MINUTE_S
        return self._minute

"""Failed logins: after some of them each further try waits longer. In bounded memory; time is passed in.

Counted for each name and for each address, so that neither many names nor many addresses help a guesser.
"""

from collections import OrderedDict
from typing import Final

FREE: Final = 5
"""Failures that cost no wait: people mistype."""
FIRST_S, LONGEST_S = 1.0, 300.0
"""The wait after the next failure is doubled up to the second figure."""
FORGET_S: Final = 900.0
"""Failures are forgotten this long after the last one."""
KEPT_MAX: Final = 20_000


class Attempts:
    """The failures of all names and addresses."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of failures and the time of the last one, in the order of the last one."""

    def wait(self, who: str, now: float) -> float:
        """Seconds until the next try is accepted; 0: now."""
        count, last = self._failed.get(who, (0, now))
        if count < FREE or now - last > FORGET_S:
            return 0.0
        return max(0.0, last + min(FIRST_S * 2.0 ** min(count - FREE, 30), LONGEST_S) - now)

    def failed(self, who: str, now: float) -> None:
        """Count a failure."""
        count, last = self._failed.get(who, (0, now))
        self._failed[who] = (1 if now - last > FORGET_S else count + 1, now)
        self._failed.move_to_end(who)
        while len(self._failed) > KEPT_MAX:
            self._failed.popitem(last=False)

    def succeeded(self, who: str) -> None:
        """Forget the failures of a name after its right password."""
        self._failed.pop(who, None)

"""The rate of each key of a topic: when a message may leave. It must not know who takes it.

A message that is too early gets a moment of its own, the next that is free for its key, so it comes back once. A bucket
is kept as the moment at which it is full again, and only while it is not.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

SECOND_US: Final = 1_000_000
HORIZON_US: Final = 300 * SECOND_US
"""Moments are given out up to this time ahead; a message that would be later asks again then."""
KEYS_MAX: Final = 65_536
"""Limit of keys whose buckets are not full; messages of further keys ask again after a second."""
RESERVED_MAX: Final = 65_536
"""Limit of moments that are given out; further messages ask again as beyond the horizon. And limit of messages beyond it
that another rate wakes; the others ask again by themselves."""
UNUSED_US: Final = 60 * SECOND_US
"""A moment that its message has not used after this time is given up: the message was cancelled, or has expired."""


class KeyRates:
    """`rate`: messages per second of one key. A burst is at most one second of it, and never less than one message.

    Times are in microseconds, by any clock that never goes back."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._interval = max(1, round(SECOND_US / rate))
        self._burst = max(0, SECOND_US - self._interval)
        self._full: OrderedDict[str, int] = OrderedDict()
        """By key: when its bucket is full again."""
        self._reserved: dict[int, int] = {}
        """By message: its moment."""
        self._later: dict[int, int] = {}
        """Messages beyond the horizon, with the time at which they ask again."""
        self._swept_at = 0

    @property
    def waiting(self) -> int:
        """Number of messages that wait."""
        return len(self._reserved) + len(self._later)

    def all_waiting(self) -> Iterable[int]:
        """The numbers of these messages."""
        return (*self._reserved, *self._later)

    def has(self, number: int) -> bool:
        """Whether a message waits."""
        return number in self._reserved or number in self._later

    def admit(self, key: str, number: int, now: int) -> int:
        """0: the message leaves now. Else the time until it is to come back."""
        self._later.pop(number, None)
        at = self._reserved.get(number)
        if at is not None:
            if at > now:
                return at - now
            del self._reserved[number]
            return 0
        if key not in self._full and len(self._full) >= KEYS_MAX:
            self.sweep(now)
            if len(self._full) >= KEYS_MAX:
                return self._put_off(number, now, SECOND_US)
        full = max(self._full.get(key, now), now)
        wait = max(0, full - self._burst - now)
        if wait > HORIZON_US or (wait and len(self._reserved) >= RESERVED_MAX):
            return self._put_off(number, now, HORIZON_US)
        self._full[key] = full + self._interval
        self._full.move_to_end(key)
        if wait:
            self._reserved[number] = now + wait
        return wait

    def _put_off(self, number: int, now: int, wait: int) -> int:
        if len(self._later) < RESERVED_MAX:
            self._later[number] = now + wait
        return wait

    def sweep(self, now: int) -> None:
        """Forget full buckets and unused moments, at most once a second."""
        if now - self._swept_at < SECOND_US:
            return
        self._swept_at = now
        for key in [key for key, full in self._full.items() if full <= now]:
            del self._full[key]
        for waiting in (self._reserved, self._later):
            for number in [number for number, at in waiting.items() if at < now - UNUSED_US]:
                del waiting[number]

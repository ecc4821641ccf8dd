"""Calls of handlers by whole hour: a counter, and two bits for each call, `committed` and `aborted` (SITE-3).

A statistic, and a cache of outcomes for check-backs that come to the process that made the call. It decides nothing: a
bit is set once the call's outcome is final, and never cleared; a bit that is not set means nothing. Each process counts
its own calls, so no two calls share an offset, whatever is lost. Knows no message, no database and no server.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HOUR_S: Final = 3_600
KEPT_HOURS: Final = 48
"""Hours for which figures, and bits of calls that are still open, are kept."""
HOURS_MAX: Final = 4_096
"""Limit of pairs of handler and hour. Beyond it, the oldest are forgotten."""
PROCESS_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `hour`: start of its hour, in seconds since 1970. `process`: a random name of one process's life."""

    handler: str
    hour: int
    process: str
    offset: int


@dataclass(frozen=True, slots=True)
class Hour:
    """The figures of a handler for the calls that began in one hour."""

    handler: str
    hour: int
    calls: int
    committed: int
    aborted: int

    @property
    def open(self) -> int:
        """Calls whose outcome this process does not know."""
        return self.calls - self.committed - self.aborted


class _Bits:
    """A bitmap that grows."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def set(self, offset: int) -> None:
        place = offset >> 3
        if place >= len(self._bytes):
            self._bytes.extend(bytes(place + 1 - len(self._bytes)))
        self.count += not self[offset]
        self._bytes[place] |= 1 << (offset & 7)

    def __getitem__(self, offset: int) -> bool:
        place = offset >> 3
        return place < len(self._bytes) and bool(self._bytes[place] >> (offset & 7) & 1)

    def drop(self) -> None:
        """Free the bits; their count stays."""
        self._bytes = bytearray()


class _Key:
    """A handler and an hour."""

    def __init__(self) -> None:
        self.calls, self.committed, self.aborted = 0, _Bits(), _Bits()
        self.closed = False

    def tidy(self) -> None:
        """Free the bits once all are set and no further call can come: the figures are enough."""
        if self.calls == self.committed.count + self.aborted.count:
            self.committed.drop()
            self.aborted.drop()
            self.closed = True


class Calls:
    """The calls of this process. Threads may share it."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid, self._process = os.getpid(), secrets.token_hex(PROCESS_BYTES)
        self._keys: dict[tuple[str, int], _Key] = {}

    def _own(self) -> None:
        if os.getpid() != self._pid:  # a fork: the child must not use the offsets of its parent
            self._begin()

    def begin(self, handler: str) -> Call:
        """Begin the next call of a handler."""
        with self._lock:
            self._own()
            hour = int(self._wall()) // HOUR_S * HOUR_S
            key = self._keys.get((handler, hour))
            if key is None:
                self._forget(hour)
                key = self._keys[handler, hour] = _Key()
            key.calls += 1
            return Call(handler, hour, self._process, key.calls - 1)

    def end(self, call: Call, *, committed: bool) -> None:
        """Record the outcome of a call. A reported failure closes its bit too."""
        with self._lock:
            key = self._known(call)
            if key is not None and not key.committed[call.offset] and not key.aborted[call.offset]:
                (key.committed if committed else key.aborted).set(call.offset)
                if call.hour + HOUR_S <= self._wall():
                    key.tidy()

    def outcome(self, call: Call) -> bool | None:
        """Return whether the call committed; None if this process does not know."""
        with self._lock:
            key = self._known(call)
            if key is None:
                return None
            return True if key.committed[call.offset] else False if key.aborted[call.offset] else None

    def hours(self) -> list[Hour]:
        """All figures, the oldest hour first."""
        with self._lock:
            self._own()
            return sorted(
                (
                    Hour(handler, hour, key.calls, key.committed.count, key.aborted.count)
                    for (handler, hour), key in self._keys.items()
                ),
                key=lambda each: (each.hour, each.handler),
            )

    def _known(self, call: Call) -> _Key | None:
        """The key of a call; None: another process made the call, or it is forgotten."""
        if call.process != self._process or os.getpid() != self._pid:
            return None
        key = self._keys.get((call.handler, call.hour))
        return key if key is not None and not key.closed and 0 <= call.offset < key.calls else None

    def _forget(self, hour: int) -> None:
        """Make room for a new key; `hour` is the start of its hour."""
        for place, key in list(self._keys.items()):
            if place[1] <= hour - KEPT_HOURS * HOUR_S:
                del self._keys[place]
            elif place[1] < hour:
                key.tidy()
        while len(self._keys) >= HOURS_MAX:
            del self._keys[min(self._keys, key=lambda place: place[1])]

"""The load engine in memory: members of one room that all get what is published.

`FAKE_DROP=3` in the environment: the third message reaches nobody.
"""

import os
import time
from typing import Any, Final

TOOK_US: Final = 1_000
"""A message arrives this much later."""


class LoadEngine:
    """Publishes by its schedule to its members."""

    def __init__(self, *, members: int, rooms: list[str], **_options: object) -> None:
        self._members, self._rooms = members, rooms
        self._rate = self._began = 0.0
        self._published = self._lost = 0
        self._stopped = False
        self._dropped = os.environ.get("FAKE_DROP", "").split()

    def connect(self, _timeout: float) -> int:
        return self._members

    def schedule(self, _size: int, rate: float, _seconds: float, _ramp: float) -> None:
        self._rate, self._began = rate, time.monotonic()

    def stop(self) -> None:
        self._stopped = True

    def advance(self, seconds: float) -> dict[str, Any]:
        took = b""
        time.sleep(seconds)
        if not self._stopped:
            due = int((time.monotonic() - self._began) * self._rate)
            for number in range(self._published + 1, due + 1):
                if str(number) in self._dropped:
                    self._lost += self._members
                else:
                    took += TOOK_US.to_bytes(4, "little") * self._members
            self._published = due
        return {
            "published": self._published,
            "delivered": self._published * self._members - self._lost,
            "latencies_us": took,
            "complete": self._stopped and not self._lost,
        }

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        pass

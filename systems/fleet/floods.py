"""Floods: how many messages a client may send on one topic in a second.

Owns counts of the present second. It must not know what messages mean, nor a clock. What is beyond is not decoded: a flood
costs a look-up a message, and nobody else's place.
"""

from collections import Counter

SECOND_MS = 1_000


class Floods:
    def __init__(self, most: int) -> None:
        """`most`: messages of one topic in a second. Bounded by the clients that speak in it, as each has its topics."""
        self._most = most
        self._since = 0
        self._counts: Counter[str] = Counter()

    def over(self, now_ms: int, topic: str) -> bool:
        """Count a message: whether it is one too many."""
        if now_ms - self._since >= SECOND_MS:
            self._since = now_ms
            self._counts.clear()
        self._counts[topic] += 1
        return self._counts[topic] > self._most

"""Floods: limits the messages that a client may send on one topic per second.

Owns counts of the current second. It must not know the meaning of messages, nor a clock. A message beyond the limit is
not decoded: a flood costs one look-up per message, and affects no other client.
"""

from collections import Counter

SECOND_MS = 1_000


class Floods:
    def __init__(self, most: int) -> None:
        """`most`: limit of messages of one topic per second. The number of topics is bounded by the number of clients."""
        self._most = most
        self._since = 0
        self._counts: Counter[str] = Counter()

    def over(self, now_ms: int, topic: str) -> bool:
        """Count a message; returns whether it exceeds the limit."""
        if now_ms - self._since >= SECOND_MS:
            self._since = now_ms
            self._counts.clear()
        self._counts[topic] += 1
        return self._counts[topic] > self._most

"""The rate of a topic: a bucket of messages that may leave now. It must not know who takes them."""


class Bucket:
    """`rate`: messages per second. A burst is at most one second of it, and never less than one message."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self._left, self._at = rate, max(1.0, rate), now

    def left(self, now: float) -> int:
        """Number of messages that may leave now."""
        self._left = min(max(1.0, self.rate), self._left + (now - self._at) * self.rate)
        self._at = now
        return int(self._left)

    def take(self, most: int, now: float) -> int:
        """Let up to `most` messages leave; returns how many may."""
        count = min(most, self.left(now))
        self._left -= count
        return count

    def give_back(self, count: int) -> None:
        """These did not leave."""
        self._left += count

    def wait_s(self, count: int = 1) -> float:
        """Time until `count` messages may leave."""
        return max(0.0, (count - self._left) / self.rate)

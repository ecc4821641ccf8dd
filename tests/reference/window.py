"""Slow, obvious model of `core/transport/src/window.rs`: a set of every number ever taken."""

from typing import Literal

Verdict = Literal["fresh", "duplicate", "old"]
BITS = 64
SPAN = 256
RANGES = 4


class Window:
    """Numbers seen of one sender; a number is told apart as long as its block of 64 is among the last `blocks`."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.seen: set[int] = set()

    @property
    def highest(self) -> int:
        return max(self.seen, default=0)

    @property
    def lowest(self) -> int:
        return max(1, (self.highest // BITS - (self.blocks - 1)) * BITS)

    def check(self, seq: int) -> Verdict:
        if seq < self.lowest:
            return "old"
        return "duplicate" if seq in self.seen else "fresh"

    def commit(self, seq: int) -> Verdict:
        verdict = self.check(seq)
        if verdict == "fresh":
            self.seen.add(seq)
        return verdict

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Newest first, (first, last) inclusive, at most four, within the last 256 numbers."""
        runs: list[tuple[int, int]] = []
        for seq in range(self.highest - 1, max(self.lowest, self.highest - SPAN + 1) - 1, -1):
            if seq in self.seen:
                continue
            if runs and runs[-1][0] == seq + 1:
                runs[-1] = (seq, runs[-1][1])
            else:
                runs.append((seq, seq))
        return runs[:RANGES]

    def missing_between(self, first: int, last: int) -> int:
        numbers = range(max(first, self.lowest), min(last, self.highest) + 1)
        return sum(seq not in self.seen for seq in numbers)

"""Slow, obvious model of `core/rooms/src/order.rs`: a list of what was applied, a dict of what is held."""

from dataclasses import dataclass, field
from typing import Literal

HELD_MESSAGES_MAX = 768
HELD_BYTES_MAX = 768 * 1024
UNACKED_MESSAGES_MAX = 256 + HELD_MESSAGES_MAX
REMEMBERED_MESSAGES = UNACKED_MESSAGES_MAX
RANGES = 4

Verdict = Literal["apply", "hold", "duplicate", "zero", "beyond_credit", "held_full"]


@dataclass
class Publisher:
    """One publisher in one room; a broker that does not know it starts at its lowest unacknowledged sequence."""

    lowest: int
    applied_at: list[tuple[int, int]] = field(default_factory=list)
    held: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    last_seen_us: int = 0

    def __post_init__(self) -> None:
        self.lowest = max(1, self.lowest)

    @property
    def next(self) -> int:
        after = self.applied_at[-1][0] + 1 if self.applied_at else self.lowest
        return max(after, self.lowest)

    @property
    def cumulative(self) -> int:
        return self.next - 1

    @property
    def highest(self) -> int:
        return max(self.held, default=self.next - 1)

    @property
    def held_bytes(self) -> int:
        return sum(len(data) for _, data in self.held.values())

    def settle(self, lowest_unacked: int) -> None:
        """Everything below is acknowledged, here or by another owner."""
        self.lowest = max(self.lowest, lowest_unacked)
        self.held = {seq: kept for seq, kept in self.held.items() if seq >= self.lowest}

    def offer(self, now_us: int, seq: int, size: int) -> tuple[Verdict, int | None]:
        self.last_seen_us = now_us
        if seq == 0:
            return "zero", None
        if seq < self.next:
            return "duplicate", self.offset_of(seq)
        if seq == self.next:
            return "apply", None
        if seq >= self.next + UNACKED_MESSAGES_MAX:
            return "beyond_credit", None
        if seq in self.held:
            return "duplicate", None
        if len(self.held) >= HELD_MESSAGES_MAX or self.held_bytes + size > HELD_BYTES_MAX:
            return "held_full", None
        return "hold", None

    def hold(self, seq: int, flags: int, data: bytes) -> None:
        self.held[seq] = (flags, data)

    def pop_ready(self) -> tuple[int, int, bytes] | None:
        kept = self.held.pop(self.next, None)
        return None if kept is None else (self.next, *kept)

    def applied(self, seq: int, offset: int) -> None:
        assert seq == self.next, "messages are applied in order"
        self.applied_at.append((seq, offset))
        self.held.pop(seq, None)

    def remembered(self) -> list[tuple[int, int]]:
        return [(seq, offset) for seq, offset in self.applied_at[-REMEMBERED_MESSAGES:] if seq >= self.lowest]

    def offset_of(self, seq: int) -> int | None:
        return dict(self.remembered()).get(seq)

    def runs(self, from_seq: int) -> list[tuple[int, int, int]]:
        """(first sequence, first offset, count), ascending."""
        runs: list[tuple[int, int, int]] = []
        for seq, offset in self.remembered():
            if seq < from_seq:
                continue
            if runs and runs[-1][1] + runs[-1][2] == offset:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((seq, offset, 1))
        return runs

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Lowest first, (first, last) inclusive, at most four."""
        runs: list[tuple[int, int]] = []
        for seq in range(self.next, self.highest):
            if seq in self.held:
                continue
            if runs and runs[-1][1] == seq - 1:
                runs[-1] = (runs[-1][0], seq)
            else:
                runs.append((seq, seq))
        return runs[:RANGES]

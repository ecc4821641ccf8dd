"""Stored records and their changes: a gateway's report on a room, and the end of a gateway's life. Knows no database."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NODE_MAX: Final = (1 << 32) - 1
EPOCH_MAX: Final = (1 << 32) - 1
VERSION_MAX: Final = 1 << 62
"""The largest version of a frame, and of a signed column. A gateway increments it with each change."""
ROOM_MAX: Final = (1 << 64) - 1
PARTITIONS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Membership:
    """The last report of a gateway, in one life, on a room: whether it wants the room."""

    gateway: int
    epoch: int
    room: int
    check: int
    """The other half of the hash of the room's name."""
    version: int
    present: bool

    def __post_init__(self) -> None:
        _within("gateway", self.gateway, NODE_MAX)
        _within("epoch", self.epoch, EPOCH_MAX)
        _within("room", self.room, ROOM_MAX)
        _within("check", self.check, ROOM_MAX)
        _within("version", self.version, VERSION_MAX)

    @property
    def key(self) -> tuple[int, int]:
        """The gateway and the room."""
        return self.gateway, self.room

    @property
    def age(self) -> tuple[int, int]:
        """The order of reports on one key; it never uses a clock."""
        return self.epoch, self.version


@dataclass(frozen=True, slots=True)
class Partition:
    """The rooms whose id leaves `index` when divided by `count`, a power of two."""

    count: int = 1
    index: int = 0

    def __post_init__(self) -> None:
        if self.count not in {1 << bit for bit in range(PARTITIONS_MAX.bit_length())}:
            raise ValueError(
                f"invalid number of partitions {self.count} (expected a power of two up to {PARTITIONS_MAX})"
            )
        _within("partition", self.index, self.count - 1)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a gateway's life for the rooms of a partition: it deletes all reports of that life or an earlier one."""

    gateway: int
    epoch: int
    partition: Partition

    def __post_init__(self) -> None:
        _within("gateway", self.gateway, NODE_MAX)
        _within("epoch", self.epoch, EPOCH_MAX)


Change = Membership | Ended


def newest(memberships: Iterable[Membership]) -> list[Membership]:
    """The newest report for each key."""
    kept: dict[tuple[int, int], Membership] = {}
    for each in memberships:
        known = kept.get(each.key)
        if known is None or known.age < each.age:
            kept[each.key] = each
    return list(kept.values())


def _within(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"{name} {value} is out of range (0 to {most})")

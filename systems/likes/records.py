"""What is written behind and read back: rows of items, users, and what a database holds of one log. Knows no database."""

from dataclasses import dataclass

Row = tuple[bytes, int, tuple[int, bytes] | None]
"""Key, modification, and count and dense ids in the portable roaring format; None where the item was deleted."""
User = tuple[int, int]
"""Dense id and user."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the database holds of one log."""

    offset: int = 0
    """Rows hold all changes below it."""
    users: int = 0
    """Users that are there, in the order in which they got their dense ids."""
    snapshot_offset: int = 0
    """The snapshot holds all records below it; 0: there is none."""
    snapshot: bytes | None = None
    """None, and an offset: parts of it are missing."""
    epoch: int = 0
    """Of the owner that wrote last."""

    @property
    def proven(self) -> int:
        """The log had all records below this offset."""
        return max(self.offset, self.snapshot_offset)

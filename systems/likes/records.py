"""The shapes of the write-behind: rows of items, users, and the database's state of one log. Knows no database."""

from dataclasses import dataclass

Row = tuple[bytes, int, tuple[int, bytes] | None]
"""Key, modification, and count and dense ids in the portable roaring format; None if the item was deleted."""
User = tuple[int, int]
"""Dense id and user."""
KnownUser = tuple[int, int | None]
"""Dense id and user; None: the user was erased."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The database's state of one log."""

    offset: int = 0
    """Rows contain all changes below this offset."""
    users: int = 0
    """The number of users; they are ordered by their dense ids."""
    snapshot_offset: int = 0
    """The snapshot contains all records below this offset; 0: there is none."""
    snapshot: bytes | None = None
    """None, with an offset set: parts of it are missing."""
    epoch: int = 0
    """Epoch of the owner that wrote last."""

    @property
    def proven(self) -> int:
        """The offset up to which the log had all records."""
        return max(self.offset, self.snapshot_offset)

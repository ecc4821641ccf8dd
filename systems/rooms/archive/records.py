"""The interface of a store of the archive. `database/` implements it for SQLite, MariaDB, MySQL and PostgreSQL.

It must not know SQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from muster_server.systems.rooms.archive.blocks import Block
from muster_server.systems.rooms.archive.keyed import Keyed
from muster_server.systems.rooms.archive.shapes import Latest, Page, Read, ReadLatest


@dataclass(frozen=True, slots=True)
class State:
    """How far a room is written. `positions`: the value of `room.positions` behind its newest item."""

    last_seq: int = 0
    at_ms: int = 0
    positions: bytes = b""


@dataclass(frozen=True, slots=True)
class Write:
    """The next blocks of one room after `last_seq`: at least one block."""

    room: str
    last_seq: int
    blocks: Sequence[Block]
    positions: bytes
    begun: bool
    """The first write of a room begins with the room's very first message."""
    latest: Sequence[Keyed] = ()
    """The latest message of each key in the blocks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept."""

    keep_ms: int
    room_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The messages of the archive."""

    rooms: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Dropped messages. `more`: there may be more to drop."""

    messages: int
    more: bool


class Store(Protocol):
    """Rooms of one instance. Every call is one transaction and raises `StoreError`; a write is durable when it returns."""

    where: str
    left_out: int
    """Messages whose key was left out, as their room has too many."""

    async def state(self, room: str) -> State:
        """How far a room is written."""

    async def write(self, writes: Sequence[Write]) -> set[str]:
        """Write all, except for rooms that another writer has changed since: these are returned, and unchanged. A write that
        was done before is not done again."""

    async def read(self, asked: Read) -> Page:
        """A page."""

    async def latest(self, asked: ReadLatest) -> Latest:
        """A page of the latest message of each key."""

    async def trim(self, now: int, limits: Limits) -> Trimmed:
        """Drop some of the oldest blocks beyond the limits."""

    async def totals(self) -> Totals:
        """The messages that it has."""

    async def close(self) -> None:
        """Close all connections."""

"""The interface of a store of inboxes. `database/` implements it for SQLite, MariaDB, MySQL and PostgreSQL.

Owns the protocol and the rows that only the nodes use. It must not know SQL.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from muster_server.systems.inbox.shapes import (
    Broadcast,
    Choose,
    Chosen,
    Count,
    Counts,
    Done,
    Entry,
    Join,
    Mail,
    Mark,
    New,
    Noted,
    Numbered,
    Page,
    Read,
    Totals,
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and defaults of the configuration that a store keeps."""

    entries_max: int = 10_000
    broadcasts_max: int = 10_000
    required: frozenset[str] = frozenset()
    """Kinds that no user can turn off."""
    mail: Mail = "never"
    """The default for kinds without a setting."""
    mails: bool = False
    """False: no mail is ever due."""
    mail_wait_ms: int = 600_000
    daily_ms: int = 28_800_000
    """Time of the daily mail after midnight, UTC."""


class Due(msgspec.Struct, frozen=True):
    """An entry whose mail is due."""

    user: int
    way: Mail
    due: int
    entry: Entry


class Told(msgspec.Struct, frozen=True):
    """A new entry, for hints to the user's devices."""

    user: int
    seq: int
    new: New
    push: bool


class Store(Protocol):
    """Inboxes of one instance. Every call is one transaction; an answered change is durable. Raises `StoreError`, and its
    `BadValue` for a value that the store cannot take."""

    dropped: int
    """Entries beyond the limit of their inboxes, and old ones."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Rows that cannot be read, with the reason of each; the first thousand."""

    async def notify(self, asked: Sequence[tuple[int, New]], now: int, told: list[Told] | None = None) -> list[Noted]:
        """Put entries into inboxes, in this order. `told` gets those that are new or have grown."""

    async def broadcast(self, asked: Broadcast, now: int) -> Numbered:
        """Add a broadcast. Raises `Full`."""

    async def read(self, asked: Read, now: int) -> Page:
        """A page of an inbox."""

    async def count(self, asked: Count, now: int) -> Counts:
        """Unread and unseen entries."""

    async def unread(self, users: Sequence[int], now: int) -> dict[int, int]:
        """The unread entries of users that have any row, all kinds together; each count stops at `COUNT_MAX`."""

    async def mark(self, asked: Mark, now: int) -> Done:
        """Mark entries; marks only grow."""

    async def join(self, asked: Join) -> Done:
        """Change an audience. Raises `Full`."""

    async def choose(self, asked: Choose) -> Chosen:
        """Change and return a user's settings. Raises `Full`."""

    async def due(self, now: int, limit: int) -> list[Due]:
        """Entries whose mail is due and that are not read; the mails of read ones are dropped."""

    async def mailed(self, sent: Sequence[Due]) -> None:
        """The mails of these entries were handed on."""

    async def sweep(self, now: int, keep_ms: int, ids_ms: int, limit: int) -> int:
        """Drop old entries, ids and broadcasts; returns how many entries. Bounded by `limit` rows of each."""

    async def totals(self, now: int) -> Totals:
        """The totals of the store."""

    async def close(self) -> None:
        """Close it."""

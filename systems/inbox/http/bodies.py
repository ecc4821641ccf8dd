"""The shapes of the inbox in JSON: what requests have, and what answers say."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from muster_server.systems.http.times import Time
from muster_server.systems.inbox.shapes import (
    CURSOR,
    ENTRY,
    MARKED_MAX,
    NUMBER_MAX,
    USERS_MAX,
    Audience,
    Choice,
    Cursor,
    Entry,
    Id,
    Kind,
    Outcome,
    Text,
    cursor,
)

CursorText = Annotated[str, Meta(pattern=rf"^{CURSOR}\Z")]
EntryId = Annotated[str, Meta(pattern=rf"^{ENTRY}\Z")]


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class NewEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry for users, each a number of 64 bits as text, or the text that names the user."""

    users: Annotated[list[str], Meta(min_length=1, max_length=USERS_MAX)]
    kind: Kind
    data: msgspec.Raw = msgspec.field(default_factory=_null)
    """Any JSON."""
    group: Text = ""
    """Entries of a kind with the same group are one entry, which grows."""
    actor: Text = ""
    id: Id = ""
    """Entries with the same id are one entry."""


class NewBroadcast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry for an audience; `until` in milliseconds since 1970, or ISO 8601 with a zone."""

    audience: Audience
    kind: Kind
    data: msgspec.Raw = msgspec.field(default_factory=_null)
    actor: Text = ""
    id: Id = ""
    until: Time | None = None


class Marked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries to mark: all up to a cursor, of one kind or of all kinds; or single ones."""

    to: CursorText | None = None
    kind: Kind | Literal[""] = ""
    entries: Annotated[list[EntryId], Meta(max_length=MARKED_MAX)] = []


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings by kind. An empty setting is reset to what the configuration says."""

    kinds: dict[Kind, Choice]


class NotedUser(msgspec.Struct, frozen=True):
    """The number of a user's entry; 0: there is none."""

    user: str
    seq: int
    outcome: Outcome


class NotedUsers(msgspec.Struct, frozen=True):
    """The users in the order of the request."""

    users: list[NotedUser]


class ShownEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry; `at` in ms since 1970."""

    id: str
    kind: str
    at: int
    read: bool
    data: msgspec.Raw
    count: int = 1
    group: str = ""
    actor: str = ""
    audience: str = ""


class ShownPage(msgspec.Struct, frozen=True):
    """A page of an inbox. `after`: for a stream, or for what comes later. `next`: the cursor of the next page in the same
    direction; null: this is the last one."""

    entries: list[ShownEntry]
    after: str
    next: str | None


class ShownCounts(msgspec.Struct, frozen=True):
    """Counts by kind, and in all; each stops at 99."""

    unread: dict[str, int]
    unseen: dict[str, int]
    total_unread: int
    total_unseen: int


class ShownBroadcast(msgspec.Struct, frozen=True):
    """A broadcast. `outcome`: `new`, `same`, or `conflict`: another one has the id."""

    id: str
    outcome: Outcome
    until: int


class ShownDone(msgspec.Struct, frozen=True):
    """How many rows were changed."""

    changed: int


def shown(entry: Entry) -> ShownEntry:
    """An entry in JSON."""
    return ShownEntry(
        entry.id,
        entry.kind,
        entry.at,
        entry.read,
        msgspec.Raw(entry.data),
        entry.count,
        entry.group,
        entry.actor,
        entry.audience,
    )


def before(text: str) -> Cursor:
    """The cursor of a page backwards. Without the number of a broadcast none is left out. Raises `ValueError`."""
    return cursor(text, NUMBER_MAX)

"""Entries, broadcasts and requests about them, between the processes of the system; and their limits.

Owns shapes and limits. It must not know a store, a route or a connection.
"""

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

ROLE: Final = "inbox"
USERS_MAX: Final = 1_000
"""Limit of users in one request."""
DATA_BYTES_MAX: Final = 4_096
"""Limit of an entry's data, in JSON."""
PAGE_MAX: Final = 200
COUNT_MAX: Final = 99
"""A count of unread or unseen entries stops here."""
MARKED_MAX: Final = 200
"""Limit of entries that one request marks one by one."""
SETTINGS_MAX: Final = 64
"""Limit of kinds for which a user has settings."""
AUDIENCES_MAX: Final = 1_000
"""Limit of audiences of one user."""
NUMBER_MAX: Final = 10**18
"""Above every number of an entry."""
ALL: Final = "all"
"""The audience of every user."""

KIND: Final = r"[a-z][a-z0-9_-]{0,31}"
AUDIENCE: Final = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}"
ID: Final = r"[A-Za-z0-9][A-Za-z0-9_:.-]{0,127}"
CURSOR: Final = r"(?:0|[1-9][0-9]{0,17})(?:-(?:0|[1-9][0-9]{0,17}))?"
ENTRY: Final = r"b?[1-9][0-9]{0,17}"
TEXT_CHARS_MAX: Final = 64

Kind = Annotated[str, Meta(pattern=rf"^{KIND}\Z")]
Audience = Annotated[str, Meta(pattern=rf"^{AUDIENCE}\Z")]
Id = Annotated[str, Meta(pattern=rf"^({ID})?\Z")]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Mail = Literal["never", "at_once", "unless_read", "daily"]
"""When an entry is also handed on as a mail: `unless_read` after a while, `daily` with the other entries of the day."""
Outcome = Literal["new", "grown", "same", "off", "conflict"]
"""The result of a new entry. `grown`: its group has it. `same`: it was there before. `off`: the user has turned its kind
off. `conflict`: another entry has the id."""


class Cursor(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place in an inbox: the number of the last own entry, and of the last broadcast."""

    seq: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.seq}-{self.number}"


def cursor(text: str, number: int = 0) -> Cursor:
    """Parse `SEQ-NUMBER`, or `SEQ` with this number of broadcasts. Raises `ValueError`."""
    if not re.fullmatch(CURSOR, text, re.ASCII):
        raise ValueError(f"invalid cursor {text!a:.60} (expected the `after` or `before` of a page, for example 58-12)")
    seq, dash, told = text.partition("-")
    return Cursor(int(seq), int(told) if dash else number)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user's settings for one kind. None: as the configuration says."""

    inbox: bool | None = None
    """False: entries of the kind are not kept."""
    push: bool | None = None
    """False: devices are not told of them."""
    mail: Mail | None = None


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as its reader gets it. `id`: its number, for a broadcast with `b` before it."""

    id: str
    kind: str
    group: str
    actor: str
    count: int
    at: int
    """Milliseconds since 1970."""
    data: bytes
    read: bool
    audience: str = ""
    """Audience of a broadcast."""


class New(msgspec.Struct, frozen=True, array_like=True):
    """An entry for users. `id`: the same id is the same entry."""

    kind: str
    data: bytes
    group: str = ""
    actor: str = ""
    id: str = ""


class Notify(msgspec.Struct, frozen=True, tag=True):
    """Put an entry into these inboxes."""

    users: list[int]
    new: New


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """The number of a user's entry; 0: there is none."""

    seq: int
    outcome: Outcome


class Broadcast(msgspec.Struct, frozen=True, tag=True):
    """Put an entry into the inboxes of an audience, until a time in ms since 1970."""

    audience: str
    new: New
    until: int


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """The number of a broadcast. `outcome`: `new`, `same` or `conflict`."""

    number: int
    outcome: Outcome


class Read(msgspec.Struct, frozen=True, tag=True):
    """A page of a user's inbox: the entries after a cursor, the oldest first; or before one, or the last ones, the newest
    first."""

    user: int
    after: Cursor | None = None
    before: Cursor | None = None
    kind: str = ""
    limit: int = 50


class Page(msgspec.Struct, frozen=True, array_like=True):
    """`end`: the cursor behind these entries, in the direction of reading. `now`: the newest place in the inbox."""

    entries: list[Entry]
    end: Cursor
    now: Cursor
    more: bool
    audiences: dict[str, int]
    """The user's audiences, with the broadcast after which each began."""
    hidden: list[str]
    """Kinds that the user has turned off."""


class Count(msgspec.Struct, frozen=True, tag=True):
    """Count a user's unread and unseen entries."""

    user: int


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Counts by kind, each at most `COUNT_MAX`; kinds without such entries are missing."""

    unread: dict[str, int]
    unseen: dict[str, int]


class Mark(msgspec.Struct, frozen=True, tag=True):
    """Mark entries as read or seen: all up to a cursor, of one kind or of all; or single ones as read."""

    user: int
    verb: Literal["read", "seen"]
    to: Cursor | None = None
    kind: str = ""
    entries: list[str] = []


class Join(msgspec.Struct, frozen=True, tag=True):
    """Add users to an audience, from now on; or remove them."""

    audience: str
    users: list[int]
    leave: bool = False


class Chosen(msgspec.Struct, frozen=True, array_like=True):
    """A user's settings by kind."""

    kinds: dict[str, Choice]


class Choose(msgspec.Struct, frozen=True, tag=True):
    """Change a user's settings for these kinds; None: only return them."""

    user: int
    kinds: dict[str, Choice] | None = None


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Follow all changes from now on."""


class Changes(msgspec.Struct, frozen=True, array_like=True):
    """Users with new entries or settings, and new broadcasts. Empty: nothing changed for a while."""

    users: list[int] = []
    broadcasts: list[tuple[int, Entry]] = []
    """With their numbers."""


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Ask for the totals of the store."""


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The totals of the store. `mails_overdue_s`: how late the oldest mail is."""

    users: int
    entries: int
    broadcasts: int
    mails: int
    mails_overdue_s: float


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A request was carried out. `count`: how many rows changed."""

    count: int

"""Rows of the tables as entries and users. A row that is damaged, or that another program wrote wrongly, is judged alone:
it is listed with its reason, and hides nothing else.

Owns what is a good row. It changes nothing and asks no database.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muster_server.systems.inbox.database.schema import loaded
from muster_server.systems.inbox.merging import Row
from muster_server.systems.inbox.preferences import Preferences, parsed
from muster_server.systems.inbox.records import Limits
from muster_server.systems.inbox.shapes import AUDIENCE, DATA_BYTES_MAX, KIND, TEXT_CHARS_MAX, Entry

LISTED_MAX: Final = 1_000
"""Limit of listed rows."""
TIME_MAX: Final = 1 << 53
_KIND: Final = re.compile(KIND, re.ASCII)
_AUDIENCE: Final = re.compile(AUDIENCE, re.ASCII)


class Unreadable:
    """The rows that could not be read when they were read last, each with its reason; bounded."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def judge(self, name: str, why: str) -> bool:
        """List a row, or take it off the list. Returns whether it is good."""
        if not why:
            if self.rows:
                self.rows.pop(name, None)
            return True
        if name in self.rows or len(self.rows) < LISTED_MAX:
            self.rows[name] = why
        return False


class Marks:
    """The marks of a user, by kind."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._kinds = {row["kind"]: row for row in rows}

    def of(self, kind: str, name: str) -> int:
        """The greater of the mark of a kind, and the one of all kinds."""
        found = (self._kinds[each][name] for each in (kind, "") if each in self._kinds)
        return max((each for each in found if isinstance(each, int)), default=0)


class Person(Preferences):
    """The row of a user."""

    def __init__(self, user: int, row: Sequence[Any] | None, limits: Limits, unreadable: Unreadable) -> None:
        """`row`: `last_seq`, `since` and `settings`; None: there is none."""
        last_seq, since, settings = (0, 0, None) if row is None else row
        why = ""
        try:
            kinds = parsed(settings)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            kinds, why = {}, f"settings: {error}"
        self.numbered = _whole(last_seq)
        """Whether `last_seq` is a number; otherwise the entries tell the last one."""
        if not self.numbered:
            last_seq, why = 0, f"last_seq: invalid number {last_seq!a:.40}"
        if not _whole(since):
            since, why = 0, f"since: invalid number {since!a:.40}"
        unreadable.judge(f"muster_inbox_users: user {loaded(user)}", why[:200])
        super().__init__(kinds, limits)
        self.last_seq: int = last_seq
        self.since: int = since


def entry(row: Any, marks: Marks, unreadable: Unreadable) -> Row:
    """An entry of a user, with its number; None instead of an entry that cannot be read."""
    seq: int = row["seq"]
    why = _wrong(row) or ("" if _whole(row["count"]) and row["count"] > 0 else "count: invalid number")
    if row["grp"] is not None:
        why = why or _text("grp", row["grp"])
    if not unreadable.judge(f"muster_inbox: user {loaded(row['user_id'])}, seq {seq}", why):
        return seq, None
    is_read = bool(row["is_read"]) or seq <= marks.of(row["kind"], "read_seq")
    group, data = row["grp"] or "", row["data"]
    return seq, Entry(str(seq), row["kind"], group, row["actor"], row["count"], row["at_ms"], data, is_read)


def broadcast(row: Any, marks: Marks, read: set[int], unreadable: Unreadable) -> Row:
    """A broadcast with its number; None instead of one that cannot be read."""
    number: int = row["number"]
    why = _wrong(row)
    if not (isinstance(row["audience"], str) and _AUDIENCE.fullmatch(row["audience"])):
        why = why or f"audience: invalid name {row['audience']!a:.40}"
    if not unreadable.judge(f"muster_inbox_broadcasts: number {number}", why):
        return number, None
    is_read = number in read or number <= marks.of(row["kind"], "read_number")
    told = Entry(f"b{number}", row["kind"], "", row["actor"], 1, row["at_ms"], row["data"], is_read, row["audience"])
    return number, told


def is_kind(kind: Any) -> bool:
    """Whether this is the name of a kind."""
    return isinstance(kind, str) and bool(_KIND.fullmatch(kind))


def _wrong(row: Any) -> str:
    """Why a row is no entry; empty: it is one."""
    data = row["data"]
    if not is_kind(row["kind"]):
        return f"kind: invalid name {row['kind']!a:.40}"
    if why := _text("actor", row["actor"]):
        return why
    if not (_whole(row["at_ms"]) and row["at_ms"] < TIME_MAX):
        return f"at_ms: invalid time {row['at_ms']!a:.40}"
    if not isinstance(data, bytes) or len(data) > DATA_BYTES_MAX or b"\n" in data or b"\r" in data:
        return f"data: not JSON in one line of at most {DATA_BYTES_MAX} bytes"
    try:
        data.decode()  # msgspec does not check the UTF-8 of skipped parts
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"data: {error}"[:200]
    return ""


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX and value.isprintable():
        return ""
    return f"{name}: invalid text {value!a:.40}"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and value >= 0

"""Recurring messages: entries with a time as cron has it, and the messages that they make, one for each occurrence.

Owns the file of entries, and when each occurs. The next occurrence of an entry always waits in the schedule, so that it
fires though its maker is away. Its id names the occurrence: made twice, it is one message. It must not know the schedule.
"""

import contextlib
import datetime
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from muster_server.plane.files import write_atomically
from muster_server.systems.messages.shapes import KIND_CHARS_MAX, Change, Changed, Refused, Send, Sent

FILE: Final = "recurring.json"
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z"
ENTRIES_MAX: Final = 1_000
BODY_BYTES_MAX: Final = 65_536
CRON_CHARS_MAX: Final = 200
MISSED_MAX: Final = 1_000
"""Occurrences of one entry that are made up for after a stop; of more, the latest."""
SECOND_MS: Final = 1_000

Missed = Literal["once", "all", "none"]
"""After a stop: the latest missed occurrence is made up for, or all, or none."""


class RecurringError(ValueError):
    """An entry is wrong. One line; `code` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class NewEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as it is asked for."""

    topic: str
    name: Annotated[str, Meta(pattern=NAME)]
    cron: Annotated[str, Meta(max_length=CRON_CHARS_MAX)]
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    missed: Missed = "once"
    kind: Annotated[str, Meta(max_length=KIND_CHARS_MAX)] = "application/json"
    body: Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)] = b"{}"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry. `last`: the latest occurrence whose message was made, in ms since 1970; it may be to come."""

    asked: NewEntry
    last: int
    revision: int = 0
    """Grows when the entry changes: an occurrence has another message then."""

    @property
    def key(self) -> tuple[str, str]:
        """Topic and name."""
        return self.asked.topic, self.asked.name

    def id(self, at: int) -> str:
        """The id of an occurrence's message."""
        time = datetime.datetime.fromtimestamp(at / 1_000, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.asked.name}:{time}" + (f":{self.revision}" if self.revision else "")


class _Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    format: int = 1
    entries: list[Entry] = []


class _Parts(msgspec.Struct, frozen=True):
    """The file, with each entry as it stands."""

    entries: list[msgspec.Raw] = []


def read(file: Path) -> list[Entry]:
    """The entries of a file. Raises `ValueError` for a damaged one, `OSError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Book).entries
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged: {error}") from None


def intact(file: Path) -> list[Entry]:
    """The entries of a damaged file that can be read alone. Raises `OSError`."""
    found: list[Entry] = []
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        for part in msgspec.json.decode(file.read_bytes(), type=_Parts).entries:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(part, type=Entry))
    return found


def written(entries: Sequence[Entry]) -> bytes:
    """The content of a file with these entries."""
    return msgspec.json.format(msgspec.json.encode(_Book(entries=list(entries)))) + b"\n"


def occurrences(asked: NewEntry, after: int) -> Iterator[int]:
    """Times after this one, in ms since 1970. A time that summer time passes over or repeats is as Debian's cron has it.
    Raises `RecurringError`."""
    from cronsim import CronSim, CronSimError  # the HTTP face has the shapes alone

    try:
        zone = ZoneInfo(asked.zone)
    except (ValueError, OSError, KeyError):
        raise RecurringError(
            "bad_request", f"zone: invalid time zone {asked.zone!r:.80} (for example Asia/Shanghai)"
        ) from None
    if re.search(r"\s", asked.cron.strip()) is None:
        raise RecurringError(
            "bad_request", f"cron: invalid {asked.cron!r:.80} (expected five parts, for example '0 3 * * *')"
        )
    begin = datetime.datetime.fromtimestamp(after // SECOND_MS, datetime.UTC).astimezone(zone)
    try:
        for time in CronSim(asked.cron, begin):
            yield round(time.timestamp() * SECOND_MS)
    except CronSimError as error:
        raise RecurringError("bad_request", f"cron: {asked.cron!r:.80}: {error}") from None


class Recurring:
    """The entries of one instance. `send` and `change` are those of a receiver."""

    def __init__(
        self,
        folder: Path,
        send: Callable[[str, Sequence[Send]], Awaitable[list[Sent | Refused]]],
        change: Callable[[str, Sequence[Change]], Awaitable[list[Changed | Refused]]],
    ) -> None:
        self._file, self._send, self._change = folder / FILE, send, change
        self._entries: dict[tuple[str, str], Entry] = {}
        self.made = self.skipped = 0
        """Messages made, and occurrences left out after a stop."""

    def open(self) -> None:
        """Read the file. Raises `ValueError` for a damaged one."""
        try:
            entries = read(self._file)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise ValueError(f"{self._file}: {error}; bring the file back, or run muster repair messages") from None
        self._entries = {entry.key: entry for entry in entries}

    def all(self, topic: str = "") -> list[Entry]:
        """The recurring messages of a topic, or of all topics, by name."""
        return [entry for key, entry in sorted(self._entries.items()) if topic in {"", key[0]}]

    async def put(self, asked: NewEntry, now: int) -> Entry:
        """Add an entry, or change it. Its next occurrence is after `now`. Raises `RecurringError`, `OSError`."""
        if next(occurrences(asked, now), None) is None:
            raise RecurringError("bad_request", f"cron: {asked.cron!r:.80} never occurs")
        before = self._entries.get((asked.topic, asked.name))
        if before is None:
            if len(self._entries) >= ENTRIES_MAX:
                raise RecurringError("busy", f"too many recurring messages (limit {ENTRIES_MAX})")
            entry = Entry(asked=asked, last=now)
        elif before.asked == asked:
            return before
        else:
            await self._withdraw(before, now)
            entry = Entry(asked=asked, last=now, revision=before.revision + 1)
        self._keep(entry)
        return entry

    async def remove(self, topic: str, name: str, now: int) -> Entry:
        """Remove an entry, and the message that waits for its next occurrence. Raises `RecurringError`, `OSError`."""
        entry = self._entries.get((topic, name))
        if entry is None:
            raise RecurringError("not_found", f"topic {topic} has no recurring message {name!r:.80}")
        await self._withdraw(entry, now)
        del self._entries[entry.key]
        self._write()
        return entry

    async def _withdraw(self, entry: Entry, now: int) -> None:
        if entry.last > now:
            await self._change(entry.asked.topic, [Change(id=entry.id(entry.last), verb="cancel")])

    async def make(self, now: int) -> list[str]:
        """Make the messages of occurrences that are over, and the next one of each entry. Gives what could not be made, a
        line each. Raises what `send` raises: made again later."""
        wrong: list[str] = []
        for entry in self.all():
            if entry.last > now:  # its next one waits already
                continue
            missed: list[int] = []
            following = 0
            for at in occurrences(entry.asked, entry.last):
                if at > now:
                    following = at
                    break
                missed.append(at)
                if len(missed) > MISSED_MAX:
                    del missed[0]
                    self.skipped += 1
            chosen = {"once": missed[-1:], "all": missed, "none": []}[entry.asked.missed]
            self.skipped += len(missed) - len(chosen)
            sends = [
                Send(id=entry.id(at), at=at, body=entry.asked.body, kind=entry.asked.kind)
                for at in (*chosen, *([following] if following else ()))
            ]
            for said in await self._send(entry.asked.topic, sends) if sends else ():
                if isinstance(said, Refused):
                    wrong.append(f"topic {entry.asked.topic}, recurring message {entry.asked.name}: {said.detail}")
                else:
                    self.made += not said.duplicate
            if self._entries.get(entry.key) is entry:  # it was not changed meanwhile
                self._keep(msgspec.structs.replace(entry, last=following or max([now, *missed])))
        return wrong

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self._write()

    def _write(self) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._file, written(self.all()))

"""The audit log: who did what when, a line of JSON for each action before it begins and one after it has ended.

Each line is on the disk before the action goes on. Knows no request.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

FILE: Final = "console-audit.jsonl"
ASIDE: Final = ".1"
TEXT_MAX: Final = 500


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `at`: seconds since 1970. An action whose second line is missing was cut off by the end of the process."""

    id: str
    at: float
    what: Literal["begins", "ends", "login", "logout"]
    user: str
    role: str = ""
    address: str = ""
    means: str = ""
    action: str = ""
    """Method and path of the request."""
    detail: str = ""
    status: int = 0
    """The answer's HTTP status."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An action as a page shows it: its lines together. `status` is 0 until it has ended."""

    id: str
    at: float
    user: str
    role: str
    address: str
    action: str
    detail: str
    status: int


class Audit:
    """The log of one node. Its methods block for the disk."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._file, self._bytes_max = folder / FILE, bytes_max
        self._writing = threading.Lock()

    @property
    def file(self) -> Path:
        """The file."""
        return self._file

    def write(self, entry: Entry) -> None:
        """Append a line. Raises `OSError`: then the action must not happen."""
        cut = msgspec.structs.replace(entry, action=entry.action[:TEXT_MAX], detail=entry.detail[:TEXT_MAX])
        line = msgspec.json.encode(cut) + b"\n"
        with self._writing:
            self._set_aside(len(line))
            handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while line:
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            finally:
                os.close(handle)

    def read(self, search: str, offset: int, limit: int) -> tuple[list[Action], bool]:
        """The newest actions first that contain the text, and whether there are more."""
        found: list[Action] = []
        wanted = search.casefold()
        for action in self._actions():
            if wanted in f"{action.user} {action.action} {action.detail} {action.address}".casefold():
                if len(found) == offset + limit:
                    return found[offset:], True
                found.append(action)
        return found[offset:], False

    def _actions(self) -> Iterator[Action]:
        """Newest first."""
        ended: dict[str, Entry] = {}
        for entry in self._entries():
            if entry.what == "ends":
                ended[entry.id] = entry
                continue
            end = ended.pop(entry.id, entry)
            yield Action(
                id=entry.id,
                at=entry.at,
                user=entry.user,
                role=entry.role,
                address=entry.address,
                action=entry.action or entry.what,
                detail=end.detail or entry.detail or entry.means,
                status=end.status if entry.what == "begins" else 200,
            )

    def _entries(self) -> Iterator[Entry]:
        """All lines, newest first. A line that is not whole is skipped: the machine may have stopped in it."""
        for file in (self._file, self._file.with_name(FILE + ASIDE)):
            try:
                lines = file.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                try:
                    yield msgspec.json.decode(line, type=Entry)
                except msgspec.MsgspecError:
                    continue

    def _set_aside(self, more: int) -> None:
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return
        if size + more > self._bytes_max:
            self._file.replace(self._file.with_name(FILE + ASIDE))

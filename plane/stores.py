"""The interface of embedded stores for `muster check` and `muster repair`: what is damaged, and what is kept.

Owns the protocol that each system's stores implement, SQLite's files, and locks and names of folders. It must not
know any system.
"""

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

FAULTS_MAX: Final = 1_000
"""Limit of faults of one store that are listed one by one."""
STAMP: Final = "name"
"""File in a log's folder: the log's name and partition, a line."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A damaged part of a file. `at`: its offset in bytes, if known."""

    file: str
    text: str
    at: int | None = None


@dataclass(slots=True)
class Report:
    """The content of a store. Without faults it is whole."""

    store: str
    holds: str = ""
    faults: list[Fault] = field(default_factory=list)

    def fault(self, file: Path | str, text: str, at: int | None = None) -> None:
        """Add a fault, up to the limit."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(str(file), text, at))


class InUse(Exception):
    """Another process has the store open."""


class Store(Protocol):
    """A store of one system in files of this machine."""

    @property
    def name(self) -> str:
        """The system and the part, for people."""

    @property
    def place(self) -> Path:
        """The folder that receives damaged parts."""

    def check(self) -> Report:
        """Read the whole store without changing it. Raises `OSError`."""

    def repair(self, aside: Path) -> list[str]:
        """Keep the intact part and move the rest into the folder `aside`; returns what was done. Raises `InUse`,
        `OSError`."""


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a store that no process has open. Raises `InUse`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{file.parent} is open in another process; stop that process first") from None
        yield
    finally:
        os.close(descriptor)


def stamp(folder: Path, name: str) -> None:
    """Write the name of a log into its folder, which the log then keeps. Raises `OSError` if it is another log's."""
    if text := misplaced(folder, name):
        raise OSError(text)
    file = folder / STAMP
    if _stamped(folder) == name:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = file.with_name(f"{STAMP}.new")
    with beside.open("w", encoding="utf-8") as made:
        made.write(f"{name}\n")
        made.flush()
        os.fsync(made.fileno())
    beside.replace(file)


def misplaced(folder: Path, name: str) -> str:
    """The error of a folder that another log has stamped; "" if it may be opened under this name."""
    found = _stamped(folder)
    if not found or found == name:
        return ""
    return f"{folder} has the log {found}, not {name}: move the folders of logs back to their places"


def _stamped(folder: Path) -> str:
    """The name in the folder; "" without one, or with a damaged one, which is written again."""
    try:
        text = (folder / STAMP).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return ""
    name = text.removesuffix("\n")
    return name if text.endswith("\n") and name.isprintable() and name.rpartition(" ")[2].isdecimal() else ""


def put_aside(path: Path, aside: Path) -> Path:
    """Move a file or folder into `aside`. Returns its new path."""
    aside.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = aside / path.name
    number = 1
    while target.exists():
        number += 1
        target = aside / f"{path.name}.{number}"
    shutil.move(path, target)
    return target


def sqlite_faults(file: Path) -> list[str]:
    """The faults that SQLite finds in a file; none for a missing file."""
    if not file.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
    except sqlite3.Error as error:
        return [str(error)]
    return [] if found == ["ok"] else found


def sqlite_saved(file: Path, aside: Path) -> str:
    """Rebuild a file of SQLite from all readable rows; the damaged file is moved to `aside`."""
    damaged = put_aside(file, aside)
    for more in ("-wal", "-shm"):
        if file.with_name(file.name + more).exists():
            put_aside(file.with_name(file.name + more), aside)
    kept = lost = 0
    with (
        contextlib.closing(sqlite3.connect(damaged)) as old,
        contextlib.closing(sqlite3.connect(file)) as new,
    ):
        old.text_factory = _text
        try:
            made = _schema(old)
        except sqlite3.Error:
            return f"{file}: no table can be read; the file was moved to {aside}, and the next start makes a new one"
        for _, _, sql in made:
            new.execute(sql)
        for kind, name, _ in made:
            if kind == "table":
                rows, whole = _rows(old, name)
                kept += len(rows)
                lost += not whole
                if rows:
                    marks = ",".join("?" * len(rows[0]))
                    new.executemany(f'INSERT OR IGNORE INTO "{name}" VALUES ({marks})', rows)
        new.commit()
    return f"{file}: kept {kept} rows; {lost} tables lost rows; the damaged file was moved to {aside}"


class SqliteStore:
    """A `Store`: a file of SQLite by itself. Nobody may have it open while it is made again."""

    def __init__(self, name: str, file: Path) -> None:
        self._name, self._file = name, file

    @property
    def name(self) -> str:
        """As `Store.name`."""
        return self._name

    @property
    def place(self) -> Path:
        """As `Store.place`."""
        return self._file.parent

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self._name, "no database yet")
        if self._file.exists():
            report.holds = f"the database has {self._file.stat().st_size} bytes"
            for fault in sqlite_faults(self._file):
                report.fault(self._file, f"SQLite: {fault}")
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        return [sqlite_saved(self._file, aside)] if sqlite_faults(self._file) else []


def sqlite_file(url: str) -> Path | None:
    """The file of a URL; None if it names a server."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def _text(raw: bytes) -> str | bytes:
    """Decode text, so that the new file stores it as text; damaged bytes stay bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _schema(old: sqlite3.Connection) -> list[tuple[str, str, str]]:
    asked = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC"
    return old.execute(asked).fetchall()


def _rows(old: sqlite3.Connection, table: str) -> tuple[list[tuple[object, ...]], bool]:
    """Read rows from both ends of the table, up to the unreadable part; returns them and whether they are all rows."""
    found: dict[tuple[object, ...], None] = {}
    for order in ("", " ORDER BY 1 DESC"):
        try:
            for row in old.execute(f'SELECT * FROM "{table}"{order}'):
                found[row] = None
        except sqlite3.Error:
            continue
        return list(found), True
    return list(found), False

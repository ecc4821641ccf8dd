"""The last answers of dead letters' targets, in a SQLite file beside the schedule.

The schedule knows which messages are dead; a row here without a dead message means nothing. Owns the file and its
table. It must not know messages or topics. Called in a thread: each call waits for the disk.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "answers.sqlite"
ASKED_AT_ONCE: Final = 500
TABLE: Final = """\
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER, answer BLOB NOT NULL
) WITHOUT ROWID"""


class LastAnswer(NamedTuple):
    """`number`: the message's number in the schedule; `at` in ms since 1970."""

    number: int
    at: int
    outcome: str
    status: int | None
    answer: bytes


class Answers:
    """The file. Raises `sqlite3.Error` if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def open(self) -> None:
        """Make the table if it is missing."""
        with self._connected() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(TABLE)

    def keep(self, answers: Sequence[LastAnswer]) -> None:
        """Store these durably; a later answer of a message replaces the former."""
        rows = [(_signed(each.number), *each[1:]) for each in answers]
        with self._connected() as connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", rows)

    def find(self, numbers: Sequence[int]) -> dict[int, LastAnswer]:
        """The known answers, by number."""
        found: dict[int, LastAnswer] = {}
        with self._connected() as connection:
            for first in range(0, len(numbers), ASKED_AT_ONCE):
                some = [_signed(number) for number in numbers[first : first + ASKED_AT_ONCE]]
                marks = ",".join("?" * len(some))
                rows = connection.execute(
                    f"SELECT number, at, outcome, status, answer FROM answers WHERE number IN ({marks})", some
                )
                for number, *rest in rows:
                    found[number & MASK] = LastAnswer(number & MASK, *rest)
        return found

    def forget(self, before: int) -> int:
        """Drop the answers of letters that died before this time. Returns their number."""
        with self._connected() as connection:
            return connection.execute("DELETE FROM answers WHERE at < ?", (before,)).rowcount

    def _connected(self) -> "_Connected":
        return _Connected(self._file)


class _Connected:
    """One transaction, and a connection that is closed after it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(self._file, timeout=5)
        self._connection.execute("PRAGMA synchronous=FULL")
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._connection.commit()
        finally:
            self._connection.close()


MASK: Final = (1 << 64) - 1


def _signed(number: int) -> int:
    """The number as SQLite stores it, whose integers are signed."""
    return number - (1 << 64) if number >> 63 else number

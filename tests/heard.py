"""The lines of a process's output, read as they come.

A pipe that nobody reads is full after 64 KiB, as after a dozen stalls of a busy machine. Then nodes lose the lines that it
has no place for (`muster_log_lines_lost_total`), and a test that begins to read later waits for a line that never comes.
"""

import threading
from collections.abc import Callable
from typing import IO

from tests.waiting import PATIENT_S


class Heard:
    """Reads a stream in a thread until its end."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        """All so far."""
        self._stream, self._at, self._over = stream, 0, False
        self._changed = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def next(self, holds: Callable[[str], bool], seconds: float = PATIENT_S) -> str:
        """The next line for which this holds, after the one that was found before. Raises `AssertionError` with all lines
        if none comes in time, or before the end."""
        with self._changed:
            while True:
                while self._at < len(self.lines):
                    self._at += 1
                    if holds(self.lines[self._at - 1]):
                        return self.lines[self._at - 1]
                assert not self._over, f"it never said that, and has ended:\n{''.join(self.lines)}"
                assert self._changed.wait(seconds), f"it has not said that yet:\n{''.join(self.lines)}"

    def rest(self) -> list[str]:
        """All lines, once the stream has ended."""
        self._reading.join(PATIENT_S)
        assert self._over, "the stream goes on"
        return self.lines

    def _read(self) -> None:
        for line in self._stream:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

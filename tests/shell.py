"""A shell into which a test pastes the lines of a page, as a reader does."""

import os
import select
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from tests.documents import ROOT

MARK: Final = "@@ended"
SILENT_S: Final = 120.0
"""How long the shell may print nothing while a test waits for it."""


class Shell:
    """A bash at the root of the tree. Its background commands end with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._unread = b""
        self.output = ""
        """Everything that was printed."""

    def __enter__(self) -> "Shell":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(b"kill $(jobs -p); wait\n")
        self._bash.communicate()

    def paste(self, block: str) -> str:
        """Run the lines of a block one by one, and return what was printed. Each must end with 0."""
        before = len(self.output)
        for line in block.splitlines():
            code = self._run(line)
            assert code == 0, f"{line} ended with {code}:\n{self.output[before:]}"
        return self.output[before:]

    def wait(self, words: str) -> None:
        """Read on until a background command has printed these words."""
        while words not in self.output:
            self._read()

    def _run(self, line: str) -> int:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\nprintf '\\n{MARK} %s\\n' $?\n".encode())
        self._bash.stdin.flush()
        while not (read := self._read()).startswith(MARK):
            pass
        return int(read.split()[1])

    def _read(self) -> str:
        """The next line. Fails where none comes."""
        assert self._bash.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._bash.stdout], [], [], SILENT_S)
            assert ready, f"nothing printed for {SILENT_S} s:\n{self.output}"
            read = os.read(self._bash.stdout.fileno(), 65536)
            assert read, f"the shell ended:\n{self.output}"
            self._unread += read
        whole, _, self._unread = self._unread.partition(b"\n")
        line = whole.decode() + "\n"
        if not line.startswith(MARK):
            self.output += line
        return line

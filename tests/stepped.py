"""A wall clock that a test sets, for real processes that it starts: they have it by their environment, and no other has.

`stepped.c` is built by the compiler that the bindings need, and loaded before the C library. The monotonic clock of these
processes is true, and so are all clocks of the test.
"""

import math
import mmap
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from tests.waiting import PATIENT_S

SOURCE: Final = Path(__file__).with_name("stepped.c")
MS: Final = 1_000_000
READ_MS: Final = 1_000
"""What was done so soon after a step may have been decided by the clock before it."""


class SteppedClock:
    """`environment` gives it to a process. `set` may be called at any time."""

    def __init__(self, folder: Path) -> None:
        library, file = folder / "stepped.so", folder / "clock"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True, timeout=PATIENT_S
        )
        file.write_bytes(bytes(8))
        self._file = file.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 8)
        self._steps = [(0.0, 0)]
        self.environment = {"LD_PRELOAD": str(library), "MUSTERTEST_CLOCK": str(file)}

    def set(self, ahead_ms: int) -> None:
        """From now on it is so much ahead of the true one."""
        self._steps.append((time.time() * 1_000, ahead_ms))
        self._page[:] = (ahead_ms * MS).to_bytes(8, "little", signed=True)

    def now_ms(self) -> int:
        """What it says."""
        return int(time.time() * 1_000) + self._steps[-1][1]

    def latest(self, at_ms: float) -> float:
        """The latest time that it said about `at_ms`, a true one: of two clocks around a step, that which is ahead."""
        ends = [*(since for since, _ in self._steps[1:]), math.inf]
        said = [
            ahead
            for (since, ahead), end in zip(self._steps, ends, strict=True)
            if since <= at_ms and end > at_ms - READ_MS
        ]
        return at_ms + max(said)

    @classmethod
    @contextmanager
    def made(cls, folder: Path) -> Iterator[Self]:
        """One for the block."""
        clock = cls(folder)
        try:
            yield clock
        finally:
            clock._page.close()
            clock._file.close()

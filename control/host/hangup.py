"""The signals of `muster serve` before a loop runs.

SIGHUP must not end a starting process; its request is kept until a loop can serve it. SIGTERM ends it at once, also as
process 1 of a container. Owns both from the first lines of the process (`src/muster_server/__init__.py`) until a loop
handles them (`control/cluster/daemon.py`). Imports nothing that takes time to load.
"""

import os
import signal
from types import FrameType
from typing import Final

_came: Final[list[int]] = []


def hold() -> None:
    """From now on remember SIGHUP only, and end at SIGTERM."""
    signal.signal(signal.SIGHUP, _remember)
    signal.signal(signal.SIGTERM, _end)


def came() -> bool:
    """Whether SIGHUP arrived since `hold`, or since the last call of this function."""
    had = bool(_came)
    _came.clear()
    return had


def _remember(number: int, frame: FrameType | None) -> None:
    _came[:] = [number]


def _end(number: int, frame: FrameType | None) -> None:
    """End as the signal itself would. The kernel sends process 1 no signal without a handler, so it exits with the
    signal's exit code."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)

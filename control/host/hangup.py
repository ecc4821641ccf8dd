"""SIGHUP before a loop runs: it must not end a starting process, and its request is kept until a loop can serve it.

Owns the signal from the first lines of the process (`systems/start.py`) until a loop takes it
(`control/cluster/daemon.py`). Imports nothing that takes time to load.
"""

import signal
from types import FrameType
from typing import Final

_came: Final[list[int]] = []


def hold() -> None:
    """From now on only remember the signal."""
    signal.signal(signal.SIGHUP, _remember)


def came() -> bool:
    """Whether it came since `hold`, or since the last call of this function."""
    had = bool(_came)
    _came.clear()
    return had


def _remember(number: int, frame: FrameType | None) -> None:
    _came[:] = [number]

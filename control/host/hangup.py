"""SIGHUP before anybody reads it: whoever starts is not ended by it, and does what it asks for once that is possible.

Owns the signal from the first lines of the process (`control/cli/start.py`) until a loop takes it
(`control/cluster/daemon.py`). Imports nothing that takes time to load.
"""

import signal
from types import FrameType
from typing import Final

_came: Final[list[int]] = []


def hold() -> None:
    """From now on it does nothing but to be remembered."""
    signal.signal(signal.SIGHUP, _remember)


def came() -> bool:
    """Whether it came since `hold`, or since this was asked last."""
    had = bool(_came)
    _came.clear()
    return had


def _remember(number: int, frame: FrameType | None) -> None:
    _came[:] = [number]

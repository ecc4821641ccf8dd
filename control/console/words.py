"""Lines on stderr, while data goes to stdout."""

import contextlib
import sys

from control.host.shown import shown


def say(text: str) -> None:
    """Print one line on stderr, if it is open, as a terminal may show it.

    It is written in one piece, so no other thread's output breaks it.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{shown(text)}\n")
        sys.stderr.flush()

"""Lines on stderr, while data goes to stdout."""

import contextlib
import sys


def say(text: str) -> None:
    """Print one line on stderr, if it is open. It is written in one piece, so no other thread's output breaks it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

"""What is said to people while data goes to stdout."""

import contextlib
import sys


def say(text: str) -> None:
    """A line on stderr, if anybody is there. It goes in one piece: what a thread of ours writes does not break it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

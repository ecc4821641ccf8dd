"""Lines for people: on stderr, while data goes to stdout; and figures as text."""

import contextlib
import sys

from muster_server.control.host.shown import shown


def say(text: str) -> None:
    """Print one line on stderr, if it is open, escaped for a terminal.

    It is one write, so no other thread's output breaks it.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{shown(text)}\n")
        sys.stderr.flush()


def tell(text: str) -> None:
    """Print one line on stdout at once, escaped for a terminal. Raises `OSError`."""
    print(shown(text), flush=True)

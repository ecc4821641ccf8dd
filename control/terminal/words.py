"""Lines for people: on stderr, while data goes to stdout; and data in words."""

import contextlib
import sys

from muster_server.control.host.shown import shown


def say(text: str) -> None:
    """Print one line on stderr, if it is open, as a terminal may show it.

    It is written in one piece, so no other thread's output breaks it.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{shown(text)}\n")
        sys.stderr.flush()


def tell(text: str) -> None:
    """Print one line on stdout at once, as a terminal may show it. Raises `OSError`."""
    print(shown(text), flush=True)

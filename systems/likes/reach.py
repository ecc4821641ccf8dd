"""A node of likes as its clients use it: its address, credentials and refusals.

Imports no Redis library: `client.py` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from muster_server.plane.ownership.errors import StoreError

MISSING: Final = "likes need the library of Redis; to mend: pip install 'muster-server[likes]'"
USER_MAX: Final = (1 << 64) - 1
WINDOWS: Final = ("1h", "24h", "7d")
NEWEST: Final = 32
"""Number of newest likers that a node keeps for an item."""
PAGE: Final = 10_000
"""Limit of entries of one answer."""
FEED: Final = 1_000
"""Limit of items of a page of a feed."""
FEED_NEWEST: Final = 10
"""Limit of newest likers of each item there."""

MEMBERS: Final = 500
"""Limit of members of a leaderboard in one call: a command has at most 1,040 arguments."""
Only = Literal["", "new", "existing", "greater", "less"]
"""Which members get their score: all, those that are not there yet, those that are, or those whose score becomes greater
or less; with the last two, new members are added."""


class Erasing(StoreError):
    """The user is being erased."""

    later = True


class Denied(StoreError):
    """The user or password is wrong."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses of nodes, and the credentials. `ca_file`: the certificate that they must present; empty: no TLS."""

    doors: Sequence[tuple[str, int]]
    """Each knows all nodes: the first one that answers is used."""
    user: str | None = None
    password: str | None = None
    ca_file: str = ""


def account(users_file: str) -> tuple[str, str] | None:
    """The first user of a node's file, for programs that may read it. Raises `OSError`."""
    if not users_file:
        return None
    for line in Path(users_file).read_text(encoding="utf-8").splitlines():
        user, colon, password = line.partition(":")
        if user and colon and password:
            return user, password
    return None

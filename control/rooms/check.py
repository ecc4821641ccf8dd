"""Checks of the sections of rooms beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from control.config.options import Config
from plane.rooms.options import Clients
from plane.rooms.router import SQLITE

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
WAY: Final = ("proxy", "broker", "gateway")
"""A message goes this way: each must be able to pass on what the one before accepts."""

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes. `stands` returns whether a key was given."""
    clients: Clients = config.section("clients")
    if clients.backoff_max_ms < clients.backoff_ms:
        name = "backoff_max_ms" if stands(("clients", "backoff_max_ms")) else "backoff_ms"
        soonest, longest = clients.backoff_ms, clients.backoff_max_ms
        yield ("clients", name), f"the longest wait, {longest} ms, is less than the first, {soonest} ms"
    if text := _database(config.section("database").url):
        yield ("database", "url"), text
    for sender, receiver in pairwise(role for role in WAY if role in roles):
        longest, taken = config.role(sender).payload_bytes, config.role(receiver).payload_bytes
        if longest > taken:
            path = (receiver if stands((receiver, "payload_bytes")) else sender, "payload_bytes")
            yield path, f"a {sender} takes messages for {longest} bytes, a {receiver} passes on those for {taken}"
    for name in config.section("namespaces"):
        if not NAMESPACE.fullmatch(name):
            yield ("namespaces", name), "a namespace has 1 to 32 of a-z, 0-9, _ and -"


def _database(url: str) -> str | None:
    """Returns the mistake in the database's URL, if there is one."""
    if url in {"", SQLITE}:
        return None
    from plane.database.url import mistake  # imports SQLAlchemy, here only

    return mistake(url, "database.password_file")

"""Checks of the sections of rooms beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Final

from muster_server.control.config.options import Config
from muster_server.systems.rooms.options import NAMESPACES_MAX, Clients, keeps
from muster_server.systems.rooms.router import SQLITE

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
WAY: Final = ("proxy", "broker", "gateway")
"""A message goes this way: each must be able to pass on what the one before accepts."""

SHARES_MAX: Final = 90
"""Percent of the arena that namespaces may have for themselves."""
PART_KIB_MIN: Final = 1 << 10

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
    yield from _retention(config, [role for role in ("broker", "gateway") if role in roles])


def _retention(config: Config, roles: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Wrong keys on how the rooms of namespaces are kept; `roles`: those with an arena."""
    kept = {name: each for name, each in config.section("namespaces").items() if keeps(each)}
    if len(kept) > NAMESPACES_MAX:
        yield ("namespaces",), f"{len(kept)} say how their rooms are kept, {NAMESPACES_MAX} may"
    shares = {name: each.arena_share for name, each in kept.items() if each.arena_share}
    if (total := sum(shares.values())) > SHARES_MAX:
        largest = max(shares, key=lambda name: shares[name])
        path = ("namespaces", largest, "arena_share")
        yield (
            path,
            f"all parts of the arena together are {total} %, and {SHARES_MAX} % may be: all other rooms need the rest",
        )
    for role, (name, each) in product(roles, kept.items()):
        arena_kib = config.role(role).arena_mib << 10
        part_kib = arena_kib * (shares.get(name) or 100 - total) // 100
        if name in shares and part_kib < PART_KIB_MIN:
            text = f"{shares[name]} % of {role}.arena_mib are {part_kib} KiB: a part has at least {PART_KIB_MIN} KiB"
            yield ("namespaces", name, "arena_share"), text
        elif (most := part_kib // 2) < (each.history_kib or 0):
            text = f"{each.history_kib} KiB are more than half of these rooms' part of {role}.arena_mib, {most} KiB"
            yield ("namespaces", name, "history_kib"), text


def _database(url: str) -> str | None:
    """Returns the mistake in the database's URL, if there is one."""
    if url in {"", SQLITE}:
        return None
    from muster_server.plane.database.url import mistake  # imports SQLAlchemy, here only

    return mistake(url, "database.password_file")

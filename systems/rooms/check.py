"""Checks of the sections of rooms beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Final

from muster_server.control.config.options import Config
from muster_server.systems.rooms.archive.options import ArchiveOptions, patterns
from muster_server.systems.rooms.archive.role import lacks
from muster_server.systems.rooms.archive.shapes import ROLE
from muster_server.systems.rooms.options import NAMESPACES_MAX, Clients, keeps
from muster_server.systems.rooms.router import SQLITE

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
PATTERN: Final = re.compile(r"[^*\x00-\x1f\x7f]*\*|[^*\x00-\x1f\x7f]+")
NAME_BYTES_MAX: Final = 200
WAY: Final = ("proxy", "broker", "gateway")
"""The path of a message: each role must be able to pass on what the previous one accepts."""

SHARES_MAX: Final = 90
"""Limit of the percent of the arena that namespaces may reserve together."""
PART_KIB_MIN: Final = 1 << 10

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes. `stands` returns whether a key was given."""
    clients: Clients = config.section("clients")
    if clients.backoff_max_ms < clients.backoff_ms:
        name = "backoff_max_ms" if stands(("clients", "backoff_max_ms")) else "backoff_ms"
        soonest, longest = clients.backoff_ms, clients.backoff_max_ms
        yield ("clients", name), f"the longest pause, {longest} ms, is shorter than the first, {soonest} ms"
    if text := _database(config.section("database").url):
        yield ("database", "url"), text
    for sender, receiver in pairwise(role for role in WAY if role in roles):
        longest, taken = config.role(sender).payload_bytes, config.role(receiver).payload_bytes
        if longest > taken:
            path = (receiver if stands((receiver, "payload_bytes")) else sender, "payload_bytes")
            yield (
                path,
                f"a {sender} accepts messages for {longest} bytes, but a {receiver} passes on only those for {taken}",
            )
    for name in config.section("namespaces"):
        if not NAMESPACE.fullmatch(name):
            yield ("namespaces", name), "invalid name of a namespace (expected 1 to 32 characters of a-z, 0-9, _ and -)"
    yield from _archive(config)
    yield from _retention(config, [role for role in ("broker", "gateway") if role in roles])


def _retention(config: Config, roles: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Wrong keys about the retention of namespaces; `roles`: those with an arena."""
    kept = {name: each for name, each in config.section("namespaces").items() if keeps(each)}
    if len(kept) > NAMESPACES_MAX:
        yield ("namespaces",), f"too many namespaces with retention settings: {len(kept)} (limit {NAMESPACES_MAX})"
    shares = {name: each.arena_share for name, each in kept.items() if each.arena_share}
    if (total := sum(shares.values())) > SHARES_MAX:
        largest = max(shares, key=lambda name: shares[name])
        path = ("namespaces", largest, "arena_share")
        yield (
            path,
            f"the parts of the arena add up to {total} % (limit {SHARES_MAX} %, as all other rooms need the rest)",
        )
    for role, (name, each) in product(roles, kept.items()):
        arena_kib = config.role(role).arena_mib << 10
        part_kib = arena_kib * (shares.get(name) or 100 - total) // 100
        if name in shares and part_kib < PART_KIB_MIN:
            text = (
                f"{shares[name]} % of {role}.arena_mib are {part_kib} KiB, but a part needs at least {PART_KIB_MIN} KiB"
            )
            yield ("namespaces", name, "arena_share"), text
        elif (most := part_kib // 2) < (each.history_kib or 0):
            text = f"{each.history_kib} KiB exceed half of these rooms' part of {role}.arena_mib (limit {most} KiB)"
            yield ("namespaces", name, "history_kib"), text


def _archive(config: Config) -> Iterator[tuple[Path, str]]:
    """Wrong keys of the archive."""
    options: ArchiveOptions = config.section(ROLE)
    if text := _database(options.database, "archive.database_password_file"):
        yield (ROLE, "database"), text
    if options.rooms and (missing := lacks(config.section)):
        yield (ROLE, "rooms"), missing
    for name in patterns(options.rooms):
        if not PATTERN.fullmatch(name) or len(name.encode()) > NAME_BYTES_MAX:
            yield (ROLE, "rooms"), f"invalid {name!a:.80} (expected a room's name, one up to a * at the end, or *)"


def _database(url: str, password_key: str = "database.password_file") -> str | None:
    """Return the mistake in a database's URL, or None."""
    if url in {"", SQLITE}:
        return None
    from muster_server.plane.database.url import mistake  # imports SQLAlchemy, only here

    return mistake(url, password_key)

"""Options and settings that several roles of rooms share."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import DoorOptions, Section, key

ArenaMib = Annotated[
    int,
    key("Memory for the rings of recent messages", "what can still be repaired; taken at start", "MiB", ge=1, le=65536),
]
UserSessions = Annotated[
    int,
    key(
        "Most sessions of one user here; a further one is refused as `rate_limited`, for 1 s; not with the shared token",
        "more than a person has devices; a backend with more processes than this raises it, or uses the shared token",
        "sessions",
        ge=1,
        le=1 << 20,
    ),
]
PAGES: Final = "muster_server.systems.rooms.pages:answer"


class Clients(Section, frozen=True):
    """Values that gateways and proxies send to each client at the start of its session."""

    backoff_ms: Annotated[
        int,
        key(
            "Longest random pause of a client before it opens a lost session again; doubled after each failed attempt",
            "for few clients; 100,000 that come back within 10 s are 10,000 handshakes a second",
            "ms",
            ge=10,
            le=60_000,
        ),
    ] = 100
    backoff_max_ms: Annotated[
        int,
        key("Upper limit of that pause", "at least `backoff_ms`", "ms", ge=10, le=600_000),
    ] = 5_000


RIGHTS: Final = ("read", "publish", "command", "members", "history")
Words = Annotated[str, key("", pattern=r"^(?:(?:read|publish|command|members|history)(?:,(?!$)|$))*$")]


class Rooms(Section, frozen=True):
    """All rooms."""

    default_rights: Annotated[
        Words,
        key(
            "Rights of users in a room where their token has no `cap`, with commas between: read, publish, command, members,"
            " history; each as far as the token's `rights` allow it",
            "all: a token without `cap` is for every room; a cluster whose users need rooms of their own says less",
        ),
    ] = ",".join(RIGHTS)


Share = Annotated[int, key("", ge=1, le=90)]
Messages = Annotated[int, key("", ge=256, le=1 << 22)]
Kib = Annotated[int, key("", ge=256, le=32 << 20)]
Seconds = Annotated[int, key("", ge=5, le=86_400)]


class Namespace(Section, frozen=True):
    """Settings of the rooms whose names begin with this namespace (`NAME:room`)."""

    default_rights: Annotated[
        Words | None, key("The same as `rooms.default_rights` for these rooms", "absent: as for all rooms")
    ] = None

    flow: Annotated[
        Literal["live", "paced"],
        key(
            "`live`: a slow member slows nobody; `paced`: publishers wait for a member that takes at least 64 KiB a second,"
            " and 5 s for a user that takes less; repair has 3 s",
            "a live room must not stand still for one reader; `paced` is for files and feeds, which should arrive whole",
        ),
    ] = "live"

    history_messages: Annotated[
        Messages | None,
        key(
            "Recent messages that a room keeps, at its broker and at gateways; one of several datagrams counts as many",
            "absent: as many as there is memory for; 256 may be on their way from one publisher",
            "messages",
        ),
    ] = None
    history_kib: Annotated[
        Kib | None,
        key(
            "Memory for the recent messages of a room, 48 bytes for each beside its data; at most half of these rooms'"
            " part of `arena_mib`",
            "absent: an eighth of that part; 256 KiB may be on their way from one publisher",
            "KiB",
        ),
    ] = None
    history_s: Annotated[
        Seconds | None,
        key(
            "Time after the last member left, and the last message came, for which a broker keeps a room's messages",
            "absent: 60; a room takes 0.3 KiB beside its messages",
            "s",
        ),
    ] = None
    arena_share: Annotated[
        Share | None,
        key(
            "Part of `arena_mib` of brokers and gateways for these rooms, which no other rooms push out; at least 1 MiB,"
            " and all parts together at most 90",
            "absent: they share what the named parts leave with all other rooms",
            "%",
        ),
    ] = None


Retention = tuple[str, int, int | None, int | None, int | None]
"""A namespace's name, its percent of the arena (0: none of its own), and the messages, bytes and seconds that its rooms are
kept."""
NAMESPACES_MAX: Final = 127
"""Namespaces with such settings: frames have seven bits for their number."""


def retentions(around: Around) -> list[Retention]:
    """The namespaces whose rooms are kept otherwise than others, by name."""
    namespaces: Mapping[str, Namespace] = around.section("namespaces")
    return [retention(name, each) for name, each in sorted(namespaces.items()) if keeps(each)]


def keeps(space: Namespace) -> bool:
    """Whether a namespace says how its rooms are kept."""
    return any((space.history_messages, space.history_kib, space.history_s, space.arena_share))


def retention(name: str, space: Namespace) -> Retention:
    """The settings of one."""
    size = None if space.history_kib is None else space.history_kib << 10
    return name, space.arena_share or 0, space.history_messages, size, space.history_s


class DoorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a gateway's and a proxy's sessions."""

    keepalive_ms: int
    idle_timeout_ms: int
    backoff_ms: int
    backoff_max_ms: int
    sessions_max: int
    accept_rate: int
    default_rights: list[tuple[str, list[str]]]
    """Of users without `cap`: a pattern of room names and its rights each."""


def default_rights(around: Around) -> list[tuple[str, list[str]]]:
    """The rights of users whose token has no `cap`: a pattern of room names and its rights each."""
    rooms: Rooms = around.section("rooms")
    namespaces: Mapping[str, Namespace] = around.section("namespaces")
    rights = {"*": rooms.default_rights}
    rights |= {f"{name}:*": each.default_rights for name, each in namespaces.items() if each.default_rights is not None}
    return [(pattern, words.split(",")) for pattern, words in rights.items()]


def door_settings(options: DoorOptions, around: Around) -> dict[str, Any]:
    """The fields of `DoorSettings`."""
    clients: Clients = around.section("clients")
    return {
        "keepalive_ms": options.keepalive_ms,
        "idle_timeout_ms": options.idle_timeout_ms,
        "backoff_ms": clients.backoff_ms,
        "backoff_max_ms": clients.backoff_max_ms,
        "sessions_max": options.sessions_max,
        "accept_rate": options.accept_rate,
        "default_rights": default_rights(around),
    }


def door_reloads(role: str) -> dict[str, str]:
    """The keys that a running gateway or proxy takes, and their fields."""
    own = {f"{role}.{name}": name for name in ("sessions_max", "accept_rate")}
    return own | {f"clients.{name}": name for name in ("backoff_ms", "backoff_max_ms")}

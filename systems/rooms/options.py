"""Options and settings that several roles of rooms share."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import Section, key

ArenaMib = Annotated[
    int,
    key(
        "Memory for the rings of recent messages",
        "determines how far back losses can be repaired; allocated at the start",
        "MiB",
        ge=1,
        le=65536,
    ),
]
UserSessions = Annotated[
    int,
    key(
        "Limit of one user's sessions here; a further one is refused as `rate_limited`, for 1 s; not with the "
        "shared token",
        "more than a person has devices; for a backend with more processes raise it, or use the shared token",
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
            "Longest random pause of a client before it reopens a lost session; doubled after each failed attempt",
            "for few clients; 100,000 clients that return within 10 s make 10,000 handshakes per second",
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
            "Rights of users in a room if their token has no `cap`, separated by commas: read, publish, command, members,"
            " history; limited by the token's `rights`",
            "all: a token without `cap` applies to every room; set fewer if users must not use each other's rooms",
        ),
    ] = ",".join(RIGHTS)


Share = Annotated[int, key("", ge=1, le=90)]
Messages = Annotated[int, key("", ge=256, le=1 << 22)]
Kib = Annotated[int, key("", ge=256, le=32 << 20)]
Seconds = Annotated[int, key("", ge=5, le=86_400)]


class Namespace(Section, frozen=True):
    """Settings of the rooms whose names begin with this namespace (`NAME:room`)."""

    default_rights: Annotated[
        Words | None, key("The same as `rooms.default_rights`, for these rooms", "absent: `rooms.default_rights`")
    ] = None

    flow: Annotated[
        Literal["live", "paced"],
        key(
            "`live`: a slow member delays no other; `paced`: publishers wait for a member that reads at least 64 KiB per"
            " second, and 5 s for a user that reads less; repair has 3 s",
            "a live room must not stop for one reader; `paced` is for files and feeds that must arrive complete",
        ),
    ] = "live"

    history_messages: Annotated[
        Messages | None,
        key(
            "Limit of recent messages that a room keeps, at its broker and at gateways; a message of several "
            "datagrams counts as several",
            "absent: limited by memory only; 256 messages of one publisher may be in transit",
            "messages",
        ),
    ] = None
    history_kib: Annotated[
        Kib | None,
        key(
            "Memory for the recent messages of a room, 48 bytes for each plus its data; at most half of these rooms'"
            " part of `arena_mib`",
            "absent: an eighth of that part; 256 KiB of one publisher may be in transit",
            "KiB",
        ),
    ] = None
    history_s: Annotated[
        Seconds | None,
        key(
            "Time for which a broker keeps a room's messages after the last member left and the last message came",
            "absent: 60; a room takes 0.3 KiB plus its messages",
            "s",
        ),
    ] = None
    arena_share: Annotated[
        Share | None,
        key(
            "Percent of `arena_mib` of brokers and gateways reserved for these rooms; at least 1 MiB,"
            " and all reserved parts together at most 90",
            "absent: these rooms share the unreserved rest with all other rooms",
            "%",
        ),
    ] = None


Retention = tuple[str, int, int | None, int | None, int | None]
"""A namespace's name, its percent of the arena (0: none reserved), and the limits of messages, bytes and seconds of its
rooms."""
NAMESPACES_MAX: Final = 127
"""Limit of namespaces with such settings: frames have seven bits for their number."""


def retentions(around: Around) -> list[Retention]:
    """The namespaces with retention settings of their own, by name."""
    namespaces: Mapping[str, Namespace] = around.section("namespaces")
    return [retention(name, each) for name, each in sorted(namespaces.items()) if keeps(each)]


def paced(around: Around) -> list[str]:
    """The namespaces of paced rooms."""
    return [name for name, space in around.section("namespaces").items() if space.flow == "paced"]


def keeps(space: Namespace) -> bool:
    """Whether a namespace has retention settings."""
    return any((space.history_messages, space.history_kib, space.history_s, space.arena_share))


def retention(name: str, space: Namespace) -> Retention:
    """The retention settings of one namespace."""
    size = None if space.history_kib is None else space.history_kib << 10
    return name, space.arena_share or 0, space.history_messages, size, space.history_s


class DoorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a gateway's and a proxy's sessions."""

    clients: Clients
    default_rights: list[tuple[str, list[str]]]
    """For users without `cap`: patterns of room names, each with its rights."""


def default_rights(around: Around) -> list[tuple[str, list[str]]]:
    """Make the rights of users whose token has no `cap`: a pattern of room names and its rights each."""
    rooms: Rooms = around.section("rooms")
    namespaces: Mapping[str, Namespace] = around.section("namespaces")
    rights = {"*": rooms.default_rights}
    rights |= {f"{name}:*": each.default_rights for name, each in namespaces.items() if each.default_rights is not None}
    return [(pattern, words.split(",")) for pattern, words in rights.items()]


def door_reloads(role: str, *names: str) -> dict[str, str]:
    """The keys that a running gateway or proxy reloads, its own ones by `names`, and their fields."""
    own = {f"{role}.{name}": f"options.{name}" for name in ("sessions_max", "accept_rate", *names)}
    return own | {f"clients.{name}": f"clients.{name}" for name in ("backoff_ms", "backoff_max_ms")}

"""The proxy: passes clients' messages to the room's broker.

Its options, its settings and its descriptor; the engine is made in `build.py`.
"""

from typing import Annotated, Final

import msgspec

from muster_server.plane.kind import Around, Pods, RoleKind
from muster_server.plane.options import DoorOptions, key
from muster_server.plane.users import USER_MAX
from muster_server.systems.rooms.options import (
    PAGES,
    DoorSettings,
    UserSessions,
    default_rights,
    door_reloads,
    retentions,
)

RELOADED: Final = ("command_rate", "command_burst", "user_sessions_max", "user_message_rate", "user_byte_rate")


class Proxy(DoorOptions, frozen=True):
    """Passes clients' messages to the room's broker."""

    age_every: Annotated[
        int,
        key(
            "One of this many publish frames carries its messages' age, for the latency of real messages; 1: all frames, for"
            " `Message.age`; 0: none",
            "costs 4 to 61 bytes from broker to gateway each, and is enough for percentiles of a minute",
            "frames",
            ge=0,
            le=1 << 30,
        ),
    ] = 1_024
    command_rate: Annotated[
        int,
        key(
            "Limit of one user's commands per second, over all its sessions here; with the shared token, of "
            "one session",
            "commands are for rare events: each costs an answer per member and per hop",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 1
    command_burst: Annotated[
        int, key("Burst of one user's commands after a pause", "no burst", "commands", ge=1, le=10_000)
    ] = 1
    user_sessions_max: UserSessions = 64
    user_message_rate: Annotated[
        int,
        key(
            "Limit of one user's messages per second, over all its sessions here; after a second's pause as many at once."
            " With the shared token it is each session's limit; 0: no limit. A message counts once per 1,100 bytes",
            "far above what one program sends; further messages wait at their publisher",
            "1/s",
            ge=0,
            le=100_000_000,
        ),
    ] = 100_000
    user_byte_rate: Annotated[
        int,
        key(
            "The same in bytes",
            "16 MiB: an eighth of 1 Gbit/s, so one user cannot fill a proxy's network",
            "bytes/s",
            ge=0,
            le=(1 << 32) - 1,
        ),
    ] = 16 << 20


class ProxySettings(DoorSettings, frozen=True):
    """The settings of a proxy."""

    options: Proxy
    namespaces: list[str] = msgspec.field(default_factory=list[str])
    """The namespaces that brokers are told, because their rooms have retention settings."""
    sends: list[tuple[int, int, list[str]]] | None = None
    """The users to whom a range of users may send if their token has no `send`; None: messages to users are not
    accepted."""
    not_online: str = ""
    """Where messages of users go for users of whom no device has them: `KIND:NAME`; empty: nowhere."""
    folder: str = ""
    """Of the instance."""


def settle(options: Proxy, around: Around) -> ProxySettings:
    """Make the settings from the configuration."""
    return ProxySettings(
        options=options,
        clients=around.section("clients"),
        default_rights=default_rights(around),
        namespaces=[name for name, *_ in retentions(around)],
        sends=sends(around),
        not_online=not_online(around),
        folder=str(around.folder),
    )


def not_online(around: Around) -> str:
    """`presence.not_online`; empty if presence is off."""
    return around.section("presence").not_online if around.runs("presence") else ""


def sends(around: Around) -> list[tuple[int, int, list[str]]] | None:
    """The users to whom users without `send` in their token may send; None if presence is off."""
    if not around.runs("presence"):
        return None
    named = [each for each in around.section("users").values() if each.send is not None]
    otherwise = around.section("presence").send
    return [*((each.first, each.last, split(each.send)) for each in named), (0, USER_MAX, split(otherwise))]


def split(patterns: str) -> list[str]:
    """Split the patterns of a key."""
    return [each for each in patterns.split(",") if each]


PROXY: Final = RoleKind(
    name="proxy",
    process="machine",
    numbers=range(4, 10_001, 4),
    about="takes what clients publish to the room's broker",
    options=Proxy,
    settings=ProxySettings,
    settle=settle,
    build="muster_server.systems.rooms.build:proxy",
    pages=PAGES,
    clustered=True,
    door="publish",
    listed="proxies",
    dials=("broker",),
    clients=True,
    secrets=frozenset({"cluster", "names", "token", "users"}),
    registers="serving",
    plural="proxies",
    count_why="publishers are spread over them",
    always=True,
    ends=10,
    row=40,
    pods=Pods(port=7402, admin=7491, memory_max="512Mi"),
    received="muster_messages_received_total",
    sent="muster_messages_forwarded_total",
    carried="muster_messages_forwarded_total",
    reloads=door_reloads("proxy", *RELOADED),
)

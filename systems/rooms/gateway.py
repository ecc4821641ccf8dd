"""The gateway: clients join rooms here, and it carries each room to its members.

Its options, its settings and its descriptor; the engine is made in `build.py`.
"""

from typing import Annotated, Final

import msgspec

from muster_server.plane.kind import Around, Pods, RoleKind
from muster_server.plane.options import DoorOptions, key
from muster_server.systems.rooms.options import (
    PAGES,
    ArenaMib,
    DoorSettings,
    Retention,
    UserSessions,
    default_rights,
    door_reloads,
    paced,
    retentions,
)


class Gateway(DoorOptions, frozen=True):
    """Carries rooms to their members. Clients join here."""

    arena_mib: ArenaMib = 256
    history_max: Annotated[
        int,
        key("Limit of history messages of a join", "one request to a broker", "messages", ge=0, le=65_536),
    ] = 1_024
    rooms_max: Annotated[
        int,
        key(
            "Limit of rooms; further ones are refused as `busy`. A user gets at most as many rooms as are still free",
            "1.3 KiB each: 5.2 GiB at the limit of one process",
            "rooms",
            ge=1,
            le=4 << 20,
        ),
    ] = 4 << 20
    user_rooms_max: Annotated[
        int,
        key(
            "Limit of one user's rooms, over all its sessions here; a room counts once per session. With the shared"
            " token the limit applies to each session, which has at most 256",
            "four sessions with 256 rooms each; such rooms without other members take 1.3 MiB",
            "rooms",
            ge=1,
            le=4 << 20,
        ),
    ] = 1_024
    user_sessions_max: UserSessions = 64
    membership_again_ms: Annotated[
        int,
        key(
            "Time after which a room's first join, or last leave, is repeated to the router unless acknowledged; 0: only"
            " after a suspected loss",
            "faster than loss detection; while many rooms change at once, nothing is sent twice",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 10


class PresenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of presence in a gateway."""

    window_ms: int
    """Sessions that begin or end within this time are reported in one packet."""
    devices: str
    """Policy for a user's devices: `many`, `one per kind` or `one`."""
    users: list[tuple[int, int, str]]
    """The same for ranges of users (first, last)."""


class GatewaySettings(DoorSettings, frozen=True):
    """The settings of a gateway."""

    options: Gateway
    arena_bytes: int
    paced_namespaces: list[str]
    namespaces: list[Retention] = msgspec.field(default_factory=list[Retention])
    presence: PresenceSettings | None = None


def settle(options: Gateway, around: Around) -> GatewaySettings:
    """Make the settings from the configuration."""
    return GatewaySettings(
        options=options,
        clients=around.section("clients"),
        default_rights=default_rights(around),
        arena_bytes=options.arena_mib << 20,
        paced_namespaces=paced(around),
        namespaces=retentions(around),
        presence=presence(around),
    )


def presence(around: Around) -> PresenceSettings | None:
    """The settings of presence for gateways; None if presence is off."""
    if not around.runs("presence"):
        return None
    options, users = around.section("presence"), around.section("users").values()
    return PresenceSettings(
        window_ms=options.window_ms,
        devices=options.devices,
        users=[(each.first, each.last, each.devices) for each in users],
    )


GATEWAY: Final = RoleKind(
    name="gateway",
    process="machine",
    numbers=range(3, 10_001, 4),
    about="carries rooms to the clients that join them",
    options=Gateway,
    settings=GatewaySettings,
    settle=settle,
    build="muster_server.systems.rooms.build:gateway",
    pages=PAGES,
    door="read",
    listed="gateways",
    dials=("broker", "router"),
    clients=True,
    secrets=frozenset({"cluster", "names", "token", "users"}),
    plural="gateways",
    count_why="members are spread over them",
    always=True,
    ends=30,
    row=30,
    pods=Pods(port=7400, memory="512Mi"),
    received="muster_messages_received_total",
    sent="muster_messages_sent_total",
    carried="muster_messages_sent_total",
    delivered="muster_messages_sent_total",
    reloads=door_reloads("gateway", "history_max", "rooms_max", "user_rooms_max", "user_sessions_max"),
)

"""The section `[edge]` of the configuration, and what a node's process is told of it."""

from typing import Annotated, Final

import msgspec

from muster_server.plane import ways
from muster_server.plane.kind import Around
from muster_server.plane.options import FaceAddress, LinkAddress, MachineOptions, key
from muster_server.systems.rooms.gateway import PresenceSettings, presence
from muster_server.systems.rooms.options import (
    ArenaMib,
    Retention,
    UserSessions,
    Words,
    default_rights,
    paced,
    retentions,
)
from muster_server.systems.rooms.proxy import not_online, sends

RELOADED: Final = (
    "origins",
    "connections_max",
    "address_connections_max",
    "history_max",
    "rooms_max",
    "user_rooms_max",
    "user_sessions_max",
    "write_interval_ms",
    "join_leave_max",
)
"""Keys of `[edge]` that a running node takes by SIGHUP."""


class EdgeOptions(MachineOptions, frozen=True):
    """Clients by WebSocket: browsers, phones, and programs in any language, with the SDKs of Centrifuge."""

    bind: FaceAddress = "127.0.0.1:0"
    link_bind: LinkAddress = "127.0.0.1:0"
    origins: Annotated[
        tuple[str, ...],
        key(
            "Web sites whose pages may connect, for example `https://example.com`; one `*` stands for a part of the host;"
            " `*`: any",
            "empty: the edge's own host alone. Other programs send no origin",
        ),
    ] = ()
    anonymous_rights: Annotated[
        Words,
        key(
            "Rights of clients without a token in every room, separated by commas: read, publish, command, members,"
            " history",
            "empty: a client without a token is refused",
        ),
    ] = ""
    arena_mib: ArenaMib = 256
    history_max: Annotated[
        int, key("Limit of history messages of a command", "one fetch from a broker", "messages", ge=0, le=65_536)
    ] = 1_024
    rooms_max: Annotated[
        int,
        key(
            "Limit of rooms; further ones are refused as `limit exceeded`",
            "as a gateway's",
            "rooms",
            ge=1,
            le=4 << 20,
        ),
    ] = 4 << 20
    user_rooms_max: Annotated[
        int,
        key(
            "Limit of one user's rooms, over all its sessions here; a room counts once per session",
            "as a gateway's",
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
            "as a gateway's",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 10
    connections_max: Annotated[
        int,
        key(
            "Limit of connections; further ones get 503 with `Retry-After`",
            "a descriptor each; 1 KiB for a session in a room, 9 KiB with TLS",
            "connections",
            ge=1,
            le=1 << 20,
        ),
    ] = 100_000
    address_connections_max: Annotated[
        int,
        key(
            "Limit of connections from one address, in IPv6 from one /64; 0: no limit",
            "0: behind a proxy all clients have its address",
            "connections",
            ge=0,
            le=1 << 20,
        ),
    ] = 0
    half_open_max: Annotated[
        int,
        key(
            "Limit of connections without an accepted token; the oldest are closed for new ones",
            "each may take 10 s to show one",
            "connections",
            ge=1,
            le=1 << 20,
        ),
    ] = 4_096
    user_timeout_ms: Annotated[
        int,
        key(
            "A client whose kernel acknowledges nothing for this time is closed (TCP_USER_TIMEOUT)",
            "below the ping: a laptop that slept is noticed by the first of them",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 20_000
    ping_ms: Annotated[
        int,
        key(
            "Interval of pings; the first one comes after half to all of it, at random",
            "proxies cut what is silent for 60 s",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 25_000
    pong_ms: Annotated[
        int,
        key(
            "Limit of the wait for a pong; then a client that sent nothing, and whose kernel is silent, is closed",
            "a frozen tab comes back without a loss",
            "ms",
            ge=500,
            le=600_000,
        ),
    ] = 8_000
    command_rate: Annotated[
        int, key("Limit of one session's commands per second", "a person is far below it", "1/s", ge=1, le=1_000_000)
    ] = 100
    command_burst: Annotated[
        int,
        key(
            "Burst of one session's commands after a pause",
            "a reconnect subscribes to all its rooms",
            "commands",
            ge=1,
            le=1_000_000,
        ),
    ] = 512
    stall_ms: Annotated[
        int,
        key(
            "A client whose socket accepts nothing for this time is closed as slow; it reconnects, and recovers",
            "until then it costs a cursor",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 10_000
    write_interval_ms: Annotated[
        int,
        key(
            "Interval at which messages of rooms are written together; 0: each one at once",
            "0: the lowest latency; 10 costs up to 10 ms, and busy rooms take less CPU",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 0
    join_leave_max: Annotated[
        int,
        key(
            "Largest room, in users, whose joins and leaves are sent to clients that ask for them; 0: none",
            "a page of members; each such room is asked for its users once a second",
            "users",
            ge=0,
            le=100,
        ),
    ] = 100
    drain_s: Annotated[
        float,
        key(
            "Time over which a node that ends sends its clients to others, a part at a time",
            "all at once would return at once; systemd and Kubernetes wait accordingly",
            "s",
            ge=0,
            le=600,
        ),
    ] = 10.0
    tls_cert_file: Annotated[
        str, key("File with the certificates, PEM; then clients connect by wss", "empty: a proxy in front speaks TLS")
    ] = ""
    tls_key_file: Annotated[str, key("File with the private key of the certificate, PEM", "")] = ""


class EdgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of an edge."""

    options: EdgeOptions
    arena_bytes: int
    tls_cert_file: str
    tls_key_file: str
    default_rights: list[tuple[str, list[str]]]
    """Rights of users whose token has no `cap`: patterns of room names, each with its rights."""
    paced_namespaces: list[str]
    namespaces: list[Retention] = msgspec.field(default_factory=list[Retention])
    presence: PresenceSettings | None = None
    sends: list[tuple[int, int, list[str]]] | None = None
    """Users whose token has no `send`, first and last, and to whom they may send; None: nobody sends."""
    not_online: str = ""
    """As of a proxy."""
    folder: str = ""
    """Of the instance."""
    calls: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Methods of other systems, each with the function that makes its answers (`System.calls`)."""


def settle(options: EdgeOptions, around: Around) -> EdgeSettings:
    """Made from the configuration."""
    return EdgeSettings(
        options=options,
        arena_bytes=options.arena_mib << 20,
        tls_cert_file=around.absolute(options.tls_cert_file),
        tls_key_file=around.absolute(options.tls_key_file),
        default_rights=default_rights(around),
        paced_namespaces=paced(around),
        namespaces=retentions(around),
        presence=presence(around),
        sends=sends(around),
        not_online=not_online(around),
        folder=str(around.folder),
        calls=ways.calls(around.runs),
    )

"""The section `[edge]` of the configuration, and what a node's process is told of it."""

from typing import Annotated, Final

import msgspec

from muster_server.plane import ways
from muster_server.plane.kind import Around
from muster_server.plane.options import FaceAddress, LinkAddress, MachineOptions, key
from muster_server.systems.rooms.gateway import PresenceSettings, presence
from muster_server.systems.rooms.options import ArenaMib, Retention, UserSessions, Words, default_rights, retentions
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
            "Web sites whose pages may connect, as `https://example.com`; one `*` stands for a part of the host; `*`: any",
            "empty: the edge's own host alone. Programs that are no browsers send no origin",
        ),
    ] = ()
    anonymous_rights: Annotated[
        Words,
        key(
            "Rights of clients without a token in every room, with commas between: read, publish, command, members,"
            " history",
            "empty: a client without a token is refused",
        ),
    ] = ""
    arena_mib: ArenaMib = 256
    history_max: Annotated[
        int, key("Most messages of history for a command", "one fetch from a broker", "messages", ge=0, le=65_536)
    ] = 1_024
    rooms_max: Annotated[
        int,
        key(
            "Most rooms at once; further ones are refused as `limit exceeded`",
            "as a gateway's",
            "rooms",
            ge=1,
            le=4 << 20,
        ),
    ] = 4 << 20
    user_rooms_max: Annotated[
        int,
        key(
            "Most rooms of one user, over all its sessions here, a room counted for each session in it",
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
            "Time after which a room's first join, or last leave, is sent to the router again unless acknowledged; 0: only"
            " when it may be lost",
            "as a gateway's",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 10
    connections_max: Annotated[
        int,
        key(
            "Connections at once; a further one is answered 503 with `Retry-After`",
            "a descriptor each; 1 KiB for a session in a room, 9 KiB with TLS",
            "connections",
            ge=1,
            le=1 << 20,
        ),
    ] = 100_000
    address_connections_max: Annotated[
        int,
        key(
            "Connections of one address, of one /64 in IPv6; 0: any number",
            "0: behind a proxy all clients have its address",
            "connections",
            ge=0,
            le=1 << 20,
        ),
    ] = 0
    half_open_max: Annotated[
        int,
        key(
            "Connections at once without an accepted token; the oldest make room for new ones",
            "each may take 10 s to show one",
            "connections",
            ge=1,
            le=1 << 20,
        ),
    ] = 4_096
    user_timeout_ms: Annotated[
        int,
        key(
            "A client whose kernel acknowledges nothing for this time is gone (TCP_USER_TIMEOUT)",
            "below the ping: a laptop that slept is noticed by the first of them",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 20_000
    ping_ms: Annotated[
        int,
        key(
            "Time between pings, the first one after a random half to whole of it",
            "proxies cut what is silent for 60 s",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 25_000
    pong_ms: Annotated[
        int,
        key(
            "A pong is awaited for this long; then a client ends of which nothing was heard and whose kernel is silent",
            "a frozen tab comes back without a loss",
            "ms",
            ge=500,
            le=600_000,
        ),
    ] = 8_000
    command_rate: Annotated[
        int, key("Commands of one session", "a person is far below it", "1/s", ge=1, le=1_000_000)
    ] = 100
    command_burst: Annotated[
        int,
        key(
            "Commands of one session at once after a pause",
            "a reconnect subscribes to all its rooms",
            "commands",
            ge=1,
            le=1_000_000,
        ),
    ] = 512
    stall_ms: Annotated[
        int,
        key(
            "A client whose socket takes nothing for this time is cut as slow; it comes back, and recovers what is kept",
            "until then it costs a cursor",
            "ms",
            ge=1_000,
            le=600_000,
        ),
    ] = 10_000
    write_interval_ms: Annotated[
        int,
        key(
            "Messages of rooms leave together this long after each other; 0: each as soon as it is there",
            "0: the lowest latency; 10 costs up to 10 ms, and busy rooms take less CPU",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 0
    join_leave_max: Annotated[
        int,
        key(
            "Users of a room up to which joins and leaves are told to clients that ask for it; 0: in no room",
            "a page of members; each such room is asked for its users once a second",
            "users",
            ge=0,
            le=100,
        ),
    ] = 100
    drain_s: Annotated[
        float,
        key(
            "A node that ends sends its clients to others over this time, slice by slice",
            "all at once would come back at once; systemd and Kubernetes wait as they are told",
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
    spaces = around.section("namespaces")
    return EdgeSettings(
        options=options,
        tls_cert_file=around.absolute(options.tls_cert_file),
        tls_key_file=around.absolute(options.tls_key_file),
        default_rights=default_rights(around),
        paced_namespaces=[name for name, space in spaces.items() if space.flow == "paced"],
        namespaces=retentions(around),
        presence=presence(around),
        sends=sends(around),
        not_online=not_online(around),
        folder=str(around.folder),
        calls=ways.calls(around.runs),
    )

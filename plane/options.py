"""The type of a key of the configuration, and the keys that several roles share.

Owns only shapes. It must not know files, environment or flags, nor the programs that read the values.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


def key(text: str, why: str = "", unit: str = "", **bounds: Any) -> Meta:
    """Describe one key: its meaning, the reason for its default, its unit, its bounds."""
    return Meta(description=text, extra={"why": why, "unit": unit}, **bounds)


Address = Annotated[
    str,
    key(
        "UDP address, `host:port`; an IPv6 host in brackets",
        "port 0: Muster chooses a free port once and keeps it across restarts",
    ),
]
LinkAddress = Annotated[
    str,
    key(
        "UDP address for links to the other roles, `host:port`; all IPv4 or all IPv6",
        "separate from clients: a flood of clients cannot fill its buffer",
    ),
]
FaceAddress = Annotated[
    str,
    key(
        "TCP address, `host:port`; an IPv6 host in brackets",
        "port 0: Muster chooses a free port once and keeps it across restarts",
    ),
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration."""


class MachineOptions(Section, frozen=True):
    """The keys of every role that has links."""

    bind: Address = "127.0.0.1:0"
    recv_buffer_bytes: Annotated[
        int,
        key(
            "Requested size of the socket's receive buffer; 0: the kernel's default",
            "Linux's default holds about 256 small datagrams; `muster status` shows the actual size",
            "bytes",
            ge=0,
            le=1 << 30,
        ),
    ] = 4 << 20
    send_buffer_bytes: Annotated[
        int,
        key(
            "Requested size of the socket's send buffer; 0: the kernel's default",
            "two slices",
            "bytes",
            ge=0,
            le=1 << 30,
        ),
    ] = 4 << 20
    payload_bytes: Annotated[
        int,
        key("Largest datagram", "fits the MTU of every usual network", "bytes", ge=1200, le=1472),
    ] = 1200


class DoorOptions(MachineOptions, frozen=True):
    """The keys of the roles that clients connect to over UDP."""

    link_bind: LinkAddress = "127.0.0.1:0"
    keepalive_ms: Annotated[
        int, key("Silence after which a keepalive is sent", "NAT bindings last 30 s", "ms", ge=100, le=600_000)
    ] = 15_000
    idle_timeout_ms: Annotated[
        int, key("Silence after which a peer counts as lost", "three lost keepalives", "ms", ge=300, le=3_600_000)
    ] = 45_000
    sessions_max: Annotated[
        int,
        key(
            "Limit of open sessions; further clients get no answer and try another server; open sessions stay",
            "about 1 KB each: 1 GB at the limit of one process",
            "sessions",
            ge=1,
            le=1 << 20,
        ),
    ] = 1 << 20
    accept_rate: Annotated[
        int,
        key(
            "Limit of handshakes per second from one network (an IPv4 /24 or an IPv6 /56); bursts of twice as many",
            "one network cannot lock out the others; raise it if many clients share a translated address",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 1_000


class FaceOptions(Section, frozen=True):
    """The keys of every role that serves its own protocol over TCP."""

    bind: FaceAddress = "127.0.0.1:0"

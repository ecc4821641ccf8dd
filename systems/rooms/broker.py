"""The broker: numbers each room's messages and keeps the recent ones.

Its options, its settings and its descriptor; the engine is made in `build.py`.
"""

from typing import Annotated, Final

import msgspec

from muster_server.plane.kind import Around, Pods, RoleKind
from muster_server.plane.options import MachineOptions, key
from muster_server.systems.rooms.options import PAGES, ArenaMib, Retention, retentions


class Broker(MachineOptions, frozen=True):
    """Numbers a room's messages and keeps the recent ones. `bind` is for links: no client connects to it."""

    arena_mib: ArenaMib = 256
    relay_above: Annotated[
        int,
        key(
            "A busy room on more gateways than this is sent to a few of them, which pass it on to the others; 0: the"
            " broker sends it to each gateway",
            "below, a broker sends a message to all of them in less time than one more hop takes",
            "gateways",
            ge=0,
            le=4_096,
        ),
    ] = 24


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a broker."""

    arena_bytes: int
    relay_above: int
    namespaces: list[Retention] = msgspec.field(default_factory=list[Retention])


def settle(options: Broker, around: Around) -> BrokerSettings:
    """Make the settings from the configuration."""
    return BrokerSettings(
        arena_bytes=options.arena_mib << 20,
        relay_above=options.relay_above,
        namespaces=retentions(around),
    )


BROKER: Final = RoleKind(
    name="broker",
    process="machine",
    numbers=range(2, 10_001, 4),
    about="numbers a room's messages and keeps the recent ones",
    options=Broker,
    settings=BrokerSettings,
    settle=settle,
    build="muster_server.systems.rooms.build:broker",
    pages=PAGES,
    shape="partitioned",
    clustered=True,
    secrets=frozenset({"cluster", "names"}),
    hands_over_to="gateway",
    plural="brokers",
    count="1",
    count_why="partitions share the memberships; the replicas of a partition share its messages",
    always=True,
    ends=20,
    row=10,
    pods=Pods(port=7410, memory="512Mi"),
    received="muster_messages_received_total",
    sent="muster_messages_sent_total",
    carried="muster_messages_published_total",
    published="muster_messages_published_total",
)

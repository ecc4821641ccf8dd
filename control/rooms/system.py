"""The system of rooms: its roles, its sections of the configuration, its words of the command."""

from collections.abc import Mapping
from typing import Annotated, Final

from plane.kind import System
from plane.options import Section, key
from plane.rooms.broker import BROKER
from plane.rooms.gateway import GATEWAY
from plane.rooms.options import Clients, Namespace, Rooms
from plane.rooms.proxy import PROXY
from plane.rooms.router import ROUTER, Database

DEMO_ROOM: Final = "demo"
"""For people: a line of words a second, and what they publish."""
LOAD_ROOM: Final = "demo-load"
"""The checked load, whose messages are no text."""


class Demo(Section, frozen=True):
    """The load of `muster up --demo`, in the room `demo-load`."""

    members: Annotated[int, key("Sessions that join it", "enough to see fan-out", ge=1, le=10_000)] = 100
    rate: Annotated[int, key("Messages published", "10,000 deliveries a second", "1/s", ge=1, le=100_000)] = 100
    payload_bytes: Annotated[int, key("Size of a message", "a chat line", "bytes", ge=24, le=65_536)] = 200


SYSTEM: Final = System(
    name="rooms",
    always=True,
    kinds=(ROUTER, BROKER, GATEWAY, PROXY),
    sections={
        "database": Database,
        "clients": Clients,
        "rooms": Rooms,
        "namespaces": Mapping[str, Namespace],
        "demo": Demo,
    },
    presets={
        "database.url": "sqlite",
        "gateway.arena_mib": 64,
        "broker.arena_mib": 64,
        **{f"{role}.keepalive_ms": 400 for role in ("gateway", "proxy")},
        **{f"{role}.idle_timeout_ms": 10_000 for role in ("gateway", "proxy")},
    },
    command_keys=("demo.",),
    commands="control.rooms.words:add",
    check="control.rooms.check:wrong",
    http="control.rooms.http",
)

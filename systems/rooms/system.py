"""The system of rooms: its roles, its sections of the configuration, its commands."""

from collections.abc import Mapping
from typing import Annotated, Final

from muster_server.plane.kind import Action, System
from muster_server.plane.options import Section, key
from muster_server.systems.rooms.archive.role import ARCHIVE
from muster_server.systems.rooms.broker import BROKER
from muster_server.systems.rooms.gateway import GATEWAY
from muster_server.systems.rooms.options import Clients, Namespace, Rooms
from muster_server.systems.rooms.proxy import PROXY
from muster_server.systems.rooms.router import ROUTER, Database

DEMO_ROOM: Final = "demo"
"""The room for people: a line of text per second, and messages that people publish."""
LOAD_ROOM: Final = "demo-load"
"""The room of the checked load, whose messages are binary."""


class Demo(Section, frozen=True):
    """The load of `muster up --demo`, in the room `demo-load`."""

    members: Annotated[int, key("Number of members that join it", "enough to see fan-out", ge=1, le=10_000)] = 100
    rate: Annotated[int, key("Messages published", "10,000 deliveries a second", "1/s", ge=1, le=100_000)] = 100
    payload_bytes: Annotated[int, key("Size of a message", "a chat line", "bytes", ge=24, le=65_536)] = 200


SYSTEM: Final = System(
    name="rooms",
    title="Rooms",
    about="publish once, and every member of the room gets it",
    protocols=("UDP",),
    always=True,
    kinds=(ROUTER, BROKER, GATEWAY, PROXY, ARCHIVE),
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
    commands="muster_server.systems.rooms.cli.words:add",
    demo="muster_server.systems.rooms.cli.demo:run",
    tries=(f"{{muster}} sub {DEMO_ROOM}", f"echo hello | {{muster}} pub {DEMO_ROOM}"),
    stores="muster_server.systems.rooms.stores:stores",
    load="muster_server.systems.rooms.load",
    load_word="muster_server.systems.rooms.cli.load:add",
    size="muster_server.systems.rooms.size",
    check="muster_server.systems.rooms.check:wrong",
    actions=(
        Action("publish", "publish messages to these rooms", "publish"),
        Action("read", "read these rooms as event streams", "read"),
        Action("history", "read the last messages of these rooms", "read"),
        Action("members", "count and name the members of these rooms", "publish"),
        Action("command", "send commands to all members of these rooms", "publish"),
        Action("rooms", "list these rooms"),
    ),
    http="muster_server.systems.rooms.http.routes",
    calls={"muster.request": "muster_server.systems.rooms.calls:request"},
)

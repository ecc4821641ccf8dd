"""The system of the edge: one role, a gateway whose members come by WebSocket."""

from typing import Final

from muster_server.plane.kind import Pods, RoleKind, System, numbers
from muster_server.systems.edge.options import RELOADED, EdgeOptions, EdgeSettings, settle

EDGE: Final = RoleKind(
    name="edge",
    process="machine",
    numbers=numbers(40),
    about="carries rooms to browsers, phones and programs in any language, by WebSocket",
    options=EdgeOptions,
    settings=EdgeSettings,
    settle=settle,
    build="muster_server.systems.edge.build:edge",
    pages="muster_server.systems.rooms.pages:answer",
    scheme="ws",
    path="/connection/websocket",
    tls="tls_cert_file",
    listens=True,
    dials=("broker", "router"),
    secrets=frozenset({"cluster", "names", "token", "users"}),
    plural="edges",
    count_why="browsers spread over them, by a balancer",
    ends=8,
    row=32,
    pods=Pods(port=7450, memory="512Mi", memory_max="2Gi"),
    received="muster_connections_commands_total",
    sent="muster_messages_sent_total",
    carried="muster_messages_sent_total",
    delivered="muster_messages_sent_total",
    reloads={f"edge.{name}": f"options.{name}" for name in RELOADED},
)

SYSTEM: Final = System(
    name="edge",
    title="Edge",
    about="rooms for browsers and phones, over WebSocket",
    protocols=("WebSocket",),
    kinds=(EDGE,),
    presets={"edge.arena_mib": 64},
    check="muster_server.systems.edge.check:wrong",
    load="muster_server.systems.edge.load",
    load_word="muster_server.systems.edge.cli.load:add",
    page="muster_server.systems.edge.chat.server:served",
)

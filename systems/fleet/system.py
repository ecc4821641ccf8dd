"""The system of the fleet: index nodes, schedulers, and mosquitto beside them; their commands and routes."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from muster_server.plane.kind import Action, Pods, RoleKind, System, numbers
from muster_server.systems.fleet import broker, keeper, options
from muster_server.systems.fleet.options import Fleet, FleetSettings, Index, Scheduler

MQTT: Final = {"fleet.mqtt": "mqtts://muster@mqtt:8883"}
"""On Kubernetes: the operator's broker, under this name."""
PASSWORD: Final = {"fleet.password_file": "mqtt.password"}
MISSING: Final = "the fleet needs more libraries; to mend: pip install 'muster-server[fleet]'"


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why no node of a fleet can run; None: nothing is missing."""
    if not section("fleet").mqtt:
        return "fleet.mqtt: missing; nodes of muster serve need an MQTT broker: mqtt://USER@HOST:PORT"
    return None if find_spec("gmqtt") and find_spec("pyroaring") else MISSING


INDEX: Final = RoleKind(
    name="index",
    process="face",
    numbers=numbers(4),
    about="knows a fleet's clients and picks among them",
    options=Index,
    settings=FleetSettings,
    settle=options.settle,
    build="muster_server.systems.fleet.build:index",
    secrets=frozenset({"cluster"}),
    registers="serving",
    plural="index",
    count_why="each knows all clients; marks spread over them, and one that dies is replaced by the others",
    ends=10,
    row=70,
    pods=Pods(port=7450, memory_max="2Gi", keys=MQTT, files=PASSWORD),
    received="muster_fleet_messages_received_total",
    sent="muster_fleet_notices_sent_total",
    carried="muster_fleet_picks_total",
    members="muster_fleet_clients",
    check=lacks,
)
SCHEDULER: Final = RoleKind(
    name="scheduler",
    process="face",
    numbers=numbers(5),
    about="runs a fleet's tasks, and keeps what comes back",
    options=Scheduler,
    settings=FleetSettings,
    settle=options.settle,
    build="muster_server.systems.fleet.build:schedules",
    secrets=frozenset({"cluster", "token"}),
    registers="serving",
    plural="schedulers",
    count_why="one leads, the others take over within 4 s",
    ends=5,
    row=71,
    pods=Pods(port=7451, memory_max="2Gi", keys=MQTT, files=PASSWORD),
    received="muster_fleet_answers_received_total",
    sent="muster_fleet_orders_sent_total",
    carried="muster_fleet_orders_sent_total",
    check=lacks,
)

SYSTEM: Final = System(
    name="fleet",
    title="Fleet",
    about="ask and task 20,000 devices over MQTT, picked fairly",
    protocols=("MQTT",),
    kinds=(INDEX, SCHEDULER),
    sections={"fleet": Fleet},
    programs=(broker.PROGRAM, keeper.PROGRAM),
    tour=(
        "muster fleet agents --count 20 >/dev/null 2>&1 &",
        "until muster fleet run ping --pick 3; do sleep 0.5; done",
        "muster fleet fairness",
    ),
    commands="muster_server.systems.fleet.cli.words:add",
    stores="muster_server.systems.fleet.stores:stores",
    load="muster_server.systems.fleet.load",
    load_word="muster_server.systems.fleet.cli.load:add",
    check="muster_server.systems.fleet.check:wrong",
    doctor="muster_server.systems.fleet.doctor:examined",
    actions=(
        Action("measure", "ask clients of the fleet for measurements of these kinds, and see these runs"),
        Action("tasks", "see, write and remove these continuous tasks of the fleet"),
        Action("clients", "see the clients of the fleet"),
    ),
    http="muster_server.systems.fleet.http.routes",
)

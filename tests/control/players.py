"""Processes in the registry without their engines: their registrations, and the maps that they get."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from muster_server.control.node.enrolment import Enrolment
from muster_server.plane.engine import Placement
from muster_server.plane.role import Servers
from muster_server.plane.spec import Registration, Spec
from muster_server.systems.rooms.broker import BrokerSettings
from muster_server.systems.rooms.router import Router, RouterSettings

SETTINGS: Final = {
    "router": RouterSettings(options=Router(memberships_max=2)),
    "broker": BrokerSettings(arena_bytes=1 << 20, relay_above=24),
}


def spec(number: int, role: str, partition: int = 0, partitions: tuple[int, int] = (1, 1), **where: Any) -> Spec:
    registration: dict[str, Any] = {
        "url": "embedded",
        "folder": "/nowhere",
        "name": f"muster-{role}-{number}",
        "partition": partition,
        "client": None,
        "public_key": "",
        "session_ms": 2_000,
        "auth": "none",
        "user": "",
        "password_file": "",
    }
    return Spec(
        instance="muster",
        role=role,
        node=number,
        epoch=7,
        bind=None,
        link_bind=("127.0.0.1", 7_000 + number),
        admin=("127.0.0.1", 8_000 + number),
        placement_epoch=0,
        nodes=[],
        layers={"broker": (partitions[0], 0), "router": (partitions[1], 0)},
        registry=Registration(**registration | where),
        key_id=1,
        cluster_secret_file="",
        name_key_file="",
        server_key_file=None,
        reset_secret_file=None,
        token_file=None,
        recv_buffer=0,
        send_buffer=0,
        payload_bytes=1200,
        faults=None,
        seed=1,
        drain_ms=0,
        log_level="info",
        log_format="json",
        settings=SETTINGS.get(role),
    )


@dataclass(eq=False)
class Player:
    """A process with an engine that only notes its maps."""

    enrolment: Enrolment
    begun: Spec
    maps: list[Placement] = field(default_factory=list)
    settled: Callable[[], bool] = lambda: True
    named: list[Servers] = field(default_factory=list)

    def take(self, placement: Placement) -> None:
        self.maps.append(placement)

    def states(self) -> dict[int, str]:
        """By node, in the newest map."""
        return {entry[0]: entry[5] for entry in self.maps[-1].nodes}

    def attach(self) -> None:
        """Take every map for the missing engine."""
        self.enrolment.attach(self.take, self._settled, self.named.append)

    def _settled(self) -> bool:
        return self.settled()

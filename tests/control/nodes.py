"""Nodes in the form of an instance's record, none of which runs, and the numbers of maps."""

from typing import Any

from muster_server.control.cluster.instance import Process
from muster_server.control.config.layout import seats
from muster_server.control.config.options import Config, counted, whole
from muster_server.control.registry.places import MAIN, Snapshot


def configured(**counts: int | str) -> Config:
    """A configuration with these numbers of nodes, and no prober."""
    probes = type(whole()().section("probes"))
    return whole()(up=counted(**counts), probes=probes(every_ms=0))  # type: ignore[call-arg]


def processes(**counts: int | str) -> list[Process]:
    """All nodes of such a configuration."""
    where = ("127.0.0.1", 1)
    rest: dict[str, Any] = {"pid": 1, "epoch": 7, "restarts": 2, "ready": True, "link": where, "admin": where}
    return [
        Process(name=seat.name, role=seat.role, node=seat.node, partition=seat.partition, **rest)
        for seat in seats(configured(**counts))
    ]


def partitions(snapshot: Snapshot, cluster: str = MAIN) -> tuple[int, int]:
    """Numbers of partitions of brokers and of routers."""
    layers = snapshot.layers("broker", cluster)
    return layers["broker"][0], layers["router"][0]


def growth(snapshot: Snapshot, cluster: str = MAIN) -> tuple[int, int]:
    """The growth of brokers and routers."""
    layers = snapshot.layers("broker", cluster)
    return layers["broker"][1], layers["router"][1]

"""Nodes as the record of an instance has them, none of which runs."""

from typing import Any

from control.cluster.instance import Process
from control.config.layout import seats
from control.config.options import Up


def processes(up: Up) -> list[Process]:
    """All nodes of a configuration."""
    where = ("127.0.0.1", 1)
    rest: dict[str, Any] = {"pid": 1, "epoch": 7, "restarts": 2, "ready": True, "link": where, "admin": where}
    return [
        Process(name=seat.name, role=seat.role, node=seat.node, partition=seat.partition, **rest) for seat in seats(up)
    ]

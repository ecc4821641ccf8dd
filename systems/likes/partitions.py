"""The partitions of likes as their nodes report them: slots, owner, epoch, and the position in the log.

Reads the nodes' answers. Must not know a route or a command.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from muster_server.control.cluster.instance import Process
from muster_server.control.terminal.readings import read_all
from muster_server.systems.likes.slots import slots_of


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. `node` is empty if no node that answers serves it; `offset`: the log's position; `not_written_behind`:
    items whose counts the database lacks."""

    partition: int
    first_slot: int
    last_slot: int
    node: str = ""
    epoch: int = 0
    items: int = 0
    likes: int = 0
    offset: int = 0
    not_written_behind: int = 0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node of likes. `error`: why it does not answer."""

    name: str
    state: str
    partitions: int
    items: int
    likes: int
    connections: int
    error: str = ""


class Partitions(msgspec.Struct, frozen=True):
    """All partitions by number, and all nodes by name."""

    partitions: list[PartitionRow]
    nodes: list[NodeRow]


def partitions(processes: Sequence[Process]) -> Partitions:
    """Ask each node of likes. It blocks."""
    nodes = sorted((each for each in processes if each.role == "likes"), key=lambda each: each.name)
    now = read_all(nodes)
    served: dict[int, tuple[str, dict[str, Any]]] = {}
    rows: list[NodeRow] = []
    of = 1
    for node in nodes:
        reading = now[node.node]
        status = reading.status
        mine = {int(at): dict(held) for at, held in status.get("partitions", {}).items()}
        if "partitions" not in status and "offset" in status:  # a node with the only partition
            mine = {0: {**status, "epoch": node.epoch}}
        of = max(of, int(status.get("of", 1)), *(1 + at for at in mine), 1)
        served |= {at: (node.name, held) for at, held in mine.items()}
        figures = {name: int(status.get(name, 0)) for name in ("items", "likes", "connections")}
        error = "" if reading.error is None else str(reading.error)[:400]
        rows.append(NodeRow(name=node.name, state=reading.state, partitions=len(mine), **figures, error=error))
    found = []
    for partition in range(of):
        first, last = slots_of(partition, of)
        name, held = served.get(partition, ("", {}))
        figures = {key: int(held.get(key, 0)) for key in ("epoch", "items", "likes", "offset", "not_written_behind")}
        found.append(PartitionRow(partition=partition, first_slot=first, last_slot=last, node=name, **figures))
    return Partitions(found, rows)

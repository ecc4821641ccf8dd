"""Who is where: the registry in memory, and the immutable snapshots that the data plane gets.

One process, no leases: for `muster up` and for tests. A snapshot's placement epoch grows with every change.
"""

from dataclasses import dataclass, replace
from typing import Literal

from control.options import Role
from plane import engine

State = Literal["init", "running", "draining"]


@dataclass(frozen=True, slots=True)
class Node:
    """A role's process as its peers reach it."""

    node: int
    role: Role
    host: str
    link_port: int
    partition: int = 0
    state: State = "running"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The placement at one epoch."""

    epoch: int = 0
    nodes: tuple[Node, ...] = ()
    broker_partitions: int = 1
    router_partitions: int = 1

    def of(self, role: Role) -> tuple[Node, ...]:
        """The nodes with this role."""
        return tuple(node for node in self.nodes if node.role == role)

    def entries(self) -> list[engine.Node]:
        """The nodes as an engine takes them."""
        return [(node.node, node.role, node.host, node.link_port, node.partition, node.state) for node in self.nodes]

    def partitions(self) -> tuple[int, int]:
        """Numbers of partitions of brokers and of routers."""
        return self.broker_partitions, self.router_partitions


class Registry:
    """Holds the newest snapshot."""

    def __init__(self, broker_partitions: int = 1, router_partitions: int = 1) -> None:
        self._snapshot = Snapshot(broker_partitions=broker_partitions, router_partitions=router_partitions)

    @property
    def snapshot(self) -> Snapshot:
        """The placement in force."""
        return self._snapshot

    def register(self, node: Node) -> Snapshot:
        """Add a node or move it. Saying the same again changes nothing, not even the epoch."""
        if node in self._snapshot.nodes:
            return self._snapshot
        others = [each for each in self._snapshot.nodes if each.node != node.node]
        return self._publish([*others, node])

    def remove(self, node: int) -> Snapshot:
        """Take a node out, if it is in."""
        left = [each for each in self._snapshot.nodes if each.node != node]
        return self._snapshot if len(left) == len(self._snapshot.nodes) else self._publish(left)

    def _publish(self, nodes: list[Node]) -> Snapshot:
        ordered = tuple(sorted(nodes, key=lambda each: each.node))
        self._snapshot = replace(self._snapshot, epoch=self._snapshot.epoch + 1, nodes=ordered)
        return self._snapshot

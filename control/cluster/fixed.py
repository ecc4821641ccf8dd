"""A fixed map: without a registry, nodes get all addresses at their start, permanently."""

from muster_server.control.cluster.instance import Endpoint, Process, Record
from muster_server.control.config.layout import instance_name
from muster_server.control.registry.places import Count, Node, Snapshot, layer
from muster_server.plane.kinds import partitioned


class Fixed:
    """The map from the instance's record."""

    def __init__(self, record: Record) -> None:
        ends = {end.node: end for end in record.endpoints}
        nodes = tuple(_node(process, ends.get(process.node), record.name) for process in record.processes)
        parts = {role: [node.partition for node in nodes if node.role == role] for role in partitioned()}
        counts = {layer(role): Count(1 + max(found)) for role, found in parts.items() if found}
        self._snapshot = Snapshot(1, nodes, counts)

    def snapshot(self) -> Snapshot:
        """Returns the same map each time."""
        return self._snapshot


def _node(process: Process, end: Endpoint | None, instance: str) -> Node:
    client, key = (None, "") if end is None else ((end.host, end.port), end.public_key)
    name = instance_name(instance, process.node)
    return Node(process.node, process.role, *process.link, process.partition, client=client, public_key=key, name=name)

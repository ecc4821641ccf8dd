"""A room for each broker, owned by it, in a namespace reserved for probes.

The compiled module computes owners as the engines do. The nodes come from a map alone.
"""

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from muster_server import _engines
from muster_server.control.registry.places import Snapshot, layer
from muster_server.plane.trust import PROBES

BATCH: Final = 64
TRIES_EACH: Final = 64
"""Number of names tried per broker. A broker that owns none of them, for example in a partition that is only prepared,
has no room."""


class _Place(NamedTuple):
    room: str
    cluster: str
    partition: int
    peers: frozenset[int]
    """All running brokers of the partition."""
    partitions: tuple[int, int]
    growth: tuple[int, int]


class Rooms:
    """The rooms of the current map. A broker keeps its room while it owns it, and while no other broker could."""

    def __init__(self, name_key: bytes) -> None:
        self._name_key = name_key
        self._places: dict[int, _Place] = {}

    @property
    def of(self) -> dict[int, str]:
        """The room by broker."""
        return {broker: place.room for broker, place in self._places.items()}

    def cluster(self, broker: int) -> str:
        """The cluster of a broker that has a room."""
        return self._places[broker].cluster

    def follow(self, snapshot: Snapshot) -> Set[int]:
        """Take a new map. Returns the brokers whose room, or whose partition's rooms, changed."""
        before, self._places = self._places, {}
        for cluster in snapshot.clusters():
            self._places |= self._of_cluster(cluster, snapshot, before)
        uncovered = snapshot.uncovered()
        for broker, place in before.items():
            if broker not in self._places and place.partition in uncovered.get(layer("broker", place.cluster), ()):
                self._places[broker] = place
        return {broker for broker, place in self._places.items() if before.get(broker) != place}

    def _of_cluster(self, cluster: str, snapshot: Snapshot, before: Mapping[int, _Place]) -> dict[int, _Place]:
        running: dict[int, list[int]] = {}
        partition: dict[int, int] = {}
        for node in snapshot.of("broker"):
            if node.state == "running" and node.cluster == cluster:
                running.setdefault(node.partition, []).append(node.node)
                partition[node.node] = node.partition
        kept = {broker: place.room for broker, place in before.items() if broker in partition}
        owners = self._owners(list(kept.values()), cluster, snapshot)
        found = {broker: room for (broker, room), owner in zip(kept.items(), owners, strict=True) if owner == broker}
        tried = 0
        while len(found) < len(partition) and tried < TRIES_EACH * len(partition) + BATCH:
            names = [f"{PROBES}:{number}" for number in range(tried, tried + BATCH)]
            for name, owner in zip(names, self._owners(names, cluster, snapshot), strict=True):
                if owner is not None:
                    found.setdefault(owner, name)
            tried += BATCH
        counted = _numbers(snapshot, cluster)
        return {
            broker: _Place(room, cluster, partition[broker], frozenset(running[partition[broker]]), *counted)
            for broker, room in found.items()
        }

    def _owners(self, names: list[str], cluster: str, snapshot: Snapshot) -> list[int | None]:
        nodes, numbers = snapshot.entries("broker", cluster), _numbers(snapshot, cluster)
        return _engines.room_owners(names, self._name_key, nodes, *numbers)


def _numbers(snapshot: Snapshot, cluster: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Partitions of brokers and routers, and the steps of their growth."""
    layers = snapshot.layers("broker", cluster)
    (brokers, brokers_grow), (routers, routers_grow) = layers["broker"], layers["router"]
    return (brokers, routers), (brokers_grow, routers_grow)

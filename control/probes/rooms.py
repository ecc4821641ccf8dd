"""A room for each broker that it owns, in a namespace that is kept for probes.

Owners are computed as the engines do it, by the compiled module. Knows who is where by a map alone.
"""

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from control.registry import Snapshot
from control.registry.places import layer
from muster import _core

NAMESPACE: Final = "muster-probe"
BATCH: Final = 64
TRIES_EACH: Final = 64
"""Names for each broker. A broker that owns none of so many, as one of a partition that is only prepared, has no room."""


class _Place(NamedTuple):
    room: str
    cluster: str
    partition: int
    peers: frozenset[int]
    """All that run in the partition."""
    partitions: tuple[int, int]
    growth: tuple[int, int]


class Rooms:
    """Follows the map. A broker keeps its room for as long as it owns it, and while nobody runs who could."""

    def __init__(self, name_key: bytes) -> None:
        self._name_key = name_key
        self._places: dict[int, _Place] = {}

    @property
    def of(self) -> dict[int, str]:
        """The room by broker."""
        return {broker: place.room for broker, place in self._places.items()}

    def cluster(self, broker: int) -> str:
        """Of one that has a room."""
        return self._places[broker].cluster

    def follow(self, snapshot: Snapshot) -> Set[int]:
        """Take a new map. Gives the brokers that have another room than before, or other rooms beside it."""
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
            names = [f"{NAMESPACE}:{number}" for number in range(tried, tried + BATCH)]
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
        return _core.room_owners(names, self._name_key, nodes, *numbers)


def _numbers(snapshot: Snapshot, cluster: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Partitions of brokers and routers, and how far they grow."""
    layers = snapshot.layers("broker", cluster)
    (brokers, brokers_grow), (routers, routers_grow) = layers["broker"], layers["router"]
    return (brokers, routers), (brokers_grow, routers_grow)

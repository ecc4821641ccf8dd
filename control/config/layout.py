"""The nodes that `muster up` starts: how many of each role, in which partitions, and what each is called.

A node's number and name follow from its role and its place among those of the role, the first one's name being the
role's own. So epochs, keys and logs stay where they are when other nodes come or go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.config.options import ROLES, Role, Up

PARTITIONS_MAX: Final = 256
REPLICAS_MAX: Final = 16
NODES_MAX: Final = 512
"""In one instance: each is a process of some 60 MiB beside its rings."""
FIRST: Final[Mapping[Role, int]] = {"router": 1, "broker": 2, "gateway": 3, "proxy": 4}
PLACES_MAX: Final = 2_500
"""Of a role, all that an instance ever has from its start to its end."""
NUMBER_MAX: Final = len(FIRST) * PLACES_MAX
"""Of a node of an instance, which must have the number of its place; a node of `muster serve` gets one above."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One node, whether it runs or not. `partition` is 0 for roles that have none."""

    role: Role
    index: int
    partition: int = 0

    @property
    def node(self) -> int:
        """Its number, which no other node of the instance has."""
        return FIRST[self.role] + len(FIRST) * self.index

    @property
    def name(self) -> str:
        """What `muster status` and its files call it."""
        return f"{self.role}-{self.index}" if self.index else self.role


def seat_name(node: int) -> str:
    """What the node with this number is called."""
    index, place = divmod(node - 1, len(FIRST))
    return Seat(list(FIRST)[place], index).name


def grid(text: str) -> tuple[int, int]:
    """Partitions and replicas of `2x3`; `2` is `2x1`. Raises `ValueError`, with what is wrong."""
    parts = text.split("x")
    if not (1 <= len(parts) <= 2 and all(part.isascii() and part.isdigit() for part in parts)):
        raise ValueError(f"{text!r} is not PARTITIONSxREPLICAS, as 2x2, nor PARTITIONS, as 2")
    partitions, replicas = (*map(int, parts), 1)[:2]
    if partitions.bit_count() != 1 or partitions > PARTITIONS_MAX:
        raise ValueError(f"{partitions} partitions are not a power of two from 1 to {PARTITIONS_MAX}")
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ValueError(f"{replicas} replicas are not 1 to {REPLICAS_MAX}")
    return partitions, replicas


def seats(up: Up) -> list[Seat]:
    """All nodes, role by role. Raises `ValueError` like `grid`."""
    grids = {
        "router": grid(up.routers),
        "broker": grid(up.brokers),
        "gateway": (1, up.gateways),
        "proxy": (1, up.proxies),
    }
    return [
        Seat(role, index, index // grids[role][1]) for role in ROLES for index in range(grids[role][0] * grids[role][1])
    ]

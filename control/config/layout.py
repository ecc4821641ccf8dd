"""The nodes that `muster up` starts: their number per role, their partitions and names.

A node's number and name follow from its role and its index within the role; the first node has the role's own name. So
epochs, keys and logs keep their names when other nodes come or go, and when other roles are added.
"""

from dataclasses import dataclass
from typing import Any, Final

from muster_server.control.config.options import Config
from muster_server.plane import systems
from muster_server.plane.kind import LATER, RoleKind
from muster_server.plane.kinds import kind, kinds

PARTITIONS_MAX: Final = 256
REPLICAS_MAX: Final = 16
NODES_MAX: Final = 512
"""Limit of nodes in one instance: each is a process of about 60 MiB besides its rings."""
FIRST_NUMBERS: Final = 10_000
"""The numbers of an instance's nodes, from 1 on; `muster serve` assigns those above, up to 999,999,999."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One node, running or not. `partition` is 0 for roles without partitions."""

    role: str
    index: int
    partition: int = 0

    @property
    def node(self) -> int:
        """Its number, unique in the instance."""
        return kind(self.role).numbers[self.index]

    @property
    def name(self) -> str:
        """Its name in `muster status` and in file names."""
        return f"{self.role}-{self.index}" if self.index else self.role


def of_instance(number: int) -> bool:
    """Whether this is the number of an instance's node, which follows from its role and index."""
    return number <= FIRST_NUMBERS or number >= LATER


def seat_name(node: int) -> str:
    """The name of the node with this number; empty if no role has it."""
    names = (Seat(each.name, each.numbers.index(node)).name for each in kinds().values() if node in each.numbers)
    return next(names, "")


def instance_name(instance: str, node: int) -> str:
    """The stable name of the node of `muster up` with this number; empty if no role has it."""
    name = seat_name(node)
    return name and f"{instance}-{name}"


def grid(text: str) -> tuple[int, int]:
    """Parse partitions and replicas: `2x3`, or `2` for `2x1`. Raises `ValueError` with the mistake."""
    parts = text.split("x")
    if not (1 <= len(parts) <= 2 and all(part.isascii() and part.isdigit() for part in parts)):
        raise ValueError(
            f"invalid size {text!r} (expected PARTITIONSxREPLICAS, for example 2x2, or PARTITIONS, for example 2)"
        )
    partitions, replicas = (*map(int, parts), 1)[:2]
    if partitions.bit_count() != 1 or partitions > PARTITIONS_MAX:
        raise ValueError(
            f"invalid number of partitions {partitions} (expected a power of two from 1 to {PARTITIONS_MAX})"
        )
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ValueError(f"invalid number of replicas {replicas} (expected 1 to {REPLICAS_MAX})")
    return partitions, replicas


def wanted(config: Config, of: RoleKind[Any, Any]) -> tuple[int, int]:
    """Partitions and replicas of a role. Raises `ValueError` like `grid`."""
    if not of.plural:
        return 1, of.wanted(config.section)
    count = config.up.wanted(of.name)
    return grid(count) if isinstance(count, str) else (1, count)


def seats(config: Config) -> list[Seat]:
    """All nodes, role by role. Raises `ValueError` like `grid`."""
    found: list[Seat] = []
    for system in systems.named().values():
        if not config.runs(system.name):
            continue
        for each in system.kinds:
            partitions, replicas = wanted(config, each)
            found += [Seat(each.name, index, index // max(1, replicas)) for index in range(partitions * replicas)]
    return [seat if kind(seat.role).partitioned else Seat(seat.role, seat.index) for seat in found]


def together(config: Config, seat: Seat) -> tuple[str, ...] | None:
    """The roles that share a process with this node; None if it has a process of its own. Raises `ValueError` with the
    mistake."""
    if config.up.processes == "first" and seat.index > 0:
        return None
    return next((group for group in groups(config.up.processes) if seat.role in group), None)


def groups(text: str) -> list[tuple[str, ...]]:
    """Parse the groups of roles that share a process: `apart`, `first`, `together`, or `gateway+proxy,broker+router`.
    Raises `ValueError` with the mistake."""
    if text == "apart":
        return []
    if text in {"first", "together"}:
        return [tuple(each.name for each in systems.named()["rooms"].kinds if each.linked)]
    found = [tuple(group.split("+")) for group in text.replace(" ", "").split(",")]
    machines = {name for name, each in kinds().items() if each.linked}
    every = [role for group in found for role in group]
    for role in every:
        if role not in machines:
            raise ValueError(f"invalid role {role!r} (expected one of {', '.join(sorted(machines))})")
        if every.count(role) > 1:
            raise ValueError(f"role {role} is named twice")
    return found

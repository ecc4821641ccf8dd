"""The nodes of an instance: those of its configuration, and later changes. Knows no process and no address."""

from collections import Counter
from collections.abc import Callable

from muster_server.control.config.layout import REPLICAS_MAX, Seat, seats, wanted
from muster_server.control.config.options import Config
from muster_server.control.errors import TRY_LATER, UserError
from muster_server.plane.kind import PLACES_MAX
from muster_server.plane.kinds import kind, partitioned


class Roster:
    """The current nodes. It returns nodes to start or to stop; the caller changes `seats` when it does so."""

    def __init__(self, config: Config) -> None:
        self.seats = seats(config)
        self.leaving: set[Seat] = set()
        """The subset of `seats` that is ending."""
        self.partitions = {
            role: wanted(config, kind(role))[0]
            for role in sorted(partitioned())
            if any(seat.role == role for seat in self.seats)
        }
        self._used = Counter(seat.role for seat in self.seats)
        """Number of indexes of each role that were ever used: none is used twice."""

    def staying(self, role: str) -> list[Seat]:
        """The nodes of a role that are not ending."""
        return [seat for seat in self.seats if seat.role == role and seat not in self.leaving]

    def another(self, role: str, partition: int) -> Seat:
        """Return a seat for one more node. Raises `UserError`."""
        # a growth in progress has partitions that do not count yet
        begun = [seat.partition + 1 for seat in self.staying(role)]
        partitions = max([self.partitions.get(role, 1), *begun])
        if partition >= partitions:
            raise UserError(f"{role} has no partition {partition}; its last one is {partitions - 1}")
        if role in partitioned() and self._replicas(role)[partition] >= REPLICAS_MAX:
            raise UserError(
                f"partition {partition} of {role} has {REPLICAS_MAX} replicas already (limit {REPLICAS_MAX})"
            )
        return self._fresh(role, partition)

    def lacking(self, role: str, partitions: int) -> list[Seat]:
        """The replicas that new partitions below this number lack, compared with those that they split. Raises
        `UserError`."""
        before = self.partitions[role]
        if partitions not in {before, 2 * before}:
            raise UserError(f"{role} has {before} partitions, which can only be doubled, not grown to {partitions}")
        replicas = self._replicas(role)
        return [
            self._fresh(role, partition)
            for partition in range(before, partitions)
            for _ in range(replicas[partition], replicas[partition - before])
        ]

    def beyond(self, role: str, partitions: int) -> list[Seat]:
        """The nodes of partitions from this number on, which no longer exist. Raises `UserError`."""
        if partitions < self.partitions[role]:
            raise UserError(f"{role} has {self.partitions[role]} partitions; their number cannot be reduced")
        return [seat for seat in self.staying(role) if seat.partition >= partitions]

    def dispensable(self, node: int, runs: Callable[[Seat], bool]) -> Seat:
        """Return the seat of a node that is not the last running one of its kind. Raises `UserError`."""
        seat = next((seat for seat in self.seats if seat.node == node), None)
        if seat is None:
            raise UserError(f"the instance has no node {node}; muster cluster show --json has their numbers")
        others = [other for other in self.staying(seat.role) if other.partition == seat.partition and other != seat]
        if seat not in self.leaving and not any(map(runs, others)):
            of = f"partition {seat.partition} of {seat.role}" if seat.role in partitioned() else f"every {seat.role}"
            raise UserError(f"{seat.name} is the last running node of {of}; add another one first", TRY_LATER)
        return seat

    def _replicas(self, role: str) -> Counter[int]:
        return Counter(seat.partition for seat in self.staying(role))

    def _fresh(self, role: str, partition: int) -> Seat:
        if self._used[role] >= PLACES_MAX:
            most = f"{PLACES_MAX} nodes with the role {role} since its start (limit {PLACES_MAX})"
            raise UserError(f"the instance has had {most}; restart it")
        self._used[role] += 1
        return Seat(role, self._used[role] - 1, partition)

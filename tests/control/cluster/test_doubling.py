"""The doubling matrix of the control plane: each fault on the coordinator, the registry and the database, at each step.

The steps are those of `muster-sim --matrix`, which strikes the data plane. One process holds each step open until the
fault is there, so it falls into no other step.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from muster_server.control.cluster.growth import Coordinator, Report
from muster_server.control.errors import UserError
from muster_server.plane.database.errors import Unavailable as DatabaseAway
from muster_server.systems.rooms.database.keeper import Keeper, Late
from muster_server.systems.rooms.database.records import Change, Membership, Partition
from tests.control.fleet import EVERY, LOG, Fallible, Fleet, Make, steps
from tests.control.players import Player
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S, until

SEEDS: Final = int(os.environ.get("MUSTERTEST_SEEDS", "1"))
FAULTS: Final = ("kill", "pause", "partition")
STEPS: Final = {
    "prepare": ("prepare", "deaf"),
    "running": ("prepare", "unsettled"),
    "switch": ("switched", "deaf"),
    "acks": ("switched", "unsettled"),
    "grace": ("switched", ""),
    "final": ("final", "deaf"),
    "clean": ("final", "unsettled"),
}
"""The registry's value in each step, and the process that keeps it from ending."""
GRACE_S: Final = 0.3
THE_REGISTRY: Final = ("the registry",)

every_cell = pytest.mark.parametrize(
    ("step", "fault", "seed"), [(step, fault, seed) for step in STEPS for fault in FAULTS for seed in range(SEEDS)]
)


def reached(report: Report) -> str:
    """The step of a growth, by the nodes that a coordinator waits for."""
    waits = report.waits
    if any(wait.endswith("of grace") for wait in waits):
        return "grace"
    deaf = any(wait.endswith(("to learn of it", "to run")) or wait.startswith("a replica of") for wait in waits)
    names = {
        "prepare": ("prepare", "running"),
        "switched": ("switch", "acks"),
        "final": ("final", "clean"),
    }[report.step]
    if not waits or waits == THE_REGISTRY:
        return ""
    return names[not deaf]


class Holder:
    """Keeps a step from ending, like a process that does not hear of it or has not done its part."""

    def __init__(self, fleet: Fleet, number: int, step: str) -> None:
        self._player, self._fleet = fleet.players[number], fleet
        self._look = self._player.enrolment._look
        self._record, self._how = STEPS[step]
        if self._how == "deaf":
            self._player.enrolment._look = self._deaf  # type: ignore[method-assign]
        elif self._how == "unsettled":
            fleet.hold(number, self._record)
        self._number = number

    def _deaf(self) -> None:
        if self._fleet.step() != self._record:
            self._look()

    def lets_go(self) -> None:
        """Let the step end."""
        self._player.enrolment._look = self._look  # type: ignore[method-assign]
        self._fleet.hold(self._number)
        self._look()


class Gated(Fallible):
    """Stops on demand: pending answers come later."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.goes = asyncio.Event()
        self.goes.set()

    async def _turn(self) -> None:
        await self.goes.wait()
        await super()._turn()


@dataclass
class Cell:
    """One doubling, held open in its step."""

    fleet: Fleet
    make: Make
    step: str
    seed: int
    reports: list[Report] = field(default_factory=list)
    dice: random.Random = field(default_factory=random.Random)

    async def begin(self, coordinator: Coordinator) -> tuple[asyncio.Task[int], Holder]:
        """Begin, and reach the step."""
        self.dice.seed(f"{self.step} {self.seed}")
        old = sorted(self.fleet.players)
        holder = Holder(self.fleet, 3 if not self.seed else self.dice.choice(old), self.step)
        coordinator.tell = self.reports.append
        growing = asyncio.create_task(coordinator.grow(2))
        await until(lambda: self.reports and reached(self.reports[-1]) == self.step, PATIENT_S)
        await asyncio.sleep(self.dice.random() * 0.03 if self.seed else 0)
        assert reached(self.reports[-1]) == self.step, "the fault falls into this step"
        assert not growing.done()
        return growing, holder

    async def ends_well(self) -> None:
        """Everybody has the doubled map, and nobody ever went back to an earlier one."""
        fleet = self.fleet
        await until(lambda: fleet.agrees(2) and {1, 2, 3, 4, 101} <= set(fleet.players), PATIENT_S)
        record = fleet.record()
        assert (record.partitions, record.growth) == (2, None)
        for player in fleet.players.values():
            seen = steps(player, fleet.role == "router")
            assert [EVERY.index(each) for each in seen] == sorted(EVERY.index(each) for each in seen), seen
        await until(lambda: all(len(player.states()) == 5 for player in fleet.players.values()), PATIENT_S)


def gated(coordinator: Coordinator) -> Gated:
    tree = coordinator._tree
    assert isinstance(tree, Gated)
    return tree


@pytest.fixture
def tree_class() -> type[Fallible]:
    return Gated


# --- the coordinator --------------------------------------------------------------------------------------------------


@every_cell
async def test_a_coordinator_that_is_struck_in_a_step_is_replaced_or_goes_on(
    fleet: Fleet, make: Make, step: str, fault: str, seed: int
) -> None:
    fleet.role = "broker" if seed % 2 == 0 else "router"
    cell = Cell(fleet, make, step, seed)
    first = make(grace_s=GRACE_S)
    growing, holder = await cell.begin(first)
    tree = gated(first)
    if fault == "kill":
        growing.cancel()
        await asyncio.gather(growing, return_exceptions=True)
        assert fleet.step() == STEPS[step][0]
        holder.lets_go()
        assert await make().grow(None, resume=True) == 2
    elif fault == "pause":
        tree.goes.clear()
        holder.lets_go()
        assert await make().grow(None, resume=True) == 2
        tree.goes.set()
        [ended] = await asyncio.gather(growing, return_exceptions=True)
        assert ended == 2 or (isinstance(ended, UserError) and "goes on with it" in str(ended)), ended
    else:
        tree.signals.become("suspended")
        holder.lets_go()
        await until(lambda: cell.reports[-1].waits == THE_REGISTRY, PATIENT_S)
        assert fleet.step() == STEPS[step][0], "nobody else goes on with it"
        tree.signals.become("connected")
        assert await asyncio.wait_for(growing, PATIENT_S) == 2
    await cell.ends_well()


# --- the registry -----------------------------------------------------------------------------------------------------


@every_cell
async def test_a_registry_that_is_struck_in_a_step_delays_it(
    fleet: Fleet, make: Make, step: str, fault: str, seed: int
) -> None:
    fleet.role = "broker" if seed % 2 == 0 else "router"
    cell = Cell(fleet, make, step, seed)
    growing, holder = await cell.begin(make(grace_s=GRACE_S))
    memory = fleet.memory
    if fault == "partition":
        away = [tree for number, tree in fleet.trees.items() if number != 3 and cell.dice.random() < 0.7]
        away = away or [fleet.trees[2]]
        for tree in away:
            tree.signals.become("suspended")
        holder.lets_go()
        await asyncio.sleep(cell.dice.random() * 0.1)
        for tree in away:
            tree.expire()
    else:
        memory.stop()
        holder.lets_go()
        await until(lambda: cell.reports[-1].waits == THE_REGISTRY, PATIENT_S)
        assert fleet.step() == STEPS[step][0]
        if fault == "kill":  # it returns with its data on disk, and without its sessions
            for tree in memory.trees:
                tree.expire()
        memory.start()
    assert await asyncio.wait_for(growing, PATIENT_S) == 2
    await cell.ends_well()


# --- the database -----------------------------------------------------------------------------------------------------


class Database:
    """The database of routers, and the calls to it."""

    where = "a database"
    malformed = 0

    def __init__(self) -> None:
        self.fault = ""
        self.met = 0
        self.asked: list[str] = []

    async def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.fault:
            self.met += 1
            await self._fail()

    async def _fail(self) -> None:
        if self.fault == "pause":
            await asyncio.Event().wait()
        elif self.fault == "partition":  # the answer is lost, and that takes a while
            await asyncio.sleep(0.05)
        raise DatabaseAway(f"the database is away: {self.fault}")

    def loads(self) -> int:
        """The number of full loads."""
        return self.asked.count("load")

    async def open(self) -> None:
        await self._ask("open")

    async def write(self, changes: Sequence[Change]) -> None:
        await self._ask("write")

    async def prune(self) -> None:
        await self._ask("prune")

    async def load(self, partition: Partition) -> AsyncIterator[list[Membership]]:
        await self._ask("load")
        yield [Membership(3, 7, room, 1, 1, True) for room in (1, 2, 3)]

    async def close(self) -> None:
        """There is nothing to close."""


class Memberships:
    """The keeper's calls of an engine whose rooms change all the time."""

    def __init__(self) -> None:
        self.hints, self._version = 0, 0

    def keep_changes(self, max: int) -> None:
        """All calls."""

    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int, int, bool]]]:
        self._version += 1
        return [], [(3, 7, 1, 1, self._version, True)]

    def changes_kept(self) -> tuple[int, int]:
        return 0, 0

    def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
        self.hints += len(rooms)
        return self.hints


@dataclass
class FleetWithDatabase(Fleet):
    """Routers with a database."""

    database: Database = field(default_factory=Database)

    async def begin(self, number: int, role: str, partition: int = 0) -> Player:
        player = await super().begin(number, role, partition)
        if role == "router":
            store: Any = self.database
            keeper = Keeper(Memberships(), Late(store.where, lambda: store), Partition, LOG)
            await self._ends[number].enter_async_context(keeper)
        return player


@pytest.fixture
def fleet_class(request: pytest.FixtureRequest) -> type[Fleet]:
    return FleetWithDatabase if "database" in request.function.__name__ else Fleet


@every_cell
async def test_no_step_asks_a_database_that_is_struck_in_it(
    fleet: FleetWithDatabase, make: Make, step: str, fault: str, seed: int
) -> None:
    """New routers load from it once, at their start; the others only write, and nothing waits for that."""
    fleet.role = "router"
    database = fleet.database
    cell = Cell(fleet, make, step, seed)
    growing, holder = await cell.begin(make(grace_s=GRACE_S))
    database.fault = fault
    await until(lambda: database.met, PATIENT_S)
    holder.lets_go()
    assert await asyncio.wait_for(growing, PATIENT_S) == 2, "though the database never comes back"
    await cell.ends_well()
    await until(lambda: database.loads() == 2, PATIENT_S)
    assert set(database.asked) <= {"open", "load", "write"}
    assert database.loads() == 2, "the router that was there, and the new one"


async def test_the_doubling_of_brokers_asks_no_database_for_anything(fleet: FleetWithDatabase, make: Make) -> None:
    fleet.role = "broker"
    await until(lambda: fleet.database.loads() == 1)
    fleet.database.fault = "kill"
    assert await make().grow(2) == 2
    assert fleet.database.loads() == 1, "that of the router that was there"

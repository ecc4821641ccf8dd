"""The nodes of a small cluster in the registry, without engines: the counterparts of a growth's coordinators."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from muster_server.control.cluster.growth import Coordinator
from muster_server.control.errors import UserError
from muster_server.control.node.enrolment import Enrolment
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import COUNT, ROOT, Count, layer, read_count
from muster_server.control.registry.tree import Check, Operation, Result, Unavailable
from muster_server.plane.spec import SpecError
from tests.control.players import Player, spec
from tests.fakes.memory import Memory, MemoryTree

LOG = structlog.get_logger()
RECORD = "/pubsub/broker/main/partition_num"


def directory(tree: MemoryTree) -> Directory:
    return Directory(tree, LOG, spread_s=0.005, poll_s=60.0, hold_s=0.3)


@dataclass
class Fleet:
    """All registered nodes, and the starter and ender of nodes: a `Hosts`."""

    memory: Memory
    role: str = "broker"
    count: int = 1
    starts: bool = True
    """Start the nodes that are asked for."""
    players: dict[int, Player] = field(default_factory=dict)
    trees: dict[int, MemoryTree] = field(default_factory=dict)
    _ends: dict[int, contextlib.AsyncExitStack] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def begin(self, number: int, role: str, partition: int = 0) -> Player:
        """One more process."""
        async with contextlib.AsyncExitStack() as stack:
            tree = self.memory.tree()
            opened = await stack.enter_async_context(directory(tree))
            made = Enrolment(spec(number, role, partition, (1, 1), grown=True), opened, LOG)
            player = Player(made, await made.begin())
            player.attach()
            made.serve()
            self.players[number], self.trees[number], self._ends[number] = player, tree, stack.pop_all()
        return player

    async def end(self, number: int) -> None:
        """It ends, in order."""
        player = self.players[number]
        await player.enrolment.leave()
        player.enrolment.detach()
        await self._ends.pop(number).aclose()
        del self.players[number]

    async def close(self) -> None:
        """All end."""
        await asyncio.gather(*self._tasks)
        for number in list(self.players):
            self.players.pop(number).enrolment.detach()
            await self._ends.pop(number).aclose()

    async def provide(self, partitions: int) -> Mapping[int, str]:
        if partitions not in {self.count, 2 * self.count}:
            raise UserError(f"{self.role} has {self.count} partitions, which can not become {partitions}")
        new = {100 + partition: partition for partition in range(self.count, partitions)}
        if not self.starts:
            return {}
        for number, partition in new.items():
            self._soon(number, partition)
        return {number: f"{self.role}-{partition}" for number, partition in new.items()}

    async def withdraw(self, partitions: int) -> None:
        for number in [number for number in self.players if number >= 100 + partitions]:
            self._task(self.end(number))

    async def counted(self, partitions: int) -> None:
        self.count = max(partitions, self.count)

    def _soon(self, number: int, partition: int) -> None:
        if number not in self.players:
            self._task(self._begun(number, partition))

    async def _begun(self, number: int, partition: int) -> None:
        with contextlib.suppress(SpecError):  # its partition was given up meanwhile
            await self.begin(number, self.role, partition)

    def _task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hold(self, number: int, *steps: str) -> None:
        """It does not settle at these steps; without any it does."""
        self.players[number].settled = lambda: self.step() not in steps

    # --- what it looks like ---------------------------------------------------------------------------------------------

    def record(self) -> Count:
        """The registry's count; one partition if it has none."""
        entry = self.memory.store.get(f"{ROOT}/{layer(self.role)}/{COUNT}")
        return Count(1) if entry is None else read_count(entry.data)

    def step(self) -> str:
        """The growth under way."""
        growth = self.record().growth
        return growth.step if growth else "none"

    def agrees(self, partitions: int) -> bool:
        """Whether every engine has the map of this many partitions, without a growth."""
        return all(player.maps[-1].layers[self.role] == (partitions, 0) for player in self.players.values())


class Fallible(MemoryTree):
    """Loses answers; does something before a write that rests on other nodes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.lost_answers = 0
        self.before: Callable[[], None] = lambda: None

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if any(isinstance(each, Check) for each in operations):
            self.before()
        done = await super().transaction(operations)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the answer was lost")
        return done


def steps(player: Player, router: bool = False) -> list[tuple[int, int]]:
    """Numbers of partitions and growths given to an engine, one after the other."""
    seen: list[tuple[int, int]] = []
    for placement in player.maps:
        layer = placement.layers["router" if router else "broker"]
        if not seen or seen[-1] != layer:
            seen.append(layer)
    return seen


EVERY = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (4, 0)]

Make = Callable[..., Coordinator]

"""Doubles the partitions of a layer while messages flow: prepare, switch, final, clean.

One record in the registry holds the step: the layer's `Count`. Each step is one write, conditional on the version of
the record and of the nodes that it depends on. So any coordinator may continue the work of another, and a stale one can
do no harm. No node is skipped: a registered node that does not acknowledge the step, or has not finished its part,
delays it and is named. Knows no engine, and not how nodes are started.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from muster_server.control.errors import FAILURE, TRY_LATER, UserError
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import (
    COUNT,
    MAIN,
    ROOT,
    STEPS_MAX,
    Count,
    Growth,
    Node,
    Step,
    Wrong,
    concerns,
    encode,
    layer,
    read_count,
)
from muster_server.control.registry.tree import TRANSACTION_MAX, BadVersion, NoNode, Refused, Set, Tree, Unavailable

GRACE_S: Final = 5.0
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.1
AGAIN_S: Final = 0.5
FENCED: Final = "another muster cluster grow has taken over: see muster cluster show"


@dataclass(frozen=True, slots=True)
class Report:
    """The step of a doubling, and the nodes that it waits for."""

    layer: str
    partitions: int
    to: int
    step: Step
    waits: tuple[str, ...] = ()


class Hosts(Protocol):
    """Starts and stops nodes. Each call may be repeated."""

    async def provide(self, partitions: int) -> Mapping[int, str]:
        """Start the missing replicas of partitions below this number: as many as the partition has that they split.

        Returns the names of the new nodes by number; empty if operators start nodes.
        """

    async def withdraw(self, partitions: int) -> None:
        """Stop the replicas of partitions from this number on."""

    async def counted(self, partitions: int) -> None:
        """Record the new number of partitions."""


class Coordinator:
    """One attempt. Used in one loop, with a directory that reads the tree and registers no node."""

    def __init__(
        self,
        tree: Tree,
        directory: Directory,
        role: str,
        hosts: Hosts,
        *,
        grace_s: float = GRACE_S,
        patience_s: float = PATIENCE_S,
        root: str = ROOT,
        cluster: str = MAIN,
        look_s: float = LOOK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name: Final = secrets.token_hex(8)
        self._tree, self._directory, self._role, self._hosts = tree, directory, role, hosts
        self._grace_s, self._patience_s, self._look_s = grace_s, patience_s, look_s
        self.tell: Callable[[Report], None] = lambda report: None
        """Called with the progress at each check."""
        self._wall, self._cluster = wall, cluster
        self._layer = layer(role, cluster)
        self._path = f"{root}/{self._layer}/{COUNT}"
        self._new: Mapping[int, str] = {}
        self._found = False

    async def grow(self, to: int | None, *, resume: bool = False) -> int:
        """Double until there are `to` partitions, or the goal of a resumed growth. Raises `UserError`."""
        doubling = 0
        while True:
            count, version = await self._record()
            growth = count.growth
            if growth is None and doubling > count.partitions:
                raise UserError(f"{self._layer}: the growth to {doubling} partitions was undone meanwhile", TRY_LATER)
            if growth is None:
                await self._hosts.counted(count.partitions)
                if to is None or count.partitions == to:
                    return count.partitions
                if count.partitions > to:
                    raise UserError(f"{self._layer} has {count.partitions} partitions; their number cannot be reduced")
                if await self._write(count, version, self._begun(count, to)):
                    doubling = 2 * count.partitions
            elif growth.coordinator == self.name:
                to, doubling = growth.goal, await self._advance(count, growth, version)
            elif doubling:
                raise UserError(f"{self._layer}: {FENCED}", TRY_LATER)
            elif not resume:
                raise UserError(f"{self._layer}: {_under_way(growth)}: --resume continues it{_undo(growth)}", TRY_LATER)
            else:
                goal = max(growth.goal, to or 0)
                taken = msgspec.structs.replace(growth, coordinator=self.name, goal=goal)
                if await self._write(count, version, msgspec.structs.replace(count, growth=taken)):
                    doubling = growth.to

    async def abort(self) -> int:
        """Undo a growth that is only prepared. Returns the number of partitions. Raises `UserError`."""
        while True:
            count, version = await self._record()
            if count.growth is not None and count.growth.step != "prepare":
                raise UserError(f"{self._layer}: {_under_way(count.growth)}: too late to undo it; --resume finishes it")
            if count.growth is None or await self._write(count, version, Count(count.partitions)):
                now, _ = await self._record()
                if now.growth is not None:
                    raise UserError(f"{self._layer}: {_under_way(now.growth)}, begun since", TRY_LATER)
                await self._hosts.withdraw(now.partitions)
                return now.partitions

    # --- one step ---------------------------------------------------------------------------------------------------

    def _begun(self, count: Count, goal: int) -> Count:
        growth = Growth(2 * count.partitions, "prepare", goal, self.name, round(self._wall(), 3))
        return msgspec.structs.replace(count, growth=growth)

    async def _advance(self, count: Count, growth: Growth, version: int) -> int:
        """Take the next step when all nodes are ready for it; return early if the record has changed meanwhile.

        The next doubling begins in the write that ends this one, so that its goal is never lost. Returns the number of
        partitions at which the current growth aims.
        """
        self._directory.takes_steps_of = self._layer
        self._new = await self._provided(growth.to)
        if not await self._wait(count, growth):
            await self._give_back(count)
            return growth.to
        if growth.step == "switched":
            self.tell(Report(self._layer, count.partitions, growth.to, growth.step, (f"{self._grace_s:g} s of grace",)))
            await asyncio.sleep(self._grace_s)
            if not await self._wait(count, growth):
                return growth.to
        after = {
            "prepare": Count(count.partitions, growth=msgspec.structs.replace(growth, step="switched")),
            "switched": Count(growth.to, growth=msgspec.structs.replace(growth, step="final")),
            "final": Count(growth.to) if growth.goal == growth.to else self._begun(Count(growth.to), growth.goal),
        }
        taken = after[growth.step]
        return taken.wide if await self._write(count, version, taken, checked=True) else growth.to

    async def _provided(self, partitions: int) -> Mapping[int, str]:
        """Find the new nodes. The hosts may have missed the state before this growth, which another coordinator wrote."""
        await self._hosts.counted(partitions // 2)
        return await self._hosts.provide(partitions)

    async def _give_back(self, before: Count) -> None:
        """Stop the new nodes if another command undid the growth: this coordinator may have started them after the undo."""
        count, _ = await self._record()
        with contextlib.suppress(Wrong):  # beyond that step its partitions may own rooms
            read_count(encode(count), before)
            if count.wide < before.wide:
                await self._hosts.withdraw(count.wide)

    async def _wait(self, count: Count, growth: Growth) -> bool:
        """Wait until all nodes acknowledge this record; False if it has changed meanwhile. Raises `UserError` after the
        limit."""
        waits: list[str] = []
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    known = self._directory.snapshot.counts.get(self._layer)
                    if known != count and (await self._record())[0] != count:
                        return False  # another coordinator was first, or the registry lost the record
                    waits = self._waits(count, growth)
                    self.tell(Report(self._layer, count.partitions, growth.to, growth.step, tuple(waits)))
                    if not waits:
                        await self._directory.again()
                        if not self._waits(count, growth):
                            return True
                    await asyncio.sleep(self._look_s)
        except TimeoutError:
            late = f"still waiting after {self._patience_s:g} s for {', '.join(waits) or 'the registry'}"
            way = f"--resume continues it{_undo(growth)}"
            raise UserError(f"{self._layer}: {_under_way(growth)} {late}: {way}", TRY_LATER) from None

    def _waits(self, count: Count, growth: Growth) -> list[str]:
        """The nodes that are not ready, one line each."""
        directory = self._directory
        believed = (
            directory.snapshot.counts.get(self._layer) == count and f"{self._layer}/{COUNT}" not in directory.refused
        )
        if directory.session != "connected" or not believed:
            return ["the registry"]
        lacking: list[str] = []
        # Not nodes that the map only keeps for a while: a step gives rooms to running nodes.
        running = {node.node: node.partition for node in directory.present() if self._runs(node)}
        empty = set(range(growth.to // 2, growth.to)) - set(running.values())
        lacking += [f"a replica of partition {partition}" for partition in sorted(empty)]
        lacking += [f"{name} to run" for number, name in self._new.items() if number not in running]
        acks = directory.acks
        for node in directory.snapshot.nodes:
            if not concerns(self._layer, node.role, node.cluster):
                continue
            said = [ack for ack in acks.get(node.node, ()) if (ack.layer, ack.serial) == (self._layer, count.serial)]
            name = self._new.get(node.node, node.name or f"{node.role} {node.node}")
            if not said:
                lacking.append(f"{name} to learn of it")
            elif not said[0].settled:
                lacking.append(f"{name} to settle")
        return lacking

    def _runs(self, node: Node) -> bool:
        return (node.role, node.cluster, node.state) == (self._role, self._cluster, "running")

    # --- the record -------------------------------------------------------------------------------------------------

    async def _record(self) -> tuple[Count, int]:
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    with contextlib.suppress(Unavailable):
                        if (entry := await self._tree.get(self._path)) is not None:
                            self._found = True
                            return read_count(entry.data), entry.version
                        if not self._found:
                            raise UserError(
                                f"no {self._role} has ever registered there: {self._path} is missing in the registry",
                                FAILURE,
                            )
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise UserError(
                f"{self._path}: the registry does not answer; --resume continues the growth", TRY_LATER
            ) from None
        except Wrong as wrong:
            raise UserError(f"{self._path}: {wrong}", FAILURE) from None
        except Refused as refused:
            raise UserError(f"{self._path}: the registry refuses to read it: {refused}") from None

    async def _write(self, before: Count, version: int, after: Count, *, checked: bool = False) -> bool:
        """Write the record; returns False if another coordinator was first, or the result is unknown: read again then."""
        acked = [ack.serial for acks in self._directory.acks.values() for ack in acks if ack.layer == self._layer]
        believed = [serial for serial in acked if serial < before.serial + STEPS_MAX]
        numbered = msgspec.structs.replace(after, serial=1 + max([before.serial, *believed]))
        try:
            read_count(encode(numbered), before)
        except Wrong as wrong:
            raise UserError(f"{self._path}: the next step is not valid: {wrong}") from None
        first = before.partitions if before.growth is None else before.growth.to // 2
        rests_on = self._directory.checks(self._layer, first)[: TRANSACTION_MAX - 1] if checked else []
        try:
            await self._tree.transaction([Set(self._path, encode(numbered), version), *rests_on])
        except (BadVersion, NoNode):
            return False
        except Unavailable:
            await asyncio.sleep(AGAIN_S)
            return False
        except Refused as refused:
            raise UserError(f"{self._path}: the registry refuses the next step: {refused}") from None
        return True


def _under_way(growth: Growth) -> str:
    """Describe a growth in progress."""
    return f"a growth to {growth.to} partitions is in progress ({growth.step})"


def _undo(growth: Growth) -> str:
    return "; --abort undoes it" if growth.step == "prepare" else ""

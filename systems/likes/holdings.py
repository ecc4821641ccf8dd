"""The partitions that a node serves: opens its own, hands others over, and sends clients after them.

Owns the states of a partition, from its opening until its last client has disconnected. `node.py` decides which
partitions belong to the node; the board has the knowledge of the others.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from muster_server._engines import LikesEngine
from muster_server.control.registry.tree import TreeError
from muster_server.plane.ownership.errors import Fenced
from muster_server.systems.likes.board import Board, PartitionOwner
from muster_server.systems.likes.listener import Listener
from muster_server.systems.likes.means import Means, Mine
from muster_server.systems.likes.partition import Partition
from muster_server.systems.likes.served import Served
from muster_server.systems.likes.slots import Node, partition_of, slots_of

OPENINGS: Final = 4
"""Limit of partitions that are opened at once."""
AGAIN_S: Final = 0.5
HOLD_S: Final = 5.0
"""Longest time, in seconds, that clients of a moving partition wait for its next owner."""
LINGER_S: Final = 60.0
"""Seconds that the port of a moved partition stays open: its clients are told the new address."""
FIXED: Final = 100
"""With a fixed port, partition N has the port that is higher by this number plus N, if that is free."""


@dataclass(slots=True)
class ServedPartition:
    """A partition that is served here."""

    served: Served
    epoch: int
    host: str
    port: int
    gone: bool = False
    """Its clients are sent to the next owner."""


class Holdings:
    """Call `close` at the end. `host`: address of this node for clients; `fixed`: its port if one is configured."""

    def __init__(
        self, means: Means, number: int, bind: tuple[str, int], host: str, fixed: int, stir: Callable[[], None]
    ) -> None:
        self.held: dict[int, ServedPartition] = {}
        self.moved = self.taken = self.lost = 0
        """Numbers of partitions handed over, opened, and lost to others."""
        self.trouble: dict[int, str] = {}
        """Why a partition could not be opened, by its number."""
        self._means, self._number, self._bind, self._host, self._fixed = means, number, bind, host, fixed
        self._log: structlog.typing.FilteringBoundLogger = means.log
        self._stir = stir
        self._partitions = means.settings.partitions
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._going: dict[int, asyncio.Task[None]] = {}
        self._parting: list[ServedPartition] = []
        """Partitions that are not served any more, until their clients have disconnected."""
        self._ending = set[asyncio.Task[None]]()
        self._room = asyncio.Semaphore(OPENINGS)
        self._told: tuple[list[Node], int] = ([], 0)
        engine = LikesEngine(folder=None, passwords=means.passwords)
        self.door = Listener(engine, means.settings.options.connections_max, keeps=False)
        """The port that clients use first: it has no slots, and tells which node has which."""

    async def open_door(self) -> tuple[str, int]:
        """Listen for clients. Raises `OSError` if the address is in use."""
        self.tell([], {}, 0)
        self._bind = self.door.start(self._bind, self._means.tls)
        self.tell([], {}, 0)
        return self._bind

    @property
    def busy(self) -> bool:
        """Whether a partition is being opened or handed over, or clients wait for its next owner."""
        return bool(self._opening or self._going) or any(not held.gone for held in self._parting)

    @property
    def shut(self) -> int:
        """The number of this node's partitions that are not open."""
        return len({*self.trouble, *self._opening})

    @property
    def moving(self) -> bool:
        """Whether a partition is being handed over."""
        return bool(self._going)

    def has(self, partition: int) -> bool:
        """Whether the partition is open, being opened or being handed over."""
        return partition in self.held or partition in self._opening or partition in self._going

    # --- opening ------------------------------------------------------------------------------------------------

    def open(self, board: Board, partition: int, epoch: int) -> None:
        """Start to open a partition that this node owns since this epoch."""
        self._opening[partition] = self._task(self._open(board, partition, epoch))
        self._opening[partition].add_done_callback(lambda _: self._opened(partition))

    def _opened(self, partition: int) -> None:
        self._opening.pop(partition, None)
        self._stir()

    async def _open(self, board: Board, partition: int, epoch: int) -> None:
        try:
            async with self._room:
                opened = await self._means.opened(partition, epoch)
        except OSError as error:
            if self.trouble.get(partition) != str(error):
                self._log.warning("cannot open a partition", partition=partition, reason=str(error))
            self.trouble[partition] = str(error)
            await asyncio.sleep(AGAIN_S)
            await self._renew(board, partition, epoch)
            return
        self.trouble.pop(partition, None)
        served = Served(self._means, opened, self._keys(partition), board.lease)
        self._tell(served, partition, ("", 0))
        try:
            _, port = self._listen(served, partition)
        except BaseException:
            await self._shut(served, opened)
            raise
        self.held[partition] = ServedPartition(served, epoch, self._host, port)
        self.taken += 1
        offset = served.engine.offset()
        self._log.info("serves a partition", partition=partition, port=port, epoch=epoch, offset=offset)

    def _keys(self, partition: int) -> Mine:
        return lambda key: partition_of(key, self._partitions) == partition

    def _listen(self, served: Served, partition: int) -> tuple[str, int]:
        if self._fixed:
            try:
                return served.start((self._bind[0], self._fixed + FIXED + partition), self._means.tls)
            except OSError as error:
                self._log.info("a partition's port is in use", partition=partition, reason=str(error))
        return served.start((self._bind[0], 0), self._means.tls)

    @staticmethod
    async def _shut(served: Served, opened: Partition) -> None:
        served.close()
        await opened.behind.close()
        if opened.logged is not None:
            await opened.logged.close()
        opened.close()

    @staticmethod
    async def _renew(board: Board, partition: int, epoch: int) -> None:
        """Take a new epoch, because a log accepts each epoch once."""

        def edit(parts: list[PartitionOwner]) -> bool:
            mine = parts[partition].owner == board.name and parts[partition].epoch == epoch
            if mine:
                parts[partition] = parts[partition].given_to(board.name)
            return mine

        try:
            await board.change(edit)
        except (TreeError, Fenced):
            return

    # --- handing over -------------------------------------------------------------------------------------------

    def hand_over(self, board: Board, partition: int, target: str) -> None:
        """Start to hand a partition over to another node."""
        held = self._parts_from(partition)
        self._go(partition, self._hand_over(board, partition, held, target))

    def drop(self, partition: int) -> None:
        """Drop a partition that another node owns."""
        self.lost += 1
        held = self._parts_from(partition)
        self._go(partition, self._drop(partition, held))

    def _parts_from(self, partition: int) -> ServedPartition:
        held = self.held.pop(partition)
        self._parting.append(held)
        return held

    def _go(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        self._going[partition] = self._task(work)
        self._going[partition].add_done_callback(lambda _: self._gone(partition))

    def _gone(self, partition: int) -> None:
        self._going.pop(partition, None)
        self._stir()

    async def _hand_over(self, board: Board, partition: int, held: ServedPartition, target: str) -> None:
        whole = await held.served.give_up(lost=False)
        self._means.tell_no_more(self._keys(partition))

        def edit(parts: list[PartitionOwner]) -> bool:
            mine = parts[partition].owner == board.name and parts[partition].epoch == held.epoch
            if mine:
                parts[partition] = parts[partition].given_to(target)
            return mine

        while True:
            try:
                self.moved += await board.change(edit)
                break
            except TreeError:
                await asyncio.sleep(AGAIN_S)
            except Fenced:
                break
        self._log.info("handed a partition over", partition=partition, to=target)
        self._send_away(partition, held, whole)

    async def _drop(self, partition: int, held: ServedPartition) -> None:
        self._log.warning("another node owns a partition that was served here", partition=partition)
        whole = await held.served.give_up(lost=True)
        self._means.tell_no_more(self._keys(partition))
        self._send_away(partition, held, whole)

    def _send_away(self, partition: int, held: ServedPartition, whole: bool) -> None:
        if whole:
            self._task(self._follow(partition, held))
        else:
            self._parting.remove(held)
            held.served.close()

    async def _follow(self, partition: int, held: ServedPartition) -> None:
        """Let clients wait until the next owner serves, and send them there."""
        try:
            async with asyncio.timeout(HOLD_S):
                while not self._is_elsewhere(partition, held):  # noqa: ASYNC110 - the table tells no one
                    await asyncio.sleep(0.01)
            nodes, version = self._told
            held.served.tell(nodes, self._door, version)
            held.served.send_away()
            held.gone = True
            await asyncio.sleep(LINGER_S)
        except TimeoutError:
            self._log.warning("a partition that was handed over has no next owner yet", partition=partition)
        finally:
            self._parting.remove(held)
            held.served.close()

    def _is_elsewhere(self, partition: int, held: ServedPartition) -> bool:
        name = _id("partition", partition)
        return any(node[0] == name and node[1:3] != (held.host, held.port) for node in self._told[0])

    # --- slots for clients ---------------------------------------------------------------------------------------

    def tell(self, parts: Sequence[PartitionOwner], doors: Mapping[int, tuple[str, int]], version: int) -> None:
        """Tell all clients which node has which slots: the partitions open here, and for the others the table.

        A partition that was never served gets the door's address: no slot may lack an owner, because clients that find
        one never look again.
        """
        nodes: list[Node] = []
        never: list[tuple[int, int]] = []
        for partition in range(self._partitions):
            part, held = parts[partition] if parts else PartitionOwner(), self.held.get(partition)
            host, port = (part.host, part.port) if held is None else (held.host, held.port)
            slots = slots_of(partition, self._partitions)
            if port:
                nodes.append((_id("partition", partition), host, port, [slots]))
            else:
                never.append(slots)
        own = {self._number: (self._host, self._bind[1])}
        for number, (host, port) in sorted({**doors, **own}.items()):
            nodes.append((_id("door", number), host, port, never if number == self._number else []))
        if nodes == self._told[0]:
            return
        self._told = nodes, version
        for partition, held in self.held.items():
            self._tell(held.served, partition, (held.host, held.port))
        self.door.engine.set_cluster(nodes, self._door, version, door=True)
        for held in self._parting:
            if held.gone:
                held.served.tell(nodes, self._door, version)

    @property
    def _door(self) -> int:
        """The index of this node's door."""
        name = _id("door", self._number)
        return next(place for place, node in enumerate(self._told[0]) if node[0] == name)

    def _tell(self, served: Served, partition: int, where: tuple[str, int]) -> None:
        """The same for clients of one partition: its own slots are here, and nowhere else."""
        name, own = _id("partition", partition), slots_of(partition, self._partitions)
        others = [
            (id, host, port, [slots for slots in has if slots != own])
            for id, host, port, has in self._told[0]
            if id != name
        ]
        served.tell([*others, (name, *where, [own])], len(others), self._told[1])

    def let_in(self, passwords: list[tuple[str, str]]) -> None:
        """Use other users and passwords from now on."""
        engines = [held.served.engine for held in (*self.held.values(), *self._parting)]
        for engine in (self.door.engine, *engines):
            engine.set_passwords(passwords)

    # --- the end ------------------------------------------------------------------------------------------------

    async def forsake(self) -> None:
        """Give up everything: other nodes count this one as dead."""
        for task in self._opening.values():
            task.cancel()
        for partition in list(self.held):
            self.drop(partition)
        while pending := [*self._opening.values(), *self._going.values()]:
            await asyncio.wait(pending)
            await asyncio.sleep(0)  # until they are forgotten

    async def close(self, drain_s: float) -> None:
        """End everything that is served here, including its logs."""
        tasks = list(self._ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._parting:  # cut short: changes that the log lacks were not answered
            held.served.close()
        await asyncio.gather(*(held.served.end(drain_s) for held in self.held.values()))
        self.held.clear()
        self.door.close()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("an internal task of a partition failed", error=repr(error))


def _id(kind: str, number: int) -> str:
    return hashlib.sha1(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest()

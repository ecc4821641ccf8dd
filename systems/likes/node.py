"""A node of likes among several: it registers on the board, and opens, serves and hands over partitions by the plan.

Owns the order of its turns. A node with one partition is alone, and does not use this file.
"""

import asyncio
import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster_server.control.host.addresses import outward, split_address
from muster_server.control.node.enrolment import tree
from muster_server.control.registry.tree import NodeExists, Tree, TreeError
from muster_server.plane.files import write_atomically
from muster_server.plane.ownership.errors import Fenced
from muster_server.plane.service import Context, Figure, Service
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.likes import service
from muster_server.systems.likes.board import DEAD, Board, Member, Mismatch, PartitionOwner, Table
from muster_server.systems.likes.holdings import Holdings
from muster_server.systems.likes.lease import now_s
from muster_server.systems.likes.means import Means, passwords
from muster_server.systems.likes.options import KEPT, LikesSettings, kept
from muster_server.systems.likes.plan import planned
from muster_server.systems.likes.served import moves, shares

BEATS: Final = 4
"""Number of beats within one lease."""
LOOK_S: Final = 0.25
"""Seconds between two readings of the board, besides reports of changes."""
AGAIN_S: Final = 0.25
PATIENCE_S: Final = 2.0
"""Seconds after which the wait for the registry is reported."""
SETTLE_S: Final = 1.0
"""Seconds for which nodes that start together wait for each other, if no partition has an owner."""
LEAVE_S: Final = 5.0
"""Limit of handing everything over at the end, in seconds."""
WHOLE_S: Final = 10.0
"""Seconds after which a node is ready even if others do not serve their partitions."""
HEARD_S: Final = 0.5
"""Seconds after that, for clients to learn the new addresses."""


class LikesNode:
    """The `plane.service.Service` of a node among several."""

    take_trust: Final = None
    """It checks no user's token."""

    def __init__(self, spec: Spec, settings: LikesSettings, context: Context) -> None:
        """Raises `SpecError`."""
        if spec.registry is None:
            raise SpecError(f"likes: {settings.partitions} partitions need a registry; set registry.url")
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._spec, self._settings, self._log = spec, settings, context.log
        self._registration = spec.registry
        self._bind = spec.bind or ("127.0.0.1", 0)
        self._means = Means(spec, settings, context)
        self._place = "" if settings.options.log else _kept(Path(settings.folder), settings.partitions)
        """The identity of the folder of the logs; empty: Kafka."""
        self._began = now_s()
        self._stirred = asyncio.Event()
        self._holdings: Holdings | None = None
        self._board: Board | None = None
        self._lives = 0
        self._trouble = ""
        """Why the registry cannot be read; empty: it can."""
        self._known: tuple[set[str], float] = (set(), 0.0)
        """The members of the last reading, and the time since which they are the same."""

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set, then hand over. Raises `OSError` if the address is in use."""
        await self._means.prepare()
        board_tree = tree(self._registration)
        await board_tree.start()
        client = self._registration.client[0] if self._registration.client else self._bind[0]
        host = self._settings.options.advertise or outward(self._bind[0], client)
        fixed = split_address(self._settings.options.bind)[1]
        holdings = Holdings(self._means, self._spec.node, self._bind, host, fixed, self._stirred.set)
        self._holdings = holdings
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in self._means.lives()]
        try:
            self._bind = await holdings.open_door()
            stopping = asyncio.create_task(stop.wait())
            tasks.append(stopping)
            living = asyncio.create_task(self._live(board_tree, holdings, host))
            tasks.append(living)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            self.draining = True
            living.cancel()
            await asyncio.wait([living])
            with contextlib.suppress(TimeoutError, TreeError, Fenced):
                async with asyncio.timeout(LEAVE_S):
                    await self._hand_over(holdings)
        finally:
            self.draining = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await holdings.close(drain_s)
            if self._board is not None:
                with contextlib.suppress(TreeError, TimeoutError):
                    async with asyncio.timeout(drain_s):
                        await self._board.leave()
            await board_tree.close()
            self.ready = False
            self.closed = True
            await self._means.close()

    # --- lives --------------------------------------------------------------------------------------------------

    async def _live(self, board_tree: Tree, holdings: Holdings, host: str) -> None:
        """Run life after life: a life ends when others count the node as dead. Raises `Mismatch` as `SpecError`."""
        while True:
            board = await self._joined(board_tree, host)
            unwatch = board_tree.watch(board.watched, self._stirred.set)
            work = [asyncio.create_task(each) for each in (self._beat(board), self._turns(board, holdings))]
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in work:
                    if task.done():
                        task.result()
            except Fenced:
                self._log.warning("other nodes counted this one as dead; starting a new life", life=board.name)
            except Mismatch as mismatch:
                raise SpecError(str(mismatch)) from None
            finally:
                unwatch()
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
            board.lease.end()
            self._tell_ready(False)
            await holdings.forsake()

    async def _joined(self, board_tree: Tree, host: str) -> Board:
        me = Member(self._spec.node, host, self._bind[1], self._settings.options.lease_ms)
        began = now_s()
        while True:
            self._lives += 1
            name = f"{self._spec.node}.{self._spec.epoch}.{self._lives}"
            empty = Table(self._place, [PartitionOwner()] * self._settings.partitions)
            board = Board(board_tree, self._settings.instance, name, me, empty)
            try:
                await board.join()
            except NodeExists:  # an attempt whose answer was lost
                continue
            except Mismatch as mismatch:
                raise SpecError(str(mismatch)) from None
            except TreeError as error:
                if now_s() - began > PATIENCE_S:
                    self._complain(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._board = board
            return board

    async def _beat(self, board: Board) -> None:
        pause_s = self._settings.options.lease_ms / 1000 / BEATS
        while True:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(TreeError):  # the turns report it
                await board.beat()

    async def _turns(self, board: Board, holdings: Holdings) -> None:
        while True:
            try:
                await self._turn(board, holdings)
                self._complain(None)
            except TreeError as error:
                self._complain(error)
            self._tell(board, holdings)
            self._tell_ready(self._serves_all(board, holdings))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stirred.wait()
            self._stirred.clear()

    def _complain(self, error: TreeError | None) -> None:
        said = "" if error is None else f"{type(error).__name__}: {error}"
        if said and not self._trouble:
            self._log.warning("the registry does not answer; partitions stay where they are", reason=said)
        elif self._trouble and not said:
            self._log.info("the registry answers again")
        self._trouble = said

    # --- a turn -------------------------------------------------------------------------------------------------

    async def _turn(self, board: Board, holdings: Holdings) -> None:
        await board.look()
        if board.name not in board.members:
            raise Fenced(DEAD)
        self._give_up_lost(board, holdings)
        await self._publish(board, holdings)
        wanted = planned([board.owner(partition) for partition in range(len(board.table))], board.staying())
        if self._settled(board):
            await self._claim(board, holdings, wanted)
        for partition, part in enumerate(board.table):
            if part.owner == board.name and not holdings.has(partition):
                holdings.open(board, partition, part.epoch)
        if not holdings.moving:
            self._hand_one_over(board, holdings, wanted)

    @staticmethod
    def _give_up_lost(board: Board, holdings: Holdings) -> None:
        for partition in list(holdings.trouble):
            if board.table[partition].owner != board.name:
                del holdings.trouble[partition]
        for partition, held in list(holdings.held.items()):
            part = board.table[partition]
            if (part.owner, part.epoch) != (board.name, held.epoch):
                holdings.drop(partition)

    @staticmethod
    async def _publish(board: Board, holdings: Holdings) -> None:
        """Record the addresses of served partitions, and give back those whose log failed."""
        held = dict(holdings.held)

        def edit(parts: list[PartitionOwner]) -> bool:
            before = list(parts)
            for partition, here in held.items():
                if (parts[partition].owner, parts[partition].epoch) != (board.name, here.epoch):
                    continue
                serves = PartitionOwner(board.name, here.epoch, here.host, here.port)
                parts[partition] = parts[partition].given_to("") if here.served.failed else serves
            return parts != before

        if edit(list(board.table)):
            await board.change(edit)

    def _settled(self, board: Board) -> bool:
        """Whether partitions may be claimed: nodes that start together first wait for each other."""
        now = now_s()
        if self._known[0] != set(board.members):
            self._known = set(board.members), now
        owned = any(board.owner(partition) for partition in range(len(board.table)))
        return owned or now - self._known[1] >= SETTLE_S

    @staticmethod
    async def _claim(board: Board, holdings: Holdings, wanted: list[str]) -> None:
        seen = dict(enumerate(board.table))
        free = [
            partition
            for partition, name in enumerate(wanted)
            if name == board.name and not board.owner(partition) and not holdings.has(partition)
        ]

        def edit(parts: list[PartitionOwner]) -> bool:
            mine = [partition for partition in free if parts[partition] == seen[partition]]
            for partition in mine:
                parts[partition] = parts[partition].given_to(board.name)
            return bool(mine)

        if free:
            await board.change(edit)

    @staticmethod
    def _hand_one_over(board: Board, holdings: Holdings, wanted: list[str]) -> None:
        for partition in sorted(holdings.held):
            target = wanted[partition]
            if target and target != board.name:
                holdings.hand_over(board, partition, target)
                return

    async def _hand_over(self, holdings: Holdings) -> None:
        """Hand everything over to the staying nodes."""
        board = self._board
        if board is None:
            return
        await board.beat(leaving=True)
        await asyncio.sleep(LOOK_S)  # nodes that end together have announced it by then
        while holdings.held or holdings.busy:
            await self._turn(board, holdings)
            self._tell(board, holdings)
            if not board.staying():
                return
            await board.beat(leaving=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stirred.wait()
            self._stirred.clear()
        await asyncio.sleep(HEARD_S)

    def _tell(self, board: Board, holdings: Holdings) -> None:
        doors = {member.number: (member.host, member.port) for member in board.members.values()}
        holdings.tell(board.table, doors, board.version)

    def _serves_all(self, board: Board, holdings: Holdings) -> bool:
        """Whether it serves all its partitions; at first, whether all partitions are served by some node."""
        own = all(part.owner != board.name or at in holdings.held for at, part in enumerate(board.table))
        return own and (
            self.ready
            or all(part.served and board.owner(at) for at, part in enumerate(board.table))
            or now_s() - self._began > WHOLE_S
        )

    def _tell_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self.on_ready(ready)

    # --- status -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The partitions that it serves, and the lag of the databases."""
        state = "draining" if self.draining else "ready" if self.ready else "starting"
        holdings, board = self._holdings, self._board
        if holdings is None or board is None:
            return {"state": state}
        served = {partition: held.served for partition, held in sorted(holdings.held.items())}
        figures = {partition: each.engine.figures() for partition, each in served.items()}
        clients = [holdings.door.clients(), *(each.listener.clients() for each in served.values())]
        behind = [each.behind.status() for each in served.values()]
        errors = [str(each["error"]) for each in behind if each["error"]]
        added = ("items", "users", "likes", "offset", "not_written_behind", "commands")
        return {
            "state": state,
            **{name: sum(each[name] for each in figures.values()) for name in added},
            "refusal": next((each["refusal"] for each in figures.values() if each["refusal"]), None),
            "trouble": next((each["trouble"] for each in figures.values() if each["trouble"]), None),
            "not_taken": sum(each["not_taken"] for each in figures.values()),
            "connections": sum(each.connected for each in clients),
            "write_behind": {
                "url": behind[0]["url"] if behind else "",
                "connected": all(each["connected"] for each in behind),
                "error": errors[0] if errors else "",
                "items_behind": sum(each["items_behind"] for each in behind),
                "seconds_behind": max((each["seconds_behind"] for each in behind), default=0.0),
                "passes": sum(each["passes"] for each in behind),
            },
            "partitions": {
                str(partition): {"port": held.port, "epoch": held.epoch, **figures[partition]}
                for partition, held in sorted(holdings.held.items())
            },
            "of": len(board.table),
            "members": {name: member.number for name, member in board.members.items()},
            "registry": self._trouble,
            **({} if self._means.live is None else {"live_counts": self._means.live.status()}),
            "notes": self._notes(
                holdings,
                board,
                [
                    *(note for each in served.values() for note in each.notes()),
                    *(each.behind.note() for each in served.values() if each.behind.error),
                ],
            ),
        }

    def _notes(self, holdings: Holdings, board: Board, behind: list[str]) -> list[str]:
        serves = f"serves {len(holdings.held)} of {len(board.table)} partitions"
        away = f"the registry does not answer: {self._trouble}"
        wrong = [f"partition {at} is not open: {why}" for at, why in sorted(holdings.trouble.items())]
        return [serves, *([away] if self._trouble else []), *wrong, *behind]

    def counters(self) -> list[Figure]:
        """Figures of all its partitions summed up, and of each partition."""
        holdings = self._holdings
        if holdings is None:
            return []
        live = self._means.live
        return [
            *_added([held.served.counters() for held in holdings.held.values()]),
            *moves(holdings.taken, holdings.moved, holdings.lost),
            *([] if live is None else live.counters()),
        ]

    def gauges(self) -> list[Figure]:
        """The same, and the number of partitions that it serves."""
        holdings = self._holdings
        if holdings is None:
            return []
        live = self._means.live
        return [
            *_added([held.served.gauges() for held in holdings.held.values()]),
            *shares(len(holdings.held), holdings.shut),
            *([] if live is None else live.gauges()),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """The address where clients learn of all nodes."""
        return [self._bind]

    def take(self, settings: LikesSettings) -> None:
        """Read the users' file again. Raises `SpecError`."""
        self._means.passwords = passwords(settings.users_file)
        if self._holdings is not None:
            self._holdings.let_in(self._means.passwords)


def _added(figures: list[list[Figure]]) -> list[Figure]:
    """Sum up figures of one name; for ages take the greatest."""
    names: dict[str, Figure] = {}
    for name, text, value in (each for of in figures for each in of):
        before = names[name][2] if name in names else 0.0
        names[name] = name, text, max(before, value) if name.endswith("seconds_behind") else before + value
    return list(names.values())


def _named(folder: Path) -> bool:
    """Whether the file with the name is there, and whole."""
    try:
        number, _ = (folder / KEPT).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return number.isdecimal()


def _name(folder: Path, partitions: int) -> None:
    """Write the file of a folder that has none, unless the folder has another number of partitions. Of nodes that start
    together, one does so. Raises `OSError`."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _named(folder) and kept(folder) in {None, partitions}:
            write_atomically(folder / KEPT, f"{partitions} {uuid.uuid4().hex}\n".encode())
    finally:
        os.close(lock)


def _kept(folder: Path, partitions: int) -> str:
    """The identity of a folder of logs. A folder that is new or has lost its file gets one, with its number of partitions.
    Raises `SpecError`."""
    try:
        if not _named(folder):
            _name(folder, partitions)
        before = kept(folder)
        if before != partitions:
            raise SpecError(
                f"likes.partitions: {folder} has {before}, not {partitions}; the number cannot be changed later"
            )
        return (folder / KEPT).read_text(encoding="ascii").split()[1]
    except OSError as error:
        raise SpecError(f"likes.folder: {folder}: {error.strerror}") from None


def build(spec: Spec, settings: LikesSettings, context: Context) -> Service:
    """Make the node. Raises `SpecError`."""
    if settings.partitions > 1:
        return LikesNode(spec, settings, context)
    if not settings.options.log and (before := kept(Path(settings.folder))) not in {None, 1}:
        raise SpecError(f"likes.partitions: {settings.folder} has {before}, not 1; the number cannot be changed later")
    return service.build(spec, settings, context)

"""The registry's entries of likes: live nodes, and the owner of each partition.

Owns the records, and the rule by which a node counts as dead. Knows no partition's contents.
- A member's record counts its beats. Its owner has a lease from before it sent a beat until the record's time after it.
- A member whose record did not change for that time, by the clock of another node that read it all the time, has no
lease any more. Its record is deleted if it is still the one that was read: so the member cannot beat again, and so
cannot have a lease.
- The table names the owner of each partition, with an epoch that fences earlier owners at its log. It changes by
compare-and-set, and only by a node that has a record.
- A partition whose owner has no record is free.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from muster_server.control.registry.tree import BadVersion, Check, Delete, NodeExists, NoNode, Set, Tree, Unavailable
from muster_server.plane.ownership.errors import Fenced
from muster_server.systems.likes.lease import Lease, now_s
from muster_server.systems.likes.slots import PARTITIONS_MAX

ROOT: Final = "/likes"
GAP_S: Final = 1.0
"""After this many seconds without a reading, members get their whole time again."""
DRIFT: Final = 1.02
"""Limit of the ratio between two clocks' speeds; those of real machines differ by less than a thousandth."""
CALL_S: Final = 2.0
DEAD: Final = "other nodes count this one as dead"
AGAIN: Final = 20
AGAIN_S: Final = 0.02

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class PartitionOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition: its owner, and the owner's address for clients; port 0: it was never served."""

    owner: str = ""
    epoch: int = 0
    host: str = ""
    port: Port = 0
    former: bool = False
    """True: the address is the previous owner's, until the new owner serves. So every slot has an owner in every
    answer."""

    @property
    def served(self) -> bool:
        """Whether its owner serves it."""
        return bool(self.port) and not self.former

    def given_to(self, owner: str) -> "PartitionOwner":
        """The same partition with the next owner, or without one."""
        epoch = later(self.epoch) if owner else self.epoch
        return PartitionOwner(owner, epoch, self.host, self.port, former=bool(self.port))


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node: its number, the address where clients learn of all nodes, and its beats."""

    number: int
    host: str
    port: Port
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    leaving: bool = False
    beat: int = 0


class Table(msgspec.Struct, frozen=True):
    """All partitions, and the name of the folder of their logs; empty: Kafka."""

    place: str
    parts: Annotated[list[PartitionOwner], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)]


class Mismatch(Exception):
    """The registry has a different number of partitions, or a different folder of their logs."""


_TABLE: Final = msgspec.json.Decoder(Table)
_MEMBER: Final = msgspec.json.Decoder(Member)
Edit = Callable[[list[PartitionOwner]], bool]


@dataclass(slots=True)
class _Seen:
    version: int
    since: float


class Board:
    """The view of one node. `name`: unique to this life of the node. All calls raise `TreeError`."""

    def __init__(self, tree: Tree, instance: str, name: str, me: Member, empty: Table) -> None:
        """`empty`: the table for an instance that has none yet."""
        self.name, self.me, self.lease = name, me, Lease()
        self.table: Sequence[PartitionOwner] = empty.parts
        self.version = 0
        """The version of the table."""
        self.members: Mapping[str, Member] = {}
        """All members with a record, including dead ones."""
        self._tree, self._empty = tree, empty
        self._lease_s = me.lease_ms / 1000
        self._table = f"{ROOT}/{instance}/table"
        self._folder = f"{ROOT}/{instance}/members"
        self._seen: dict[str, _Seen] = {}
        self._looked = -GAP_S
        self._mine = 0
        """The version of this member's record."""
        self._turn = asyncio.Lock()

    @property
    def watched(self) -> str:
        """The path of the node that changes when partitions move."""
        return self._table

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    # --- this node ----------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Create the table, if there is none, and this node's record. Raises `Mismatch`."""
        async with self._turn:
            with contextlib.suppress(NodeExists):
                await self._tree.create(self._table, msgspec.json.encode(self._empty))
            await self._read_table()
            sent = now_s()
            await self._tree.create(self._path(self.name), msgspec.json.encode(self.me))
            self._mine = 0
            self.lease.renew(sent + self._lease_s)

    async def beat(self, *, leaving: bool = False) -> None:
        """Renew the lease. Raises `Fenced`; then there is no lease."""
        async with self._turn:
            self.me = msgspec.structs.replace(self.me, beat=self.me.beat + 1, leaving=leaving)
            sent = now_s()
            try:
                async with asyncio.timeout(CALL_S):
                    self._mine = await self._tree.set(self._path(self.name), msgspec.json.encode(self.me), self._mine)
            except TimeoutError:
                raise Unavailable("no answer in time") from None
            except NoNode:
                self.lease.end()
                raise Fenced(DEAD) from None
            except BadVersion:  # an earlier beat was written, though its answer was lost
                entry = await self._tree.get(self._path(self.name))
                if entry is None:
                    self.lease.end()
                    raise Fenced(DEAD) from None
                self._mine = entry.version
                return
            self.lease.renew(sent + self._lease_s)

    async def leave(self) -> None:
        """Delete this node's record; partitions that it still owns become free."""
        async with self._turn:
            self.lease.end()
            try:
                await self._tree.delete(self._path(self.name))
            except NoNode:
                return

    # --- all nodes ----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read everything, and delete the records of dead nodes. Raises `Mismatch`."""
        self._tree.forget()
        entries = await self._tree.children(self._folder)
        await self._read_table()
        now = now_s()
        if now - self._looked > GAP_S:
            self._seen.clear()
        self._looked = now
        members: dict[str, Member] = {}
        for name, entry in entries.items():
            try:
                members[name] = _MEMBER.decode(entry.data)
            except msgspec.MsgspecError:
                continue
            seen = self._seen.get(name)
            if seen is None or seen.version != entry.version:
                self._seen[name] = _Seen(entry.version, now)
            elif name != self.name and now - seen.since > DRIFT * members[name].lease_ms / 1000:
                try:
                    await self._tree.transaction(
                        [Check(self._path(self.name)), Delete(self._path(name), entry.version)]
                    )
                except (NoNode, BadVersion):
                    continue
                del members[name]
        self._seen = {name: seen for name, seen in self._seen.items() if name in members}
        self.members = members

    def owner(self, partition: int) -> str:
        """The owner of a partition; empty if it is free."""
        owner = self.table[partition].owner
        return owner if owner in self.members else ""

    def staying(self) -> set[str]:
        """The members that may own partitions: the last life of each node, unless it is leaving."""
        last: dict[int, str] = {}
        for name, member in sorted(self.members.items(), key=lambda each: _life(each[0])):
            last[member.number] = name
        return {name for name in last.values() if not self.members[name].leaving}

    async def _read_table(self) -> None:
        entry = await self._tree.get(self._table)
        if entry is None:
            raise Unavailable("the registry has lost the table of likes")
        try:
            table = _TABLE.decode(entry.data)
        except msgspec.MsgspecError as error:
            raise Mismatch(f"the registry's table of likes is damaged: {error}") from None
        parts, mine = len(table.parts), len(self._empty.parts)
        if parts != mine:
            raise Mismatch(f"the registry has {parts} partitions of likes, but likes.partitions is {mine}")
        if table.place != self._empty.place:
            raise Mismatch(
                "the other nodes of likes use a different folder of logs; with several machines set likes.log"
            )
        self.table, self.version = table.parts, entry.version

    async def change(self, edit: Edit) -> bool:
        """Change the table. `edit` gets the current parts, perhaps several times; it returns whether it changed them."""
        for _ in range(AGAIN):
            async with self._turn:
                await self._read_table()
                parts = list(self.table)
                if not edit(parts):
                    return False
                data = msgspec.json.encode(Table(self._empty.place, parts))
                try:
                    _, version = await self._tree.transaction(
                        [Check(self._path(self.name)), Set(self._table, data, self.version)]
                    )
                except BadVersion:
                    pass
                except NoNode:
                    self.lease.end()
                    raise Fenced(DEAD) from None
                else:
                    assert isinstance(version, int)
                    self.table, self.version = parts, version
                    return True
            await asyncio.sleep(random.uniform(0, AGAIN_S))
        raise Unavailable("too many concurrent changes of the table of likes; try again")


def later(epoch: int) -> int:
    """An epoch for the next owner: greater than `epoch`, and than every epoch of a registry that was lost since."""
    return max(epoch + 1, int(time.time()))


def _life(name: str) -> tuple[int, ...]:
    """The parts of a name, `NUMBER.EPOCH.LIFE`, which sort later lives last."""
    return tuple(int(part) for part in name.split(".") if part.isdigit())

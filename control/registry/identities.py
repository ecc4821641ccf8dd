"""Identities: stable names, the number of each, and an epoch greater than any before (I-1).

A number follows from its name, and a node remembers the one that it had. So after a loss of the registry all nodes get
their own numbers again, in any order. The entry of a name decides which number it has. An index by number says which
name to look at, so that a new name costs a few reads, however many there are.
"""

import contextlib
import hashlib
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Final

from muster_server.control.config.layout import FIRST_NUMBERS
from muster_server.control.errors import UserError
from muster_server.control.registry.epoch import later
from muster_server.control.registry.places import NAME, ROOT, Identity, Wrong, encode, read_identity
from muster_server.control.registry.tree import (
    TRANSACTION_MAX,
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Tree,
    Unavailable,
)

NUMBERS: Final = 999_999_999 - FIRST_NUMBERS
"""Numbers for nodes outside any instance: among 1,000 names, two collide in 1 of 2,000 clusters."""
CONTESTS_MAX: Final = 64
"""Limit of tries in which other processes are first to take an identity."""

NAMES_ENOUGH: Final = 1_024
"""With more names than this, unused ones are removed."""
LOOKS_S: Final = 3_600
"""Seconds between two looks at all names, for one of all processes that take a new name."""
LONG_GONE_S: Final = 30 * 86_400
"""A name without a node whose last epoch is this old, in seconds, may be removed. If its node returns after all, it
brings its number."""


class IdentityTaken(Exception):
    """Another node has the name or the number, or the entry cannot be read. The text is one line."""


async def _nobody() -> Collection[int]:
    """The numbers of an empty map."""
    return ()


async def _nowhere(identity: Identity) -> None:
    """Stores nothing: for readers without an identity."""


class Identities:
    """The identities of one registry. Used in one loop."""

    def __init__(
        self,
        tree: Tree,
        *,
        root: str = ROOT,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.runs: Callable[[], Awaitable[Collection[int]]] = _nobody
        """Returns the map's numbers, once there is a map."""
        self.keep: Callable[[Identity], Awaitable[None]] = _nowhere
        """Called with the identity that this process has taken, before it is used."""
        self._tree, self._wall = tree, wall
        self._ids, self._numbers = f"{root}/ids", f"{root}/numbers"

    async def has(self, name: str) -> bool:
        """Whether the registry knows the name. Raises `TreeError`."""
        return await self._tree.get(f"{self._ids}/{name}") is not None

    async def names(self) -> dict[int, str]:
        """The stable names by their numbers. Raises `TreeError`."""
        return self._read(await self._tree.children(self._ids))

    async def claim(self, name: str, node: int | None, epoch: int, had: int | None = None) -> Identity:
        """Take the number of a name, and an epoch greater than any before and `epoch`.

        The number is `node` if given; else the one in the name's entry, the one that it `had`, or the one that follows
        from it; the last two only if no other node has them. Raises `IdentityTaken`, `TreeError`.
        """
        for _ in range(CONTESTS_MAX):
            entry = await self._tree.get(f"{self._ids}/{name}")
            try:
                before = None if entry is None else self._readable(name, entry, node, node or had)
                operations: list[Operation] = []
                if before is None:
                    number, operations = await self._free(name, node, had)
                else:
                    number = before.node
                taken = Identity(number, self._next(name, epoch, 0 if before is None else before.epoch))
                if entry is None:
                    operations.append(Create(f"{self._ids}/{name}", encode(taken)))
                else:
                    operations.append(Set(f"{self._ids}/{name}", encode(taken), entry.version))
                await self._tree.transaction(operations)
            except (BadVersion, NodeExists, NoNode):
                continue
            await self.keep(taken)
            return taken
        raise Unavailable(f"{self._ids}: other processes were faster {CONTESTS_MAX} times; try again")

    def _readable(self, name: str, entry: Entry, wanted: int | None, known: int | None) -> Identity | None:
        """The content of the entry; None if it cannot be read but this process knows it."""
        path = f"{self._ids}/{name}"
        try:
            found = read_identity(entry.data)
        except Wrong as wrong:
            if known is not None:
                return None
            raise IdentityTaken(f"{path}: {wrong}; delete it if no process has this name") from None
        if wanted not in {None, found.node}:
            raise IdentityTaken(f"{path}: belongs to node {found.node}, not {wanted}")
        return found

    async def _free(self, name: str, wanted: int | None, had: int | None) -> tuple[int, list[Operation]]:
        """A number that no other name has, and what takes it in the index. Raises `BadVersion` if others were faster."""
        every = await self._indexed()
        for number in [wanted] if wanted is not None else numbers(name, had):
            path = f"{self._numbers}/{number}"
            index = await self._tree.get(path)
            of = "" if index is None else index.data.decode(errors="replace")
            if index is None or of == name or not await self._has(of, number):
                write = Create(path, name.encode()) if index is None else Set(path, name.encode(), index.version)
                return number, [Check(self._ids, every.version), write]
            if wanted is not None:
                break
        raise IdentityTaken(
            f"{self._ids}: node {wanted} is {of}; to give that node another number, stop it and delete {self._ids}/{of}"
        )

    async def _has(self, name: str, number: int) -> bool:
        """Whether the entry of a name has this number."""
        entry = await self._tree.get(f"{self._ids}/{name}") if re.fullmatch(NAME, name) else None
        try:
            return entry is not None and read_identity(entry.data).node == number
        except Wrong:
            return False

    async def _indexed(self) -> Entry:
        """The node above the names, once all of them are in the index. A node of a version without the index clears the
        mark with each name that it adds. Raises `BadVersion` if others were faster."""
        now = int(self._wall())
        every = await self._tree.get(self._ids)
        if every is None:
            await self._tree.create(self._ids, _mark(now))
            return Entry(_mark(now), 0)
        looked = _looked(every.data)
        if looked is not None and now < looked + LOOKS_S:
            return every
        if looked is not None:  # the first one looks for all
            every = Entry(_mark(now), await self._tree.set(self._ids, _mark(now), every.version))
        index = await self._tree.names(self._numbers)
        self._tree.forget()  # the write depends on the version just read, so the list must not be older
        names = await self._tree.children(self._ids)
        if looked is None:
            for number, name in self._read(names).items():
                if str(number) not in index:
                    with contextlib.suppress(NodeExists):
                        await self._tree.create(f"{self._numbers}/{number}", name.encode())
            return Entry(_mark(now), await self._tree.set(self._ids, _mark(now), every.version))
        await self._make_room(names, index)
        return every

    async def _make_room(self, every: Mapping[str, Entry], index: Collection[str]) -> None:
        """Delete long-unused names if there are many, the oldest first, and numbers in the index that no name has. Each
        at most as many as one transaction can."""
        running, before, gone = set(await self.runs()), self._wall() - LONG_GONE_S, list[tuple[int, str]]()
        for name, entry in every.items() if len(every) > NAMES_ENOUGH else ():
            with contextlib.suppress(Wrong):
                found = read_identity(entry.data)
                if found.epoch < before and found.node not in running:
                    gone.append((found.epoch, name))
        used = set(map(str, self._read(every)))
        unused = [Delete(f"{self._numbers}/{number}") for number in index if number not in used]
        chosen = [Delete(f"{self._ids}/{name}", every[name].version) for _, name in sorted(gone)[:TRANSACTION_MAX]]
        for operations in (chosen, unused[:TRANSACTION_MAX]):
            if operations:
                with contextlib.suppress(BadVersion, NoNode):  # another node removes them, or the node of one returned
                    await self._tree.transaction(operations)

    def _read(self, every: Mapping[str, Entry]) -> dict[int, str]:
        """Names by number, without unreadable entries: their processes know their numbers."""
        found: dict[int, str] = {}
        for name, entry in every.items():
            try:
                found[read_identity(entry.data).node] = name
            except Wrong:
                continue
        return found

    def _next(self, name: str, *before: int) -> int:
        """The next epoch. After a loss of the registry the clock continues the sequence; after a clock was set back,
        the registry and the process do."""
        try:
            return later(name, *before, now=self._wall())
        except UserError as error:
            raise IdentityTaken(str(error)) from None


def _mark(now: int) -> bytes:
    """The content of the node above the names: all are in the index, and when a process looked at all of them."""
    return b"%d" % now


def _looked(data: bytes) -> int | None:
    return int(data) if data.isdigit() and len(data) < 16 else None


def numbers(name: str, had: int | None = None) -> Iterator[int]:
    """The possible numbers of a name, the preferred one first."""
    if had is not None:
        yield had
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    for at in itertools.count(first):
        yield FIRST_NUMBERS + 1 + at % NUMBERS

"""Who has which number: stable names, the number that goes with each, and an epoch greater than any before (I-1).

A number follows from its name, and a node brings the one that it had: so a registry that lost everything gives all of them
their own again, whoever comes first. Which number is whose, the entry of a name says.
"""

import contextlib
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Final

from control.config.layout import FIRST_NUMBERS
from control.registry.epoch import EPOCH_MAX
from control.registry.places import ROOT, Identity, Wrong, encode, read_identity
from control.registry.tree import (
    TRANSACTION_MAX,
    BadVersion,
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
"""So many numbers a node may have that belongs to no instance: of 1,000 names two have one place in 1 of 2,000 clusters."""
CONTESTS_MAX: Final = 64
"""So often somebody else may be quicker to take an identity."""

NAMES_ENOUGH: Final = 1_024
"""With more names than these, some that nobody goes by any more make room for a new one."""
LONG_GONE_S: Final = 30 * 86_400
"""A name without a node, whose last epoch is so long ago by the clock, is nobody's. Its node, if it comes back after all,
brings its number."""


class IdentityTaken(Exception):
    """The name or the number is somebody else's, or what stands there cannot be read: one line."""


async def _nobody() -> Collection[int]:
    """The numbers of a map that there is none of."""
    return ()


async def _nowhere(identity: Identity) -> None:
    """Where identities are kept by who keeps none."""


class Identities:
    """Those of one registry. Used in one loop."""

    def __init__(
        self,
        tree: Tree,
        *,
        root: str = ROOT,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.runs: Callable[[], Awaitable[Collection[int]]] = _nobody
        """Gives the numbers that the map has, once there is one."""
        self.keep: Callable[[Identity], Awaitable[None]] = _nowhere
        """Is told what this process has taken, before it goes by that."""
        self._tree, self._wall = tree, wall
        self._ids = f"{root}/ids"

    async def has(self, name: str) -> bool:
        """Whether the registry knows the name. Raises `TreeError`."""
        return await self._tree.get(f"{self._ids}/{name}") is not None

    async def names(self) -> dict[int, str]:
        """The stable names by their numbers. Raises `TreeError`."""
        return self._read(await self._tree.children(self._ids))

    async def claim(self, name: str, node: int | None, epoch: int, had: int | None = None) -> Identity:
        """Take the number of a name, and an epoch greater than any before and `epoch`.

        The number is `node` if that is given; else the one that the entry of the name has, the one that it `had`, or
        the one that follows from it; of the last two none that somebody else has. Raises `IdentityTaken`, `TreeError`.
        """
        for _ in range(CONTESTS_MAX):
            entry, every = await self._tree.get(f"{self._ids}/{name}"), await self._tree.get(self._ids)
            try:
                if every is None:
                    await self._tree.create(self._ids)
                    continue
                before = None if entry is None else self._readable(name, entry, node, node or had)
                number = before.node if before is not None else await self._free(name, node, had)
                taken = Identity(number, self._next(name, epoch, 0 if before is None else before.epoch))
                operations: list[Operation] = [] if before is not None else [Set(self._ids, b"", every.version)]
                if entry is None:
                    operations.append(Create(f"{self._ids}/{name}", encode(taken)))
                else:
                    operations.append(Set(f"{self._ids}/{name}", encode(taken), entry.version))
                await self._tree.transaction(operations)
            except (BadVersion, NodeExists, NoNode):
                continue
            await self.keep(taken)
            return taken
        raise Unavailable(f"{self._ids}: others were quicker {CONTESTS_MAX} times")

    def _readable(self, name: str, entry: Entry, wanted: int | None, known: int | None) -> Identity | None:
        """What the entry says; None if that cannot be read, but this process knows what it said."""
        path = f"{self._ids}/{name}"
        try:
            found = read_identity(entry.data)
        except Wrong as wrong:
            if known is not None:
                return None
            raise IdentityTaken(f"{path}: {wrong}; delete it if no process has this name") from None
        if wanted not in {None, found.node}:
            raise IdentityTaken(f"{path}: is node {found.node}, not {wanted}")
        return found

    async def _free(self, name: str, wanted: int | None, had: int | None) -> int:
        self._tree.forget()  # what is written rests on the version that was just read: the list is to be no older
        every = await self._tree.children(self._ids)
        if len(every) > NAMES_ENOUGH:
            await self._make_room(every)
        taken = {number: of for number, of in self._read(every).items() if of != name}
        if wanted in taken:
            of = taken[wanted]
            raise IdentityTaken(
                f"{self._ids}: node {wanted} is {of}; to have that one take another number end it and delete "
                f"{self._ids}/{of}"
            )
        if wanted is not None:
            return wanted
        return next(number for number in numbers(name, had) if number not in taken)

    async def _make_room(self, every: Mapping[str, Entry]) -> None:
        """Delete as many as one transaction can of the names that are long gone, the oldest first."""
        running, before, gone = set(await self.runs()), self._wall() - LONG_GONE_S, list[tuple[int, str]]()
        for name, entry in every.items():
            with contextlib.suppress(Wrong):
                found = read_identity(entry.data)
                if found.epoch < before and found.node not in running:
                    gone.append((found.epoch, name))
        chosen = [Delete(f"{self._ids}/{name}", every[name].version) for _, name in sorted(gone)[:TRANSACTION_MAX]]
        if chosen:
            with contextlib.suppress(BadVersion, NoNode):  # somebody else makes room, or one has come back
                await self._tree.transaction(chosen)

    def _read(self, every: Mapping[str, Entry]) -> dict[int, str]:
        """Without those that cannot be read: their processes know their numbers."""
        found: dict[int, str] = {}
        for name, entry in every.items():
            try:
                found[read_identity(entry.data).node] = name
            except Wrong:
                continue
        return found

    def _next(self, name: str, *before: int) -> int:
        """With a lost registry the clock carries on; with a clock set back, the registry and the process."""
        epoch = max(*(each + 1 for each in before), int(self._wall()))
        if epoch > EPOCH_MAX:
            raise IdentityTaken(f"the epochs of {name} are used up")
        return epoch


def numbers(name: str, had: int | None = None) -> Iterator[int]:
    """The numbers that a name may have, the best one first."""
    if had is not None:
        yield had
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    for at in itertools.count(first):
        yield FIRST_NUMBERS + 1 + at % NUMBERS

"""A process that can keep the registry's digest: it takes its turn, and writes each new version.

A few processes are keepers, each by an entry that ends with its session; the first of them writes, and the next one
continues when that entry has gone. A version is written only on the version before, and only while the writer's entry
is there (I-1), from a reading that began after that version was known: so no version is older than the one before.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from muster_server.control.registry.digest import (
    BYTES_MAX,
    FOLDER,
    Beat,
    Broken,
    Copy,
    Editor,
    Head,
    base_of,
    difference,
    encode,
    read_beat,
    read_head,
    read_part,
)
from muster_server.control.registry.tree import (
    BadVersion,
    Check,
    Create,
    Entry,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Tree,
    TreeError,
)

KEEPERS: Final = 3
"""Processes that can keep the digest: one writes, the others wait."""
BEAT_S: Final = 1.0
"""Seconds between two signs of life of the writer."""
PAUSE_S: Final = 0.1
"""Least time between two versions."""
READERS_S: Final = 1_000
"""Limit of readers per second that new versions wake: with more nodes, more changes share a version."""


class Keeper:
    """One process among the keepers, or one that is none. Used in one loop."""

    def __init__(
        self,
        tree: Tree,
        root: str,
        log: structlog.typing.FilteringBoundLogger,
        dice: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree, self._log, self._dice, self._clock = tree, log, dice, clock
        self._folder = f"{root}/{FOLDER}"
        self._name = ""
        self.leads = False
        """It writes the digest."""
        self.written = 0
        """Versions that it has written."""
        self._barred = False
        self._editor: Editor | None = None
        self._published = Copy()
        self._version = -1
        """That of the head's node; -1 if there is none."""
        self._next_at = self._beat_at = 0.0
        self._beats = 0
        self._count = 0

    @property
    def joined(self) -> bool:
        """It is a keeper."""
        return bool(self._name)

    async def keepers(self) -> list[str]:
        """The keepers, the writer first; this may be an earlier answer. Raises `TreeError`."""
        return sorted(await self._tree.names(f"{self._folder}/keepers"))

    async def look(self) -> None:
        """Take the turn that the list of keepers gives. Raises `TreeError`."""
        every = await self.keepers()
        self._count = len(every)
        if self._name and self._name not in every:
            self._tree.forget()  # the list may be older than this process's entry
            every = await self.keepers()
        place = every.index(self._name) if self._name in every else -1
        if place >= KEEPERS:
            await self.resign()
        elif place < 0:
            self._name = ""
        leads = place == 0
        if leads != self.leads:
            self._log.info("registry: keeps the digest" if leads else "registry: keeps the digest no longer")
            self.leads, self._editor = leads, None

    async def join(self) -> None:
        """Become a keeper. Raises `TreeError`."""
        if self._name or self._barred:
            return
        path = await self._tree.create(f"{self._folder}/keepers/k", ephemeral=True, sequence=True)
        self._name = path.rpartition("/")[2]
        await self.look()

    async def resign(self) -> None:
        """Be no keeper. Raises `TreeError`."""
        name, self._name, self.leads, self._editor = self._name, "", False, None
        with contextlib.suppress(NoNode):
            await self._tree.delete(f"{self._folder}/keepers/{name}")

    def expired(self) -> None:
        """The session has ended, and with it this process's entry."""
        self._name, self.leads, self._editor = "", False, None

    # --- writing ------------------------------------------------------------------------------------------------------

    async def begin(self) -> bool:
        """Learn the present version before the reading that the next one is made of. Returns whether it was unknown.

        Raises `TreeError`.
        """
        if self._editor is not None:
            return False
        entry = await self._tree.get(f"{self._folder}/head")
        beat = await self._tree.peek(f"{self._folder}/beat")
        self._version = -1 if entry is None else entry.version
        with contextlib.suppress(Broken):
            self._beats = 0 if beat is None else read_beat(beat.data).count
        head, self._published = await self._continued(entry)
        self._editor = Editor(head, self._dice.getrandbits(62) + 1, f"{self._name}.{self._dice.getrandbits(24):x}")
        await self._sweep(head)
        return True

    async def _continued(self, entry: Entry | None) -> tuple[Head | None, Copy]:
        """The present digest; None if there is none to continue."""
        if entry is None:
            return None, Copy()
        try:
            head = read_head(entry.data)
            copy = Copy(head.series, head.version)
            for name in base_of(head):
                part = await self._tree.peek(f"{self._folder}/parts/{name}")
                if part is None:
                    raise Broken(f"{name} is missing")
                copy.apply(read_part(part.data))
        except Broken as broken:
            self._log.warning("registry: the digest begins again", cause=str(broken))
            return None, Copy()
        return head, copy

    async def _sweep(self, head: Head | None) -> None:
        """Remove parts of no use that earlier writers left."""
        used = set(base_of(head)) if head else set[str]()
        if head is not None:
            used |= {f"{name}-{at}" for name, count in head.changes for at in range(count)}
        await self._drop([name for name in await self._tree.names(f"{self._folder}/parts") if name not in used])

    async def _drop(self, names: list[str]) -> None:
        async def gone(name: str) -> None:
            with contextlib.suppress(TreeError):  # the next writer removes it
                await self._tree.delete(f"{self._folder}/parts/{name}")

        await asyncio.gather(*map(gone, names))

    async def write(self, reading: Mapping[str, Entry]) -> float:
        """Write a version if the reading has changed, or else a sign of life. Returns seconds to the next call.

        The reading began after `begin`. Raises `TreeError`.
        """
        assert self._editor is not None
        now = self._clock()
        changes = difference(self._published.entries, reading)
        if changes or self._editor.head is None:
            if now < self._next_at:
                return self._next_at - now
            if sum(len(path) + len(entry.data) for path, entry in reading.items()) > BYTES_MAX:
                self._log.error("registry: too large for a digest; each node reads all of it", limit=BYTES_MAX)
                self._barred = True
                await self.resign()
                return BEAT_S
            edition = self._editor.edition(changes, reading)
            try:
                await asyncio.gather(
                    *(self._tree.create(f"{self._folder}/parts/{name}", data) for name, data in edition.made.items())
                )
                await self._commit(edition.head)
            except (BadVersion, NoNode, NodeExists):
                self._editor, self._beat_at = None, 0.0  # another one wrote: look who leads, and read the head again
                self._tree.forget()
                return PAUSE_S
            except TreeError:
                self._editor = None
                raise
            self._editor.done(edition)
            self._published.apply(changes)
            self.written += 1
            self._next_at = self._clock() + max(PAUSE_S, len(reading) / READERS_S)
            await self._drop(list(edition.dropped))
        if now >= self._beat_at:
            await self._beat()
            self._beat_at = self._clock() + BEAT_S
        return max(PAUSE_S, self._beat_at - self._clock())

    async def _commit(self, head: Head) -> None:
        path, mine = f"{self._folder}/head", Check(f"{self._folder}/keepers/{self._name}")
        write: Operation = Create(path, encode(head)) if self._version < 0 else Set(path, encode(head), self._version)
        results = await self._tree.transaction([mine, write])
        self._version = results[1] if isinstance(results[1], int) else 0

    async def _beat(self) -> None:
        assert self._editor is not None
        assert self._editor.head is not None
        head, path = self._editor.head, f"{self._folder}/beat"
        self._beats += 1
        beat = encode(Beat(head.series, head.version, self._beats, self._count))
        try:
            await self._tree.transaction([Check(f"{self._folder}/keepers/{self._name}"), Set(path, beat)])
        except NoNode:
            with contextlib.suppress(NodeExists):
                await self._tree.create(path, beat)

"""How a process reads the registry: entry by entry among few nodes, by the digest among many.

With `FEW` entries or more each node would read and watch every other one's, so the work would grow with the square of
the nodes. There a few of them keep a digest (`keeper.py`), and the others read that: one node for a change. A process
that has read entries by itself takes the digest only once it is at least as new. Where nobody keeps a digest, or where it
stands still, processes keep the last map for a while, try to become keepers, and in the end read by themselves.

Knows what to read, not what to believe: `view.py`.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.registry.digest import FOLDER, Beat, Broken, Copy, base_of, read_beat, read_head, read_part
from muster_server.control.registry.keeper import BEAT_S, KEEPERS, Keeper
from muster_server.control.registry.places import CLUSTERS_MAX, NAME, layer
from muster_server.control.registry.tree import Entry, Tree
from muster_server.plane.kinds import clustered, kinds, partitioned

FEW: Final = 64
"""With fewer entries each process reads every one of them."""
WAIT_S: Final = 20.0
"""Least seconds, on average, for which a node waits for a digest before it reads every entry."""
OWN_READS_S: Final = 50
"""Limit of entries per second that a process reads again in case a watch was lost. A node waits for a
digest for as long as that: to read all of them by itself would take longer."""
FIRST_S: Final = 1.0
"""The same for a process that cannot keep one itself: nodes of an earlier version keep no digest."""
LATE_S: Final = 5.0
"""Seconds without a keeper after which a waiting node comes forward soon."""
LATE_MAX: Final = 4
"""Polls without a sign of life from the digest's writer, after which the digest is given up."""
TRIES_MAX: Final = 8
"""Limit of tries if parts of the digest are replaced while they are read."""
PARTITION: Final = re.compile(r"partition(0|[1-9][0-9]{0,2})")


@dataclass(frozen=True, slots=True)
class Reader:
    """The process that reads."""

    path: str = ""
    """The path of its registration, once known."""
    count: str = ""
    """The path of its layer's count, if it has one."""
    stays: bool = False
    """It is a node's process, and can keep the digest."""
    cluster: str = ""
    layers: Collection[str] = ()
    """The layers that it knows."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All entries by their paths below the root."""

    entries: Mapping[str, Entry]
    changed: Collection[str] | None = None
    """The paths that may differ from the reading before; None: any."""
    old: bool = False
    """Only this process's own entries were read again; the others are those of the reading before."""


class Readings:
    """One process's readings. Used in one loop, by one caller at a time."""

    def __init__(
        self,
        tree: Tree,
        root: str,
        log: structlog.typing.FilteringBoundLogger,
        dice: random.Random,
        later: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`later`: asks for another reading after this many seconds."""
        self._tree, self._root, self._log, self._dice = tree, root, log, dice
        self._later, self._clock = later, clock
        self._folder = f"{root}/{FOLDER}"
        self.keeper = Keeper(tree, root, log, dice, clock)
        self.follows = False
        """It reads the digest."""
        self._copy = Copy()
        """The digest's entries; the last ones that it has read, while it waits for a digest."""
        self._patched: dict[str, Entry | None] = {}
        """The digest's own values where this process has read newer ones."""
        self._read = self._many = False
        """It has a reading; there are too many entries to read each."""
        self._size = 0
        self._barrier: tuple[int, int] | None = None
        """Series and count of the beat from which on the digest is newer than the last reading."""
        self._whole_at = 0.0
        """The time from which on the digest's writer may read all entries again."""
        self._since = 0.0
        self._until: float | None = None
        """The time at which a wait for a digest ends, and, before it, when it began."""
        self._beat, self._late = (0, 0), 0
        self._changed: set[str] | None = None
        """The paths that have changed since the last reading that was handed out; None: any."""

    def expired(self) -> None:
        """The session has ended, and with it this process's entries."""
        self.keeper.expired()

    async def take(self, reader: Reader, *, whole: bool, directly: bool, polled: bool) -> Reading | None:
        """Read; None: there is no reading yet. Raises `TreeError`.

        `whole`: a watch may have been lost. `directly`: the reading begins now, and rests on no digest. `polled`: check
        that the digest is alive.
        """
        if self.keeper.joined:
            await self.keeper.look()
        if self.keeper.leads:
            return await self._written(reader, whole=whole)
        if directly:
            return await self._directly(reader, whole=True)
        if self.follows:
            try:
                if not polled or await self._advances(reader):
                    return await self._synced(reader)
                self._log.warning("registry: the digest stands still")
            except Broken as broken:
                self._log.warning("registry: the digest cannot be read", cause=str(broken))
            self._leave()
        return await self._without(reader, whole=whole)

    async def _without(self, reader: Reader, *, whole: bool) -> Reading | None:
        """A reading by a process that follows no digest."""
        keepers = await self.keeper.keepers() if self._many or not self._read else []
        if not self._many and not keepers:
            self._size = await self._measured(reader)
        self._many = self._many or bool(keepers) or self._size >= FEW
        if not self._many:
            return await self._directly(reader, whole=whole)
        if len(keepers) < KEEPERS and reader.stays and self._dice.random() < self._chance(keepers):
            await self.keeper.join()
            if self.keeper.leads:
                return await self._written(reader, whole=whole)
        if keepers and await self._is_newer():
            self.follows, self._late, self._until = True, 0, None
            try:
                return await self._synced(reader)
            except Broken:  # not written yet
                self._leave()
        now = self._clock()
        if self._until is None:
            self._since = now
            self._until = now + self._dice.uniform(0.5, 1.5) * (
                max(WAIT_S, self._size / OWN_READS_S) if reader.stays else FIRST_S
            )
        if now >= self._until:
            return await self._directly(reader, whole=True)
        self._later(min(BEAT_S, self._until - now))
        return await self._patched_reading(reader, old=True) if self._read else None

    def _chance(self, keepers: Collection[str]) -> float:
        """The chance with which this process becomes a keeper. Not all do at once: each list of keepers is news for all.
        Where none has come for a while, few of the entries are nodes that can keep a digest."""
        late = not keepers and self._until is not None and self._clock() > self._since + LATE_S
        return 0.25 if late else 2 * KEEPERS / max(1, self._size)

    def _leave(self) -> None:
        """Follow no digest: its entries stay until there is a newer reading."""
        self.follows, self._barrier = False, None
        self._copy.series = self._copy.version = 0

    # --- by the digest ------------------------------------------------------------------------------------------------

    async def _is_newer(self) -> bool:
        """Whether the digest is newer than the last reading of this process: by the second beat after it."""
        if not self._read:
            return True
        beat = await self._heard()
        if beat is None:
            return False
        if self._barrier is None or self._barrier[0] != beat.series:
            self._barrier = beat.series, beat.count + 2
        return beat.count >= self._barrier[1]

    async def _heard(self) -> Beat | None:
        entry = await self._tree.peek(f"{self._folder}/beat")
        try:
            return None if entry is None else read_beat(entry.data)
        except Broken:
            return None

    async def _advances(self, reader: Reader) -> bool:
        """Whether the digest's writer lives. A version of which no watch reported is read."""
        beat = await self._heard()
        if beat is None:
            return False
        if beat.version > self._copy.version or beat.series != self._copy.series:
            self._tree.forget()
        if reader.stays and beat.keepers < KEEPERS and self._dice.random() * len(self._copy.entries) < KEEPERS:
            await self.keeper.join()
        if (beat.series, beat.count) != self._beat:
            self._beat, self._late = (beat.series, beat.count), 0
            return True
        self._late += 1
        self._tree.forget()
        return bool(await self.keeper.keepers()) and self._late < LATE_MAX

    async def _synced(self, reader: Reader) -> Reading:
        """Follow the digest to its newest version. Raises `Broken`, `TreeError`."""
        self._restore()
        copy = self._copy
        for _ in range(TRIES_MAX):
            entry = await self._tree.entry(f"{self._folder}/head")
            if entry is None:
                raise Broken("it has no head")
            head = read_head(entry.data)
            if head.series == copy.series and head.version <= copy.version:
                break
            lacks = copy.lacks(head)
            if head.inline and lacks is not None and head.version == copy.version + 1:
                news = copy.apply(read_part(head.inline))
            else:
                names = base_of(head) if lacks is None else lacks
                found = await asyncio.gather(*(self._tree.peek(f"{self._folder}/parts/{name}") for name in names))
                parts = [read_part(part.data) for part in found if part is not None]
                if len(parts) < len(names):
                    self._tree.forget()  # a later version has replaced them
                    continue
                if lacks is None:
                    copy.entries, self._changed = {}, None
                news = set().union(*map(copy.apply, parts))
            copy.series, copy.version = head.series, head.version
            self._add(news)
            break
        else:
            raise Broken("it is replaced faster than it is read")
        self._read = True
        return await self._patched_reading(reader)

    async def _patched_reading(self, reader: Reader, *, old: bool = False) -> Reading:
        for path in filter(None, (reader.path, reader.count)):
            await self._patch(path, only_missing=path == reader.count)
        changed, self._changed = self._changed, set()
        return Reading(self._copy.entries, changed, old)

    def _add(self, paths: Iterable[str]) -> None:
        if self._changed is not None:
            self._changed.update(paths)

    async def _patch(self, path: str, *, only_missing: bool) -> None:
        """Use this process's own reading of a path where it is newer: it must know what it wrote."""
        copy = self._copy
        known = copy.entries.get(path)
        if known is not None and only_missing:
            return
        if self._changed is not None and path in self._changed:
            self._tree.forget()  # the digest knows of a change of which perhaps no watch reported
        mine = await self._tree.entry(f"{self._root}/{path}")
        if mine is None and known is not None:
            del copy.entries[path]
        elif mine is not None and (known is None or known.version < mine.version):
            copy.entries[path] = mine
        else:
            return
        self._patched.setdefault(path, known)
        self._add([path])

    def _restore(self) -> None:
        """Undo this process's own readings: the digest's changes are to its own values."""
        for path, entry in self._patched.items():
            if entry is None:
                self._copy.entries.pop(path, None)
            else:
                self._copy.entries[path] = entry
        self._add(self._patched)
        self._patched = {}

    # --- entry by entry -----------------------------------------------------------------------------------------------

    async def _written(self, reader: Reader, *, whole: bool) -> Reading:
        """The reading of the digest's writer."""
        begins, now = await self.keeper.begin(), self._clock()
        due = whole and now >= self._whole_at
        reading = await self._directly(reader, whole=begins or due)
        if begins or due:
            self._whole_at = now + len(reading.entries) / OWN_READS_S
        self._later(await self.keeper.write(reading.entries))
        return reading

    async def _directly(self, reader: Reader, *, whole: bool) -> Reading:
        if whole:
            self._tree.forget()
        entries = await self._each(reader)
        self._size, self._many = len(entries), len(entries) >= FEW
        self.follows, self._read, self._until, self._barrier, self._patched = False, True, None, None, {}
        before, self._copy = self._copy.entries, Copy(entries=entries)
        changed, self._changed = self._changed, set()
        if changed is None or len(entries) < FEW:
            return Reading(entries)
        changed.update(path for path, entry in entries.items() if before.get(path) != entry)
        changed.update(path for path in before if path not in entries)
        return Reading(entries, changed)

    async def _each(self, reader: Reader) -> dict[str, Entry]:
        reading = dict[str, Entry]()
        plain, layers = await self._folders(reader, reading)
        partitions = list[str]()
        for path, entry in await self._below(*plain, *layers):
            if _is_partition(path) and path.partition("/")[0] not in plain:
                partitions.append(path)
            else:
                reading[path] = entry
        reading.update(await self._below(*partitions))
        return reading

    async def _folders(self, reader: Reader, reading: dict[str, Entry]) -> tuple[list[str], list[str]]:
        """The folders of roles and of layers. Anything else beside layers is added to the reading."""
        layers, there = list[str](), await self._tree.names(self._root)  # most roles have no node
        for role in sorted(partitioned().intersection(there)):
            if role not in clustered():
                layers.append(layer(role))
                continue
            clusters = await self._tree.children(f"{self._root}/{role}")
            believed = _clusters(role, clusters, reader)
            layers += [layer(role, cluster) for cluster in believed]
            reading |= {f"{role}/{name}": entry for name, entry in clusters.items() if name not in believed}
        return sorted((kinds().keys() - partitioned()).intersection(there)), layers

    async def _below(self, *paths: str) -> list[tuple[str, Entry]]:
        found = await asyncio.gather(*(self._tree.children(f"{self._root}/{path}") for path in paths))
        return [
            (f"{path}/{name}", entry) for path, names in zip(paths, found, strict=True) for name, entry in names.items()
        ]

    async def _measured(self, reader: Reader) -> int:
        """The number of entries, by their names alone; at first by the names of all nodes that ever were: one read."""
        if not self._read:
            return len(await self._tree.names(f"{self._root}/ids"))
        plain, layers = await self._folders(reader, {})
        names = await self._names(*plain, *layers)
        partitions = [path for path in names if _is_partition(path)]
        return len(names) + len(await self._names(*partitions))

    async def _names(self, *paths: str) -> list[str]:
        found = await asyncio.gather(*(self._tree.names(f"{self._root}/{path}") for path in paths))
        return [f"{path}/{name}" for path, names in zip(paths, found, strict=True) for name in names]


def _is_partition(path: str) -> bool:
    match = PARTITION.fullmatch(path.rpartition("/")[2])
    return match is not None and int(match[1]) < PARTITIONS_MAX


def _clusters(role: str, found: Iterable[str], reader: Reader) -> set[str]:
    """The clusters of a role to read: beyond the limit only the reader's own and the known ones."""
    known = {of.removeprefix(f"{role}/") for of in reader.layers}
    named = sorted((name != reader.cluster, name not in known, name) for name in found if re.fullmatch(NAME, name))
    return {name for *_, name in named[:CLUSTERS_MAX]}

"""The rooms that the archive keeps: finds them, joins each as a member, and hands on what comes.

Owns the memberships. A room goes on behind the position that is stored with its newest message, so a message is neither
missed nor written twice; what the servers no longer have comes as a gap and is stored as one. A new room begins with the
messages that its broker still has. It must not know the store's tables.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import structlog

import muster
from muster.clock import now_ms
from muster_server import _engines
from muster_server.control.cluster.child import Backoff
from muster_server.control.errors import UserError
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.trust import PROBES
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.archive.options import ArchiveOptions, patterns
from muster_server.systems.rooms.archive.records import Store
from muster_server.systems.rooms.archive.shapes import full
from muster_server.systems.rooms.archive.writing import Course, Overtaken, Writer
from muster_server.systems.rooms.history import with_history
from muster_server.systems.rooms.http.sessions import Session

HISTORY: Final = 1_024
"""Earlier messages that a new room begins with, or as many as the gateway gives."""
RIGHT: Final = "history"

Find = Callable[[], Awaitable[Mapping[str, int]]]
"""Returns the rooms that have members, with their number. Raises `UserError`, `Problem`."""


class Patterns:
    """The rooms of the configuration. Raises `ValueError` for an invalid pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.named = frozenset(full(each) for each in patterns if "*" not in each)
        """Rooms that are kept from the start."""
        self.searches = any("*" in each for each in patterns)
        """Return whether other rooms can match too."""
        self._grant = _engines.Grant([(pattern, [RIGHT]) for pattern in patterns])
        for name in self.named:
            self._grant.words(name)

    def match(self, room: str) -> bool:
        """Return whether a room is kept."""
        return not room.startswith(f"{PROBES}:") and RIGHT in self._grant.words(room)


class _Kept:
    """One room while it is joined."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.used = asyncio.get_running_loop().time()
        """When it had a message or another member last."""


class Keeping:
    """Keeps rooms while `run` runs."""

    def __init__(
        self,
        options: ArchiveOptions,
        session: Session,
        find: Find,
        store: Store,
        writer: Writer,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """Raises `ValueError` for an invalid pattern."""
        self._options, self._session, self._find = options, session, find
        self._store, self._writer, self._log = store, writer, log
        self._patterns = Patterns(patterns(options.rooms))
        self._rooms: dict[str, _Kept] = {}
        self.left_out = 0
        """Rooms that match, beyond `rooms_max`."""
        self.errors: dict[str, str] = {}
        """Why a room is not kept now."""

    def __len__(self) -> int:
        return len(self._rooms)

    async def run(self) -> None:
        """Find and keep rooms until cancelled."""
        try:
            for room in sorted(self._patterns.named)[: self._options.rooms_max]:
                self._begin(room)
            while True:
                if self._patterns.searches:
                    with contextlib.suppress(UserError, Problem):  # nodes start or end: the next look finds them
                        self._take(await self._find())
                await asyncio.sleep(self._options.look_ms / 1_000)
        finally:
            for kept in self._rooms.values():
                kept.task.cancel()
            await asyncio.gather(*(kept.task for kept in self._rooms.values()), return_exceptions=True)
            self._rooms.clear()

    def _take(self, found: Mapping[str, int]) -> None:
        now = asyncio.get_running_loop().time()
        left_out = 0
        for name, members in found.items():
            room = full(name)
            kept = self._rooms.get(room)
            if kept is not None:
                if members > 1:
                    kept.used = now
            elif members and self._patterns.match(room):
                if len(self._rooms) < self._options.rooms_max:
                    self._begin(room)
                else:
                    left_out += 1
        if left_out and not self.left_out:
            self._log.warning("more rooms match than are kept; raise archive.rooms_max", left_out=left_out)
        self.left_out = left_out
        for room, kept in list(self._rooms.items()):
            if room not in self._patterns.named and now - kept.used > self._options.idle_s:
                kept.task.cancel()
                del self._rooms[room]

    def _begin(self, room: str) -> None:
        self._rooms[room] = _Kept(asyncio.create_task(self._keep(room)))

    async def _keep(self, room: str) -> None:
        """Keep a room until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(random.Random())
        try:
            while True:
                began = loop.time()
                try:
                    await self._membership(room)
                except Overtaken:
                    self._log.info("another node wrote to the room; going on behind it", room=room)
                except (muster.MusterError, StoreError) as error:
                    if self.errors.get(room) != str(error):
                        self._log.warning("room is not kept", room=room, cause=str(error))
                    self.errors[room] = str(error)
                await asyncio.sleep(backoff.delay(loop.time() - began))
        finally:
            self.errors.pop(room, None)

    async def _membership(self, room: str) -> None:
        """One membership, to its end. Raises `MusterError`, `StoreError`, `Overtaken`."""
        state = await self._store.state(room)
        client = await self._session.reader()
        joined: muster.Room | None = None
        course: Course | None = None
        ending: asyncio.Task[Any] | None = None
        try:
            begun = False
            if state.positions:
                joined = await client.join(room, positions=state.positions)
            else:
                joined, begun = await with_history(client, room, HISTORY)
            course = Course(room, state, begun)
            self.errors.pop(room, None)
            ending = asyncio.create_task(_leave_after(course, joined))
            async for batch in joined.batches():
                at_ms = now_ms()
                if (kept := self._rooms.get(room)) is not None:
                    kept.used = asyncio.get_running_loop().time()
                await self._writer.put(course, batch, joined.positions, at_ms)
            if course.error is not None:
                raise course.error
        finally:
            if ending is not None:
                ending.cancel()
            if joined is not None and not client.closed:
                joined.leave()
            await self._session.left(client)
            if course is not None and course.error is not None:
                self._writer.drop(course)


async def _leave_after(course: Course, joined: muster.Room) -> None:
    """Leave the room once nothing more of it is written: its reader may wait for a message."""
    await course.over.wait()
    joined.leave()

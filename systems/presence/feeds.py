"""One subscription to the change feed of each shard, fanned out to all watches of a reader.

Owns the recent changes, with which an interrupted watch resumes. Must not know the watchers, nor the content of a
change except its user and its id.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.presence.store import Entry

RECENT_MAX: Final = 4_096
"""Limit of changes of a shard that are kept for watches that return: 250 B each, 1 MiB."""
WAITING_MAX: Final = 4_096
"""Limit of changes that wait for one watch; a slower watch is ended."""
KEPT_S: Final = 55.0
"""A store keeps the changes of a minute; a little less is relied on, in seconds."""
SKEW_MS: Final = 2_000
"""Limit of the difference between two stores' clocks. A change within this time may come twice."""
IDLE_S: Final = 60.0
"""Seconds that a subscription stays after its last watch, because an interrupted watch may return."""
LOOK_S: Final = 1.0


class Named(msgspec.Struct, frozen=True):
    """The user and the id of a change."""

    user: str
    id: str


_named: Final = msgspec.json.Decoder(Named)


class Recent(NamedTuple):
    """A change as its feed stores it."""

    user: int
    id: str
    at_ms: int
    """Time by the store's clock."""
    record: bytes


class Watching:
    """One watch: its changes that were not read yet."""

    def __init__(self, users: frozenset[int]) -> None:
        self.users = users
        self.failed: StoreError | None = None
        self.slow = False
        self._waiting: deque[Recent] = deque()
        self._woken = asyncio.Event()

    def give(self, change: Recent) -> None:
        """Add a change to the watch."""
        self.slow = self.slow or len(self._waiting) >= WAITING_MAX
        if not self.slow:
            self._waiting.append(change)
        self._woken.set()

    def fail(self, error: StoreError) -> None:
        """End the watch because its subscription failed."""
        self.failed = error
        self._woken.set()

    def clear(self) -> None:
        """Discard the waiting changes."""
        self._waiting.clear()

    async def next(self, seconds: float) -> Recent | None:
        """The next change; None: there was none within this time, or the watch was ended."""
        if not self._waiting and self.failed is None and not self.slow:
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        return self._waiting.popleft() if self._waiting else None


class Source(Protocol):
    """A stream of changes in a store: a shard, or the statuses of a site, which are one shard of all users. All calls raise
    `Away`."""

    @property
    def name(self) -> str:
        """For errors."""

    @property
    def shards(self) -> int:
        """The number of streams; a user is in stream `user % shards`."""

    @property
    def shard(self) -> int:
        """Index of this stream."""

    async def recent(self, changes_max: int) -> tuple[list[Entry], bool]:
        """The newest entries, in order, with about as many changes; and whether these are all."""

    async def coming(self, after: str, wait_s: float) -> list[Entry]:
        """Entries after an id, as soon as there is one, or none after a while."""


class Feed:
    """The subscription of one stream. It runs while there are watches, and a minute longer."""

    def __init__(self, shard: Source) -> None:
        self._shard = shard
        self._watches: dict[int, set[Watching]] = {}
        self._recent: deque[Recent] = deque()
        self._dropped = 0
        """Number of changes before the first of `_recent`."""
        self._numbers: dict[str, int] = {}
        self._since_ms = 0
        """All changes from this time on are in `_recent`."""
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] | None = None
        self._idle_at = 0.0

    async def join(self, watching: Watching) -> None:
        """Pass the changes of the watch's users to it from now on. Raises `StoreError`."""
        if self._task is None:
            self._begun = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._begun), name=f"watches {self._shard.name}")
        begun = self._begun
        assert begun is not None
        for user in watching.users:
            if user % self._shard.shards == self._shard.shard:
                self._watches.setdefault(user, set()).add(watching)
        try:
            await asyncio.shield(begun)
        except BaseException:
            self.leave(watching)
            raise

    def leave(self, watching: Watching) -> None:
        """Remove a watch."""
        for user in watching.users:
            known = self._watches.get(user)
            if known is not None:
                known.discard(watching)
                if not known:
                    del self._watches[user]
        self._idle_at = time.monotonic() + IDLE_S

    async def close(self) -> None:
        """End the subscription."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- Resuming

    def time_of(self, change: str) -> int | None:
        """The time of the change with this id, by the store's clock; None: it is not stored any more."""
        number = self._numbers.get(change)
        return None if number is None else self._recent[number - self._dropped].at_ms

    def after(self, change: str, at_ms: int) -> list[Recent] | None:
        """Changes after the one with this id; for an id of another feed, those since its time. None: some are not
        stored any more."""
        number = self._numbers.get(change)
        if number is not None:
            return list(self._recent)[number - self._dropped + 1 :]
        if at_ms - SKEW_MS < self._since_ms:
            return None
        return [each for each in self._recent if each.at_ms >= at_ms - SKEW_MS]

    # ---- The subscription

    async def _run(self, begun: asyncio.Future[None]) -> None:
        try:
            place = await self._begin()
            begun.set_result(None)
            self._idle_at = time.monotonic() + IDLE_S
            while self._watches or time.monotonic() < self._idle_at:
                for entry in await self._shard.coming(place, LOOK_S):
                    place = entry.place
                    for change in _changes(entry):
                        self._keep(change)
                        for watching in self._watches.get(change.user, ()):
                            watching.give(change)
        except StoreError as error:
            if not begun.done():
                begun.set_exception(error)
            for watching in {each for known in self._watches.values() for each in known}:
                watching.fail(error)
            self._watches.clear()
        finally:
            if not begun.done():
                begun.cancel()
            self._task = None
            self._recent.clear()
            self._numbers.clear()
            self._dropped = 0

    async def _begin(self) -> str:
        """Read the recent changes; returns the id of the newest entry."""
        entries, is_whole = await self._shard.recent(RECENT_MAX)
        self._since_ms = 0
        for entry in entries:
            for change in _changes(entry):
                self._keep(change)
        if is_whole:
            kept_ms = round((time.time() - KEPT_S) * 1_000)
            self._since_ms = max(self._since_ms, min(kept_ms, self._recent[0].at_ms if self._recent else kept_ms))
        elif self._recent:
            self._since_ms = max(self._since_ms, self._recent[0].at_ms + 1)
        return entries[-1].place if entries else "0-0"

    def _keep(self, change: Recent) -> None:
        self._numbers[change.id] = self._dropped + len(self._recent)
        self._recent.append(change)
        if len(self._recent) > RECENT_MAX:
            oldest = self._recent.popleft()
            if self._numbers.get(oldest.id) == self._dropped:
                del self._numbers[oldest.id]
            self._dropped += 1
            self._since_ms = oldest.at_ms + 1


def missed(feeds: Sequence[Feed], users: frozenset[int], after: str) -> list[Recent] | None:
    """Changes of these users after the one with this id, in the order of each feed; None: some may not be stored any
    more."""
    times = [at_ms for feed in feeds if (at_ms := feed.time_of(after)) is not None]
    if not times:
        return None
    found: list[Recent] = []
    for feed in feeds:
        changes = feed.after(after, times[0])
        if changes is None:
            return None
        found += [each for each in changes if each.user in users]
    return found


def _changes(entry: Entry) -> Iterator[Recent]:
    at_ms = int(entry.place.partition("-")[0])
    for record in entry.told.records():
        named = _named.decode(record)
        yield Recent(int(named.user), named.id, at_ms, bytes(record))

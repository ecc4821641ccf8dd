"""A joined room: its reader's queue, and how reading waits."""

import asyncio
import struct
from collections.abc import AsyncIterator, Generator, Iterable
from copy import copy
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, final

from .errors import Invalid, MusterError, TimedOut
from .filters import Filter
from .items import Command, History, Item, Members, Message

if TYPE_CHECKING:
    from .client import Client

BATCH: Final = 1_024
"""Limit of items that one call into the engine returns."""

COUNTS: Final = (
    "delivered",
    "delivered_bytes",
    "gaps",
    "lost",
    "duplicates",
    "repeats",
    "repairs_asked",
    "repaired",
    "dropped_reader",
    "filtered",
    "commands",
    "rejoined",
)
"""The engine's counts of a membership."""

STREAMS_MAX: Final = 8
_ENTRY: Final = struct.Struct("<IIIQ")
_OFFSET: Final = (1 << 62) - 1
_LOST: Final = 1 << 63  # marks an entry: the rest of the stream is lost

Policy = Literal["drop_oldest", "drop_newest", "block"]
POLICIES: Final[tuple[Policy, ...]] = ("drop_oldest", "drop_newest", "block")
"""Indexed by the engine's numbers."""


@final
class Room:
    """A membership while its block lasts; one task at a time reads it: `async for item in room`.

    Iteration ends when the room is left. It raises when the client is closed or refused permanently. A cancelled read
    loses nothing: it either takes waiting items or waits, never both.
    """

    def __init__(
        self,
        client: "Client",
        name: str,
        positions: bytes | None,
        history: int,
        policy: Policy,
        timeout: float,
        filter: Filter | None = None,
    ) -> None:
        self.name = name
        self._filter = filter
        self._client, self._given, self._history, self._policy = client, positions, history, policy
        self._timeout = timeout
        self._known: tuple[bool | None, int, bool] = (None, 0, False)
        self._number: int | None = None
        self._joined: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._batch: list[Item] = []
        self._at = 0
        self._before = positions or b""
        self._counted = dict.fromkeys(COUNTS, 0)
        self._readable = self._full = self._reading = False
        self._left = False
        self._error: MusterError | None = None

    async def __aenter__(self) -> "Room":
        if self._joined is not None:
            raise Invalid(f"{self.name}: a room object is joined once; call client.join again")
        client = self._client
        self._number = client.enter(self, self._given, self._history, POLICIES.index(self._policy), self._filter)
        self._joined = client.loop.create_future()
        try:
            await client.wait(self._joined, self._timeout, f"join {self.name}")
        except TimedOut as error:
            self.leave()
            raise client.late_join(error) from None
        except BaseException:
            self.leave()
            raise
        return self

    def __await__(self) -> Generator[Any, None, "Room"]:
        return self.__aenter__().__await__()

    def leave(self) -> None:
        """End the membership. Iteration ends and unread items are dropped. A second call does nothing."""
        if self._number is not None:
            self._client.check_here(self.name)
            number = self._number
            self.end()
            self._client.leave(self, number)
        self._left = True
        self._wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __aiter__(self) -> "Room":
        return self

    async def __anext__(self) -> Item:
        at = self._at
        if at == len(self._batch) or get_ident() != self._client.thread:
            self._client.check_here(self.name)
            self._batch, self._at = [], 0
            self._batch, at = await self._next(), 0
        self._at = at + 1
        return self._batch[at]

    def batches(self) -> AsyncIterator[list[Item]]:
        """Iterate over batches: the items since the last batch, in order, at least 1 and at most 1,024."""
        return _Batches(self)

    @property
    def positions(self) -> bytes:
        """The value for `join(positions=…)`: after everything read so far. Opaque, at most 81 bytes."""
        if self._at < len(self._batch):
            return advance(self._before, self._batch[: self._at])
        if self._number is None:
            return self._before
        return self._client.engine.positions(self._number) or b""

    @property
    def before(self) -> bytes:
        """The positions before the last batch, for a reader of batches that counts the items itself."""
        return self._before

    @property
    def recovered(self) -> bool | None:
        """Whether the last join resumed without a loss, from this membership or from the given positions.

        None while the missed messages are in transit. False also if there was nothing to resume, or if no server can
        tell.
        """
        return self._state()[0]

    @property
    def history(self) -> History:
        """The result of `join(history=…)`."""
        return History(*self._state()[1:])

    def _state(self) -> tuple[bool | None, int, bool]:
        if self._number is not None:
            self._known = self._client.engine.joined(self._number) or self._known
        return self._known

    async def members(self, *, ids: bool = False, start: int = 0, wait: float = 1.0) -> Members:
        """Request the members of this room: `client.members` with its name."""
        return await self._client.members(self.name, ids=ids, start=start, wait=wait)

    def stats(self) -> dict[str, int]:
        """Return the counts of this membership. `docs/sdk.md` explains each."""
        if self._number is None:
            return dict(self._counted)
        return self._client.engine.room_stats(self._number) or {}

    async def _batch_next(self) -> list[Item]:
        self._client.check_here(self.name)
        rest = self._batch[self._at :]
        self._batch, self._at = [], 0
        return rest or await self._next()

    async def _next(self) -> list[Item]:
        """Return items that wait, or wait for some: never both, so that a cancelled call loses nothing."""
        if self._reading:
            raise Invalid(f"{self.name}: another task reads this room; use one reader per room object")
        self._reading, client = True, self._client
        try:
            if self._full:  # a long queue must not block the loop
                await asyncio.sleep(0)
            while True:
                if self._left:
                    raise StopAsyncIteration
                if self._number is None:
                    raise copy(
                        self._error or Invalid(f"{self.name}: not joined; use `async with client.join(…) as room`")
                    )
                if self._readable:
                    before, taken = client.engine.read(self._number, self.name, BATCH)
                    self._before = before or b""
                    self._full = self._readable = len(taken) == BATCH
                    if taken:
                        return taken
                if self._error is not None:
                    raise copy(self._error)
                self._waiter = client.loop.create_future()
                await self._waiter
        finally:
            self._reading, self._waiter = False, None

    # --- called by the client ---------------------------------------------------------------------------------

    def on_joined(self) -> None:
        """The gateway accepted the join, the first one or a later one."""
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    def on_readable(self) -> None:
        """Items wait in the engine."""
        self._readable, waiter = True, self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_error(self, error: MusterError) -> None:
        """No further item will come. Unread items can still be read, unless the client is closed."""
        self._error = self._error or error
        if self._joined is not None and not self._joined.done():
            self._joined.set_exception(error)
        self._wake()

    def on_error_over(self, error: MusterError) -> None:
        """The error that ended the room is over: reading continues."""
        if self._error is error:
            self._error = None

    def end(self, broken: bool = False) -> None:
        """End the membership but keep its positions and counts. A `broken` engine is not called again."""
        if broken:
            self._before = advance(self._before, self._batch[: self._at])
        else:
            self._before, self._counted = self.positions, self.stats()
            self._state()
        self._number, self._batch, self._at = None, [], 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Batches:
    """Iterates a room by batches."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def __aiter__(self) -> "_Batches":
        return self

    async def __anext__(self) -> list[Item]:
        return await self._room._batch_next()


def known_offsets(positions: bytes) -> dict[tuple[int, int, int], int]:
    """The last offset of each stream (node, epoch, generation) in a value of `room.positions`, the newest stream last."""
    return {stream: offset for stream, (offset, _) in _entries(positions).items()}


def _entries(positions: bytes) -> dict[tuple[int, int, int], tuple[int, int]]:
    """For each stream its last offset, and what is known of its end."""
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    for at in range(1, len(positions), _ENTRY.size):
        node, epoch, generation, offset = _ENTRY.unpack_from(positions, at)
        known[node, epoch, generation] = (offset & _OFFSET, offset & ~_OFFSET)
    return known


def advance(positions: bytes, items: Iterable[Item]) -> bytes:
    """Return `positions` advanced by `items`: each stream's last offset and what is known of its end, the newest last."""
    known = _entries(positions)
    for item in items:
        if isinstance(item, Message):
            stream, last, course = item.position.stream, item.position.offset, 0
        elif isinstance(item, Command):
            continue
        elif item.last is None:
            stream, last, course = item.stream, item.first - 1, _LOST
        else:
            stream, last, course = item.stream, item.last, 0
        had, before = known.get(stream, (0, 0))
        known[stream] = (max(had, last), course if last > had else course or before)
    newest = list(known.items())[-STREAMS_MAX:]
    entries = (_ENTRY.pack(*stream, offset | course) for stream, (offset, course) in newest)
    return bytes([len(newest)]) + b"".join(entries)

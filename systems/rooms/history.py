"""A room's history: recent messages in the memory of the servers, and those before them in the archive.

Owns how both become one page: without a message twice, and with a gap wherever some are missing. It must not know routes
or commands.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import muster
from muster.clock import now_ms
from muster_server.systems.rooms.archive.blocks import ENDLESS
from muster_server.systems.rooms.archive.shapes import (
    UNWRITTEN,
    Gap,
    Item,
    Page,
    Place,
    Read,
    last_of,
    shown,
    stream_of,
)

EXPIRED: Final = "expired"
"""Reason of a gap of messages that no server has any more."""
T = TypeVar("T")
ReadArchive = Callable[[Read], Awaitable[Page]]
"""Reads a page of the archive."""


class Untimed(Exception):
    """The room is not kept: messages in memory have no time."""


class Recent(NamedTuple, Generic[T]):
    """A message in memory."""

    stream: str
    offset: int
    value: T

    @property
    def place(self) -> Place:
        """Its position."""
        return Place(stream_of(self.stream), self.offset)


@dataclass(frozen=True, slots=True)
class Asked:
    """A page: the newest `limit` messages before the place `at` or the time `since_ms`, the newest first; or, not `back`,
    the oldest ones behind them, the oldest first."""

    room: str
    limit: int
    back: bool = True
    at: Place | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A page, in the order of the request."""

    items: Sequence[Recent[T] | Item]
    next: Place | None
    """The place at which the next page begins; None: there is none."""
    whole: bool
    """As many messages as requested, or all that the room ever had in this direction."""

    @property
    def messages(self) -> int:
        """The number of messages in it."""
        return sum(not isinstance(item, Gap) for item in self.items)


async def found(asked: Asked, recent: Sequence[Recent[T]], whole: bool, read: ReadArchive | None) -> Found[T]:
    """A page. `recent`: what is in memory, the oldest first; `whole`: that is all the room ever had, as far as its servers
    know. `read`: reads the archive; None: there is none. Raises `Untimed`, and what `read` raises."""
    return await (_back(asked, recent, whole, read) if asked.back else _forward(asked, recent, read))


async def _back(asked: Asked, recent: Sequence[Recent[T]], whole: bool, read: ReadArchive | None) -> Found[T]:
    end, known = len(recent), True
    if asked.since_ms is not None:
        end, known = 0, False
    elif asked.at is not None:
        at = _at(recent, asked.at)
        end, known = max(at, 0), at >= 0
    begin = max(0, end - asked.limit)
    items: list[Recent[T] | Item] = _with_holes(recent[begin:end])[::-1]
    oldest = recent[begin].place if begin < end else asked.at
    if end - begin == asked.limit and begin:
        return Found(items, oldest, True)
    page = Page()
    if read is not None:
        left = asked.limit - (end - begin)
        page = await read(Read(asked.room, max(left, 1), True, oldest, asked.since_ms))
        if left == 0:  # it was asked only whether there are earlier ones
            return Found(items, oldest if page.items else None, True)
    if not page.kept:
        if asked.since_ms is not None:
            raise Untimed
        full = end - begin == asked.limit
        return Found(items, None, full or (whole and known))
    items += page.items
    full = sum(not isinstance(item, Gap) for item in items) >= asked.limit
    return Found(items, None if page.over else _behind(page.items[-1], back=True), full or (page.over and page.begun))


async def _forward(asked: Asked, recent: Sequence[Recent[T]], read: ReadArchive | None) -> Found[T]:
    if asked.at is not None and recent:
        newest = recent[-1]
        if newest.stream == shown(asked.at.stream) and asked.at.offset >= newest.offset:
            return Found([], None, True)
        if (at := _at(recent, asked.at)) >= 0:
            return _cut(_with_holes(recent[at:])[1:], asked.limit)
    page = Page() if read is None else await read(Read(asked.room, asked.limit, False, asked.at, asked.since_ms))
    if not page.kept and asked.since_ms is not None:
        raise Untimed
    if not page.kept or _begins(asked.at, recent, page.known):
        return _cut(_later(asked.at, recent), asked.limit)
    items: list[Recent[T] | Item] = list(page.items)
    if not page.over:
        return Found(items, _behind(page.items[-1], back=False) if page.items else None, True)
    if asked.since_ms is None or asked.since_ms <= now_ms():
        items += _tail(recent, page.known)
    return _cut(items, asked.limit)


def _begins(at: Place | None, recent: Sequence[Recent[T]], known: Sequence[Place]) -> bool:
    """Return whether a place is in a stream that memory has and the archive does not have yet."""
    if at is None or at.stream in last_of(known):
        return False
    stream = shown(at.stream)
    return any(each.stream == stream for each in recent)


def _at(recent: Sequence[Recent[T]], place: Place) -> int:
    """The index of a place in memory; -1: it is not there."""
    stream = shown(place.stream)
    return next((at for at, each in enumerate(recent) if each.offset == place.offset and each.stream == stream), -1)


def _cut(items: Sequence[Recent[T] | Item], limit: int) -> Found[T]:
    """The first messages of a page, with the gaps among them."""
    left = limit
    for at, item in enumerate(items):
        if not isinstance(item, Gap):
            left -= 1
        if left < 0:
            end = at
            while isinstance(items[end - 1], Gap):  # the next page begins with it
                end -= 1
            return Found(items[:end], _behind(items[end - 1], back=False), True)
    return Found(items, None, True)


def _later(at: Place | None, recent: Sequence[Recent[T]]) -> list[Recent[T] | Item]:
    """The messages in memory behind a place that it does not know."""
    if at is None:
        return _with_holes(recent)
    stream = shown(at.stream)
    behind = (index for index, each in enumerate(recent) if each.stream == stream and each.offset > at.offset)
    first = next(behind, None)
    if first is None:
        return [Gap(at.stream, at.offset + 1, None, EXPIRED), *_with_holes(recent, {stream: at.offset})]
    return _with_holes(recent[first:], {stream: at.offset})


def _tail(recent: Sequence[Recent[T]], known: Sequence[Place]) -> list[Recent[T] | Item]:
    """The messages in memory beyond the archive."""
    last = {shown(stream): offset for stream, offset in last_of(known).items()}
    return _with_holes([each for each in recent if each.offset > last.get(each.stream, 0)], last, UNWRITTEN)


def _with_holes(
    recent: Sequence[Recent[T]], known: Mapping[str, int] | None = None, reason: str = EXPIRED
) -> list[Recent[T] | Item]:
    """Messages of memory, with a gap where offsets are missing between two. `known`: the last offset of each stream before
    them; None: nothing is known of what was before the first one."""
    items: list[Recent[T] | Item] = []
    last = dict(known or {})
    for each in recent:
        had = last.get(each.stream, each.offset - 1 if known is None and not items else 0)
        if each.offset > had + 1:
            items.append(Gap(stream_of(each.stream), had + 1, each.offset - 1, reason))
        items.append(each)
        last[each.stream] = each.offset
    return items


def _behind(item: Recent[T] | Item, *, back: bool) -> Place:
    """The place at which a page goes on after this item."""
    if isinstance(item, Gap):
        return Place(item.stream, item.first if back else (ENDLESS if item.last is None else item.last))
    return item.place


async def with_history(client: muster.Client, room: str, count: int) -> tuple[muster.Room, bool]:
    """Join a room with up to this many of its last messages, or as many as the gateway gives; and whether these are all
    that its owners numbered. Raises `MusterError`."""
    while True:
        try:
            joined = await client.join(room, history=count)
            return joined, all_of(joined.history, count)
        except muster.Refused as error:
            if error.code != "too_much_history" or not count:
                raise
            count //= 2


def all_of(given: muster.History, count: int) -> bool:
    """Return whether a join that asked for `count` messages got all that the room's owners numbered."""
    return given.whole and given.messages < count

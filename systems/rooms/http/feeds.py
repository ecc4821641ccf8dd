"""Rooms that are read over HTTP: one membership each, its recent messages in a ring, and readers with cursors into it.

A reader pulls: it costs one cursor, however far it lags, and one that lags behind the ring gets a gap. Knows nothing of
HTTP but the format of server-sent events.
"""

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

import muster
from muster_server.systems.rooms.history import Recent, all_of
from muster_server.systems.rooms.http.sessions import Session
from muster_server.systems.rooms.where import Where, matches

CHUNK_BYTES: Final = 256 << 10
"""Limit of bytes for a reader at a time, besides one message."""
STREAMS_MAX: Final = 4
"""Limit of positions in an event's id: a room has one stream, and for a while after a change of its owner two."""
PREFILL_S: Final = 2.0
TRIM: Final = 256
ID_CHARS_MAX: Final = 300

Offsets = Mapping[str, int]
"""For each stream, the last offset that a reader has."""


class Entry(NamedTuple):
    """One item of a room, ready to be sent."""

    known: Offsets
    """The reader's positions after this item."""
    event: bytes
    message: bytes
    """The message as JSON; empty for gaps and commands."""
    stream: str
    last: int
    """The last offset of its stream that the item covers; 0 for a command."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Those of the message."""


def encoded(data: bytes) -> dict[str, str]:
    """Text unchanged, other data in base64 with `encoding`."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}


def event(name: str, document: Any, known: Offsets | None = None) -> bytes:
    """One server-sent event; with `known` it has an id, with which a client resumes."""
    lines = [b"id: " + event_id(known).encode()] if known else []
    if name:
        lines.append(b"event: " + name.encode())
    body = document if isinstance(document, bytes) else msgspec.json.encode(document)
    return b"\n".join([*lines, b"data: " + body, b"", b""])


def event_id(known: Offsets) -> str:
    """`STREAM:OFFSET`; for several streams, separated by commas."""
    return ",".join([f"{stream}:{offset}" for stream, offset in known.items()])


def parse_id(text: str) -> dict[str, int]:
    """Parse a value of `event_id`. Raises `ValueError`."""
    known: dict[str, int] = {}
    if len(text) > ID_CHARS_MAX:
        raise ValueError(text)
    for part in text.split(","):
        stream, _, offset = part.strip().rpartition(":")
        numbers = [*stream.split("."), offset]
        if len(numbers) != 4 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(text)
        known[stream] = int(offset)
    return known


def gap_event(stream: str, first: int, last: int | None, reason: str, known: Offsets | None) -> bytes:
    """The event of a known loss."""
    return event("gap", {"stream": stream, "first": first, "last": last, "reason": reason}, known)


class Ring:
    """The recent items of a room, bounded by count of messages and bytes. `changed` is called after items were added."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._entries: list[Entry] = []
        self._first = 0  # index in `_entries`; entries before it are dropped
        self._base = 0
        """The number of `_entries[0]`, counted from the beginning."""
        self._known: Offsets = {}
        self._floor: dict[str, int] = {}
        """For each stream, the last offset that is not in the ring."""
        self._born: dict[str, int] = {}
        """For each stream, the last offset before the first item that came."""
        self._cached: tuple[int, int, bytes, int, Offsets] | None = None
        self.bytes = 0
        self.whole = False
        """True: the ring has all messages that the room's owner numbered."""

    @property
    def begin(self) -> int:
        """The number of the oldest item."""
        return self._base + self._first

    @property
    def end(self) -> int:
        """The number that the next item will have."""
        return self._base + len(self._entries)

    @property
    def known(self) -> Offsets:
        """Positions after the newest item."""
        return self._known

    def add(self, item: muster.Item) -> None:
        """Take the next item of the room."""
        entry = self._entry(item)
        self._entries.append(entry)
        self.bytes += len(entry.event) + len(entry.message)
        self._known = entry.known
        while self.end - self.begin > self._count_max or (self.bytes > self._bytes_max and self.end - self.begin > 1):
            gone = self._entries[self._first]
            self.bytes -= len(gone.event) + len(gone.message)
            self._first += 1
            self.whole = False
            if gone.stream in self._floor:
                self._floor[gone.stream] = gone.last
        if self._first >= TRIM:
            del self._entries[: self._first]
            self._base, self._first = self._base + self._first, 0

    def take(self, cursor: int, known: Offsets, where: Where | None = None) -> tuple[bytes, int, Offsets]:
        """Return the events from a cursor on, the cursor after them, and their reader's new positions. Empty at the
        end.

        A reader that lags gets gaps in place of lost items. With `where` messages without these headers are left out.
        """
        lost = b"".join(self._lost(known, self._born, "slow")) if cursor < self.begin else b""
        start = max(cursor, self.begin)
        if start == self.end:
            return lost, start, known
        if where:
            chunk, following, after = self._slice(start, where)
            return lost + chunk, following, after
        if self._cached is None or self._cached[:2] != (start, self.end):
            self._cached = (start, self.end, *self._slice(start))
        _, _, chunk, following, after = self._cached
        return lost + chunk, following, after

    def _slice(self, start: int, where: Where | None = None) -> tuple[bytes, int, Offsets]:
        events, size, at = [], 0, start - self._base
        while at < len(self._entries) and size < CHUNK_BYTES:
            entry = self._entries[at]
            if not (where and entry.message) or matches(where, entry.headers):
                events.append(entry.event)
                size += len(entry.event)
            at += 1
        return b"".join(events), self._base + at, self._entries[at - 1].known

    def after(self, known: Offsets) -> tuple[bytes, int]:
        """Return where a reader with these positions resumes: gaps for lost items, and its cursor.

        With several streams at once items may come again; their positions tell.
        """
        gaps = list(self._lost(known, {}, "expired"))
        gaps += [
            gap_event(stream, offset + 1, None, "expired", None)
            for stream, offset in known.items()
            if stream not in self._known
        ]
        for at in range(self._first, len(self._entries)):
            entry = self._entries[at]
            if entry.last > known.get(entry.stream, 0):
                return b"".join(gaps), self._base + at
        return b"".join(gaps), self.end

    def known_at(self, cursor: int) -> Offsets:
        """The positions of a reader that begins at a cursor."""
        return self._entries[cursor - 1 - self._base].known if cursor > self.begin else dict(self._floor)

    def newest(self, count: int) -> int:
        """The cursor before this many of the last messages; if there are fewer, before all."""
        if not count:
            return self.end
        for at in range(len(self._entries) - 1, self._first - 1, -1):
            count -= bool(self._entries[at].message)
            if not count:
                return self._base + at
        return self.begin

    def messages(self, cursor: int) -> list[Recent[bytes]]:
        """The messages from a cursor on, as JSON."""
        entries = self._entries[cursor - self._base :]
        return [Recent(entry.stream, entry.last, entry.message) for entry in entries if entry.message]

    def _lost(self, known: Offsets, born: Offsets, reason: str) -> Iterator[bytes]:
        """Gaps for lost items that a reader does not have. `born`: its positions for streams that it does not know."""
        for stream, floor in self._floor.items():
            had = known.get(stream, born.get(stream, 0))
            if had < floor:
                yield gap_event(stream, had + 1, floor, reason, {**known, stream: floor})

    def _entry(self, item: muster.Item) -> Entry:
        if isinstance(item, muster.Message):
            position = item.position
            stream, last = str(position.stream), position.offset
            known = self._advanced(stream, last, last - 1)
            document: dict[str, Any] = {"position": f"{stream}:{last}", "sender": str(item.sender)}
            document |= encoded(item.data)
            if headers := item.headers:
                document["headers"] = headers
            message = msgspec.json.encode(document)
            return Entry(known, event("", message, known), message, stream, last, headers)
        if isinstance(item, muster.Gap):
            stream, last = str(item.stream), item.first - 1 if item.last is None else item.last
            known = self._advanced(stream, last, item.first - 1)
            return Entry(known, gap_event(stream, item.first, item.last, str(item.reason), known), b"", stream, last)
        said = {"number": str(item.number), "sender": str(item.sender), **encoded(item.data)}
        return Entry(self._known, event("command", said), b"", "", 0)

    def _advanced(self, stream: str, last: int, before: int) -> Offsets:
        known = dict(self._known)
        if stream not in known:
            self._floor[stream] = self._born[stream] = 0 if self.whole else before
            while len(known) >= STREAMS_MAX:
                oldest = next(iter(known))
                del known[oldest], self._floor[oldest], self._born[oldest]
        known.pop(stream, None)
        known[stream] = last
        return known


class Feed:
    """One room of one session while it has readers."""

    def __init__(self, room: str, session: Session, history_max: int, bytes_max: int) -> None:
        self.room, self._session, self._history_max = room, session, history_max
        self.ring = Ring(history_max, bytes_max)
        self.readers: set[Callable[[], None]] = set()
        """Callbacks of the readers, called when there are new items."""
        self.idle_since: float | None = None
        """Time since it has no reader; None while it has readers."""
        self.history = True
        """True: its user may see earlier messages."""
        self.ended: muster.MusterError | None = None
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed once the room is joined and its history has arrived."""
        self._room: muster.Room | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def positions(self) -> bytes:
        """The room's positions after the newest item, as `Room.positions`."""
        return b"" if self._room is None else self._room.positions

    @property
    def over(self) -> bool:
        """Whether no further item will come."""
        return self._task.done()

    def wake(self) -> None:
        """Wake all readers."""
        for reader in self.readers:
            reader()

    async def close(self) -> None:
        """Leave the room."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        session = self._session
        session.users += 1
        reader: muster.Client | None = None
        try:
            reader = await session.reader()
            await self._read(reader)
        except muster.MusterError as error:
            self.ended = error
            session.failed(error)
        finally:
            session.users -= 1
            if reader is not None:
                await session.left(reader)
            if not self.joined.done():
                self.joined.set_exception(self.ended or muster.Closed("the room was left"))
                self.joined.exception()  # marks it as retrieved, since perhaps nothing waits for it
            self.wake()

    async def _read(self, client: muster.Client) -> None:
        count = self._history_max
        while True:
            try:
                room = self._room = await client.join(self.room, history=count)
                break
            except muster.Refused as error:
                if error.code == "not_allowed" and count:
                    count, self.history = 0, False  # perhaps the user may read the room, but not its history
                elif error.code == "too_much_history" and count:
                    count //= 2
                else:
                    raise
        try:
            given, loop = room.history, asyncio.get_running_loop()
            left = given.messages
            self.ring.whole = all_of(given, count)
            late = loop.call_later(PREFILL_S, self._is_joined)
            if not left:
                self._is_joined()
            async for batch in room.batches():
                for item in batch:
                    self.ring.add(item)
                if left > 0:
                    left -= sum(isinstance(item, muster.Message) for item in batch)
                    if left <= 0:
                        self._is_joined()
                self.wake()
            late.cancel()
        finally:
            room.leave()

    def _is_joined(self) -> None:
        if not self.joined.done():
            self.joined.set_result(None)

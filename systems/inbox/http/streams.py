"""Event streams of inboxes: what comes into an inbox, as it comes.

Owns the watches of nodes, and which stream reads when. A hint of a node says who has something new; the stream then
reads after its cursor, so a lost hint costs time and no entry. A broadcast that follows a stream's last one is passed on
as it is: thousands of streams ask nothing. It must not know a route.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog

from muster_server.plane.calls import CallError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.counts import Counts
from muster_server.systems.http.named import needs_whole
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import Stream
from muster_server.systems.inbox.asking import Address, Inboxes
from muster_server.systems.inbox.http.bodies import shown
from muster_server.systems.inbox.shapes import Changes, Cursor, Entry, Page, Read

READS_AT_ONCE: Final = 16
PAGE: Final = 100
WAITING_MAX: Final = 256
"""Limit of events that wait for one reader; beyond it the stream reads them later."""
LOOK_S: Final = 1.0
AGAIN_S: Final = 0.5
SILENT_S: Final = 5.0
"""A watch that says nothing for this long is opened again: it says something each second."""


class InboxStreams:
    """The streams of one face. A `systems.http.streams.Streams`."""

    def __init__(
        self,
        inboxes: Inboxes,
        look: Callable[[], Awaitable[None]],
        options: Callable[[], HttpOptions],
        counts: Counts,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """`look`: looks up the nodes. Raises `Problem`."""
        self.draining = False
        self._look = look
        self._inboxes, self._options, self._counts, self._log = inboxes, options, counts, log
        self._streams: defaultdict[int, set[InboxStream]] = defaultdict(set)
        self._count = 0
        self._behind: deque[InboxStream] = deque()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: dict[Address, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return self._count

    # --- life ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """End all streams."""
        self.draining = True
        self.wake()

    def wake(self) -> None:
        """Have all streams look whether they may go on."""
        for streams in self._streams.values():
            for stream in streams:
                stream.wake()

    async def stop(self) -> None:
        """End all work."""
        tasks = [*self._tasks, *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, stream: "InboxStream") -> None:
        """As `Streams.open`. Raises `Problem`."""
        if self.draining:
            raise Problem("draining")
        if self._count >= self._options().streams_max:
            raise Problem("busy", "too many event streams at once")
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow())]
            self._tasks += [asyncio.create_task(self._read()) for _ in range(READS_AT_ONCE)]
        self._streams[stream.user].add(stream)
        self._count += 1
        stream.fall_behind()

    def close(self, stream: "InboxStream", reason: str) -> None:
        """As `Streams.close`."""
        mine = self._streams.get(stream.user)
        if mine is not None and stream in mine:
            mine.discard(stream)
            self._count -= 1
            if not mine:
                del self._streams[stream.user]
        stream.closed = True
        self._counts.add("http_streams_ended", "Event streams that ended, by reason", 1, reason=reason)

    def sent(self, length: int) -> None:
        """As `Streams.sent`."""
        self._counts.add("http_stream_bytes", "Bytes of events sent to streams", length)

    # --- hints of nodes -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Watch all nodes."""
        while True:
            with contextlib.suppress(Problem):
                await self._look()
            now = set(await self._inboxes.nodes())
            for gone in self._watches.keys() - now:
                self._watches.pop(gone).cancel()
            for address in now - self._watches.keys():
                self._watches[address] = asyncio.create_task(self._watch(address))
            await asyncio.sleep(LOOK_S)

    async def _watch(self, address: Address) -> None:
        while True:
            first = True
            try:
                async with contextlib.aclosing(self._inboxes.watch(address)) as changes:
                    while True:
                        async with asyncio.timeout(SILENT_S):
                            told = await anext(changes)
                        if first:  # what came before is not told
                            first = False
                            self._all_behind()
                        self._take(told)
            except (CallError, TimeoutError, StopAsyncIteration) as error:
                if not first:
                    self._log.warning("a watch of inboxes was lost; streams read again", cause=str(error))
            await asyncio.sleep(AGAIN_S)

    def _all_behind(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.fall_behind()

    def _take(self, told: Changes) -> None:
        for user in told.users:
            for stream in self._streams.get(user, ()):
                stream.fall_behind()
        for number, entry in told.broadcasts:
            body = data(entry)
            for streams in self._streams.values():
                for stream in streams:
                    stream.broadcast(number, entry, body)

    # --- reads --------------------------------------------------------------------------------------------------------

    def later(self, stream: "InboxStream") -> None:
        """Have a stream read after its cursor."""
        self._behind.append(stream)
        self._work.set()

    async def _read(self) -> None:
        while True:
            while not self._behind:
                self._work.clear()
                await self._work.wait()
            stream = self._behind.popleft()
            if stream.closed:
                continue
            asked = Read(stream.user, after=stream.cursor, limit=PAGE)
            stream.begin_read()
            try:
                page = await self._inboxes.ask(asked, Page)
            except CallError:
                with contextlib.suppress(Problem):
                    await self._look()
                await asyncio.sleep(AGAIN_S)
                stream.end_read(None)
                continue
            stream.end_read(page)


class InboxStream(Stream):
    """The stream of one reader."""

    def __init__(
        self,
        streams: InboxStreams,
        user: int,
        name: str | None,
        cursor: Cursor,
        caller: Caller,
        options: HttpOptions,
    ) -> None:
        """`name`: by which an API key named the user."""
        super().__init__(streams, caller, options.heartbeat_s, options.stall_s)
        self.user, self.cursor, self.closed = user, cursor, False
        self._all, self._name = streams, name
        self._events: list[bytes] = []
        self._reads = self._is_behind = self._waits = False
        self._audiences: dict[str, int] = {}
        self._hidden: Sequence[str] = ()
        self._known = False
        """Whether the audiences are those of a read."""

    def fall_behind(self) -> None:
        """There is something after the cursor, or there may be."""
        self._is_behind = True
        if not self._reads and not self._waits and len(self._events) < WAITING_MAX:
            self._waits = True
            self._all.later(self)

    def begin_read(self) -> None:
        """A read begins; what comes from now on needs another one."""
        self._reads, self._waits, self._is_behind = True, False, False

    def end_read(self, page: Page | None) -> None:
        """Take a page; None: it could not be read."""
        self._reads = False
        if page is None:
            self.fall_behind()
            return
        self._audiences, self._hidden, self._known = page.audiences, page.hidden, True
        seq, number = self.cursor.seq, self.cursor.number
        for place, entry in enumerate(page.entries, 1):
            if entry.audience:
                number = int(entry.id[1:])
            else:
                seq = int(entry.id)
            at = page.end if place == len(page.entries) else Cursor(seq, number)
            self._events.append(_event(at, data(entry)))
        self.cursor = page.end
        if page.more or self._is_behind:
            self.fall_behind()
        self.wake()

    def broadcast(self, number: int, entry: Entry, body: bytes) -> None:
        """A broadcast has come, perhaps for this user."""
        at = self.cursor
        busy = self._reads or self._is_behind or not self._known or len(self._events) >= WAITING_MAX
        if busy or number != at.number + 1:
            if number > at.number:
                self.fall_behind()
            return
        self.cursor = Cursor(at.seq, number)
        if entry.audience in self._audiences and entry.kind not in self._hidden:
            self._events.append(_event(self.cursor, body))
            self.wake()

    def take(self) -> bytes:
        """The events that wait."""
        if not self._events:
            return b""
        chunk = b"".join(self._events)
        self._events.clear()
        if self._is_behind:
            self.fall_behind()
        return chunk

    def allowed(self) -> bool:
        """Whether the caller may still read the inbox; the end of a token is checked beside this."""
        return self._name is None or self.caller.may("inbox", self._name, whole=needs_whole(self._name))

    def over(self) -> str:
        """Never: a stream waits for nodes."""
        return ""


def data(entry: Entry) -> bytes:
    """The block of an event but its id."""
    return b"data: %s\n\n" % msgspec.json.encode(shown(entry))


def _event(at: Cursor, body: bytes) -> bytes:
    return b"id: %d-%d\n%s" % (at.seq, at.number, body)

"""Event streams: what all have, that of a room, and the reason of an end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import muster
from muster_server.systems.http.access import Caller
from muster_server.systems.http.connection import Connection
from muster_server.systems.http.front import Ongoing
from muster_server.systems.http.streams import BEGIN, COMMENT, Send, goodbye
from muster_server.systems.rooms.http.feeds import Feed, Known


class Streams(Protocol):
    """The set of all streams."""

    @property
    def draining(self) -> bool:
        """Whether all must end."""

    def open(self, stream: "Stream") -> None:
        """Add a stream. Raises `Problem`."""

    def close(self, stream: "Stream", reason: str) -> None:
        """Remove a stream."""

    def sent(self, length: int) -> None:
        """Count bytes."""


class Source(Protocol):
    """What a stream reads."""

    readers: set[Callable[[], None]]
    """Each is called when there is something for it."""
    idle_since: float | None
    """The time since it has no reader; None while it has some."""
    ended: muster.MusterError | None

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""


class Stream:
    """One event stream: a reader of a source. A kind of stream says what it takes and who may have it."""

    def __init__(self, streams: Streams, source: Source, caller: Caller, begin: bytes, stall_s: float) -> None:
        self.source, self.caller = source, caller
        self._streams, self._begin, self._stall_s = streams, begin, stall_s
        self._woken = asyncio.Event()
        self._beats = False
        self.wake: Callable[[], None] = self._woken.set

    def take(self) -> bytes:
        """The next events; empty where there are none."""
        raise NotImplementedError

    def may(self) -> bool:
        """Whether the caller may still have them."""
        raise NotImplementedError

    async def written(self, connection: Connection | None) -> None:
        """The events that were taken last were written."""

    def beat(self) -> None:
        """Send a heartbeat if there are no events."""
        self._beats = True
        self.wake()

    async def run(self, send: Send, request: Ongoing, headers: Any) -> None:
        """Send until the stream is ended."""
        request.stream()
        connection = request.connection
        if connection is not None:
            connection.on_lost = self.wake
        reason, stall_s = "defect", self._stall_s
        self._streams.open(self)
        try:
            async with asyncio.timeout(None) as stalled:
                loop = asyncio.get_running_loop()

                async def say(body: bytes, more: bool = True) -> None:
                    stalled.reschedule(loop.time() + stall_s)
                    await send({"type": "http.response.body", "body": body, "more_body": more})
                    stalled.reschedule(None)
                    self._streams.sent(len(body))

                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await say(BEGIN + self._begin)
                while True:
                    if connection is not None and connection.gone:
                        reason = "left"
                        return
                    if chunk := self.take():
                        self._beats = False
                        await say(chunk)
                        stalled.reschedule(loop.time() + stall_s)
                        await self.written(connection)
                        stalled.reschedule(None)
                    elif ended := self._ended():
                        reason = ended
                        await say(goodbye(reason), more=False)
                        return
                    elif self._beats:
                        self._beats = False
                        await say(COMMENT)
                    else:
                        self._woken.clear()
                        await self._woken.wait()
        except TimeoutError:
            reason = "stalled"
            if connection is not None:
                connection.abort()
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            self._streams.close(self, reason)

    def _ended(self) -> str:
        """The reason for which the stream must end now; empty while it continues."""
        if self._streams.draining:
            return "draining"
        if not self.may():
            return "revoked"
        if self.caller.until is not None and time.time() > self.caller.until:
            return "expired"
        if self.source.over:
            return "unavailable" if self.source.ended is None else self.source.ended.code
        return ""


class RoomStream(Stream):
    """A reader of a room, with a cursor into its ring."""

    def __init__(
        self, streams: Streams, feed: Feed, caller: Caller, gaps: bytes, cursor: int, known: Known, stall_s: float
    ) -> None:
        super().__init__(streams, feed, caller, gaps, stall_s)
        self._feed, self._cursor, self._known = feed, cursor, known

    def take(self) -> bytes:
        """As `Stream.take`."""
        chunk, self._cursor, self._known = self._feed.ring.take(self._cursor, self._known)
        return chunk

    def may(self) -> bool:
        """As `Stream.may`."""
        return self.caller.may("read", self._feed.room)

"""One event stream: a reader of a room, its events, and the reason of its end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from muster_server.systems.http.access import Caller
from muster_server.systems.http.front import Ongoing
from muster_server.systems.http.streams import BEGIN, COMMENT, Send, goodbye
from muster_server.systems.rooms.http.feeds import Feed, Offsets


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


class Stream:
    """One event stream: a reader of a feed, and the reason of its end."""

    def __init__(
        self, streams: Streams, feed: Feed, caller: Caller, gaps: bytes, cursor: int, known: Offsets, stall_s: float
    ) -> None:
        self.feed = feed
        self._streams, self._caller, self._stall_s = streams, caller, stall_s
        self._gaps, self._cursor, self._known = gaps, cursor, known
        self._woken = asyncio.Event()
        self._beats = False
        self.wake: Callable[[], None] = self._woken.set

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
                await say(BEGIN + self._gaps)
                while True:
                    if connection is not None and connection.gone:
                        reason = "left"
                        return
                    chunk, self._cursor, self._known = self.feed.ring.take(self._cursor, self._known)
                    if chunk:
                        self._beats = False
                        await say(chunk)
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
        if not self._caller.may("read", self.feed.room):
            return "revoked"
        if self._caller.until is not None and time.time() > self._caller.until:
            return "expired"
        if self.feed.over:
            return "unavailable" if self.feed.ended is None else self.feed.ended.code
        return ""

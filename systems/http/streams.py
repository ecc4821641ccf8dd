"""Event streams: a response that lasts, its heartbeats, its stalls and the reason of its end. Knows no system."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse

from muster_server.systems.http.access import Caller
from muster_server.systems.http.connection import Connection
from muster_server.systems.http.front import Ongoing

RETRY_MS: Final = 1_000
"""Pause before clients reconnect."""

Send = Callable[[Any], Coroutine[Any, Any, None]]


class _StreamResponse(ASGIResponse):
    """Runs a stream as the body of a response."""

    __slots__ = ("ongoing", "stream")
    _should_set_content_length = False
    ongoing: Ongoing
    stream: "Stream"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream."""
        await self.stream.run(send, self.ongoing, self.encode_headers())


class EventStream(Response[bytes]):
    """The response of a route."""

    def __init__(self, stream: "Stream") -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._stream = stream

    def to_asgi_response(self, app: Any, request: Any, **options: Any) -> ASGIResponse:
        """In the form of the framework."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        response = _StreamResponse(media_type="text/event-stream", headers=headers)
        response.stream, response.ongoing = self._stream, request.scope["state"]["request"]
        return response


COMMENT: Final = b":\n"
"""It says that the stream lives. Without an empty line, at which readers as httpx-sse would tell an event without data."""
BEGIN: Final = f"retry: {RETRY_MS}\n".encode()
"""The begin of a stream, of the block of its first event."""


def event(name: str, data: Any, id: str = "") -> bytes:
    """One event with a name and JSON, and perhaps an id."""
    known = f"id: {id}\n".encode() if id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (known, name.encode(), msgspec.json.encode(data))


ENDED: Final = "ended"
"""The reason of an end by an operator, and the id of its `goodbye`. An `EventSource` comes back with this id and gets 204,
which ends its retries."""


def goodbye(reason: str) -> bytes:
    """The last event."""
    return event("goodbye", {"reason": reason, "retry_ms": RETRY_MS}, ENDED if reason == ENDED else "")


class Streams(Protocol):
    """The streams of one system."""

    @property
    def draining(self) -> bool:
        """Whether all must end."""

    def open(self, stream: Any) -> None:
        """Add a stream. Raises `Problem`."""

    def close(self, stream: Any, reason: str) -> None:
        """Remove a stream."""

    def sent(self, length: int) -> None:
        """Count bytes."""


class Stream(ABC):
    """One event stream. A system says what it sends, and when it ends; `wake` makes it look again."""

    def __init__(self, streams: Streams, caller: Caller, heartbeat_s: float, stall_s: float) -> None:
        self.caller = caller
        self._streams, self._heartbeat_s, self._stall_s = streams, heartbeat_s, stall_s
        self._woken = asyncio.Event()
        self._beats = False
        self.wake: Callable[[], None] = self._woken.set

    @abstractmethod
    def take(self) -> bytes | None:
        """The next events; empty: none now; None: there will be none any more."""

    @abstractmethod
    def allowed(self) -> bool:
        """Whether the caller may still read it."""

    @abstractmethod
    def over(self) -> str:
        """The system's own reason to end the stream now; empty while it goes on."""

    def begin(self) -> bytes:
        """The first events."""
        return b""

    async def written(self, connection: Connection | None) -> None:  # noqa: B027 - not every stream asks
        """Called once the events of the last `take` were written."""

    async def stop(self) -> None:  # noqa: B027 - not every stream has something to leave
        """Called once the stream has ended."""

    async def run(self, send: Send, request: Ongoing, headers: Any) -> None:
        """Send until the stream has ended."""
        request.stream()
        connection = request.connection
        if connection is not None:
            connection.on_lost = self.wake
        reason, stall_s = "defect", self._stall_s
        loop = asyncio.get_running_loop()
        self._streams.open(self)
        self._beat_later(loop)
        try:
            async with asyncio.timeout(None) as stalled:

                async def say(body: bytes, more: bool = True) -> None:
                    stalled.reschedule(loop.time() + stall_s)
                    await send({"type": "http.response.body", "body": body, "more_body": more})
                    stalled.reschedule(None)
                    self._streams.sent(len(body))

                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await say(BEGIN + self.begin())
                while True:
                    if connection is not None and connection.gone:
                        reason = "left"
                        return
                    chunk = self.take()
                    if chunk is None:
                        reason = "ended"
                        await say(b"", more=False)
                        return
                    if chunk:
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
            self._timer.cancel()
            await self.stop()
            self._streams.close(self, reason)

    def _beat_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._heartbeat_s, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the stream send a heartbeat unless there are events."""
        self._beats = True
        self.wake()
        self._beat_later(loop)

    def _ended(self) -> str:
        """The reason for the stream to end now; empty while it goes on."""
        if self._streams.draining:
            return "draining"
        if not self.allowed():
            return "revoked"
        if self.caller.until is not None and time.time() > self.caller.until:
            return "expired"
        return self.over()

"""A response that lasts: an event stream, which its owner runs. Knows no system."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse

from muster_server.systems.http.front import Ongoing

RETRY_MS: Final = 1_000
"""Pause before clients reconnect, in ms."""

Send = Callable[[Any], Coroutine[Any, Any, None]]


class Runs(Protocol):
    """One stream."""

    async def run(self, send: Send, request: Ongoing, headers: Any) -> None:
        """Send until the stream is ended."""


class _StreamResponse(ASGIResponse):
    """Runs a stream as the body of a response."""

    __slots__ = ("ongoing", "stream")
    _should_set_content_length = False
    ongoing: Ongoing
    stream: Runs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream."""
        await self.stream.run(send, self.ongoing, self.encode_headers())


class EventStream(Response[bytes]):
    """The response of a route."""

    def __init__(self, stream: Runs) -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._stream = stream

    def to_asgi_response(self, app: Any, request: Any, **options: Any) -> ASGIResponse:
        """The response in the framework's form."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        response = _StreamResponse(media_type="text/event-stream", headers=headers)
        response.stream, response.ongoing = self._stream, request.scope["state"]["request"]
        return response


COMMENT: Final = b":\n"
"""A comment that shows that the stream is alive. It has no blank line, which some readers, for example httpx-sse, would
take for an empty event."""
BEGIN: Final = f"retry: {RETRY_MS}\n".encode()
"""The beginning of a stream, part of the block of its first event."""


def event(name: str, data: Any, id: str = "") -> bytes:
    """One event with a name and JSON, and optionally an id."""
    known = f"id: {id}\n".encode() if id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (known, name.encode(), msgspec.json.encode(data))


def goodbye(reason: str) -> bytes:
    """The last event."""
    return event("goodbye", {"reason": reason, "retry_ms": RETRY_MS})

"""One TCP connection: limits of its unread input, and of its time.

Bounds the head of a request in bytes and seconds, and the number of connections. Knows no route and no caller.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from muster_server.systems.http.counts import Counts
from muster_server.systems.http.problems import CONTENT_TYPE, Problem

LOOK_S, LOOK_S_MAX = 0.001, 0.05
"""Between looks whether the peer's system has all bytes: doubled up to the second figure."""
LINE_BYTES: Final = 4
"""Bytes of `: ` and the line end of each header."""


class Connection(HttpToolsProtocol):
    """Made by `connection` with the limits of one server."""

    head_bytes_max: int
    head_s_max: float
    connections_max: int
    counts: Counts

    _due: asyncio.TimerHandle | None = None
    _in_head = True
    _unread = _head = 0
    _refused = ""
    on_lost: Callable[[], None] | None = None
    """Called once the peer has closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection if the limit allows."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self.counts.rejected("connections")
            transport.abort()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Inform its writer."""
        self._stop_waiting()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    @property
    def gone(self) -> bool:
        """Whether nothing can be written any more."""
        return self.transport.is_closing()

    def abort(self) -> None:
        """Close at once, and discard everything that the peer did not read."""
        self.transport.abort()

    async def received(self) -> bool:
        """Return once the peer's system has acknowledged all bytes; false: it is gone, and may lack some."""
        pause_s = LOOK_S
        while not self.gone:
            if not self.transport.get_write_buffer_size() and not self._unacknowledged():
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S_MAX)
        return False

    def _unacknowledged(self) -> int:
        """Bytes in the socket that the peer's system has not acknowledged."""
        connected = self.transport.get_extra_info("socket")
        queued = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", queued)[0])

    def data_received(self, data: bytes) -> None:
        """Parse; a head beyond the limits is refused."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._unread += len(data)
            if self._unread > self.head_bytes_max:
                self._refuse("head_too_long")

    def on_message_begin(self) -> None:
        """A new head begins."""
        self._in_head, self._unread, self._head = True, 0, 0
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_url(self, url: bytes) -> None:
        """Count the bytes."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes."""
        self._count(len(name) + len(value) + LINE_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head, self._unread = False, 0
        self._stop_waiting()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            cycle: Any = self.cycle
            cycle.send = Plain(cycle).send

    def on_response_complete(self) -> None:
        """Start the time limit for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP, or is beyond the limits."""
        self._refuse(self._refused or "bad_request", msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Do not log: input of strangers could fill the log."""

    def _count(self, length: int) -> None:
        self._head += length
        if self._head > self.head_bytes_max:
            self._refused = "head_too_long"
            raise ValueError(self._refused)  # ends the parser, and comes back as `send_400_response`

    def _refuse(self, code: str, detail: str = "") -> None:
        problem = Problem(code, "" if code == "head_too_long" else detail)
        body = problem.body("")
        self.counts.rejected(code)
        lines = [STATUS_LINE[problem.kind.status], b"content-type: ", CONTENT_TYPE.encode(), b"\r\n"]
        lines += [b"content-length: ", str(len(body)).encode(), b"\r\nconnection: close\r\n\r\n", body]
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(b"".join(lines))
        self.transport.close()

    def _wait(self) -> None:
        self._stop_waiting()
        self._due = self.loop.call_later(self.head_s_max, self.abort)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class Plain:
    """Sends an answer to HTTP/1.0, which has no chunks: an answer without a length ends with the connection."""

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._send = cycle, cycle.send
        self._endless = False

    async def send(self, message: Any) -> None:
        """As `RequestResponseCycle.send`."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            bodiless = cycle.scope["method"] == "HEAD" or message["status"] in {204, 304}
            self._endless = b"content-length" not in names and not bodiless
        if not self._endless:
            await self._send(message)
            return
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            cycle.response_started, cycle.waiting_for_100_continue = True, False
            lines = [STATUS_LINE[message["status"]]]
            lines += [b"%s: %s\r\n" % each for each in message["headers"]]
            cycle.transport.write(b"".join([*lines, b"connection: close\r\n\r\n"]))
            return
        cycle.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            cycle.response_complete, cycle.keep_alive = True, False
            cycle.message_event.set()
            cycle.transport.close()
            cycle.on_response()


def connection(
    counts: Counts, *, head_bytes_max: int, head_s_max: float, connections_max: int
) -> type[asyncio.Protocol]:
    """The class of connections with these limits."""
    limits: dict[str, Any] = {
        "counts": counts,
        "head_bytes_max": head_bytes_max,
        "head_s_max": head_s_max,
        "connections_max": connections_max,
    }
    return type("LimitedConnection", (Connection,), limits)

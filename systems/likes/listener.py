"""The sockets of clients: bytes go to the engine with one call per read, replies are sent once they are durable.

Owns connections and their number. Knows no command: the engine parses and answers.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, cast

from muster.clock import now_ms
from muster_server._engines import LikesEngine
from muster_server.systems.likes.logged import Logged

BACKLOG: Final = 1_024
TOO_MANY: Final = b"-ERR max number of clients reached\r\n"
WRITE_HIGH_BYTES: Final = 256 << 10
"""Limit of replies in a socket; beyond it no more are taken from the engine, which bounds its own."""


class Listener:
    """All clients of one engine. Call `start`, then `close`.

    `logged`: for an engine whose log is elsewhere; `keeps`: whether it has a log at all. `guard` is called before the
    engine may answer a question.
    """

    def __init__(
        self,
        engine: LikesEngine,
        connections_max: int,
        logged: Logged | None = None,
        *,
        keeps: bool = True,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.engine, self.connections_max, self._logged = engine, connections_max, logged
        self.guard = guard
        self.clients: dict[int, Client] = {}
        self.accepted = self.refused = self.batches = 0
        self._server: asyncio.Server | None = None
        self._watches = keeps and logged is None
        self._draining = False

    async def start(self, bind: tuple[str, int], tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen; returns the bound address. Raises `OSError` if it is in use."""
        loop = asyncio.get_running_loop()
        if self._watches:
            loop.add_reader(self.engine.fileno(), self._durable)
        elif self._logged is not None:
            self._logged.done = self._answered
        self._server = await loop.create_server(lambda: Client(self), *bind, ssl=tls, backlog=BACKLOG)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, int(port)

    async def drain(self, drain_s: float) -> None:
        """Accept no more clients and bytes; wait until everything accepted is answered, for at most `drain_s` seconds."""
        self._stop_accepting()
        await self.hold(drain_s)

    async def hold(self, hold_s: float) -> None:
        """Accept no more bytes; wait until everything accepted is answered, for at most `hold_s` seconds."""
        self._draining = True
        for client in list(self.clients.values()):
            client.follow()
        deadline = time.monotonic() + hold_s
        while self.engine.pending() and time.monotonic() < deadline:  # noqa: ASYNC110 - the engine tells no one else
            await asyncio.sleep(0.001)

    def go_on(self) -> None:
        """Accept bytes again; those that came since `hold` go first."""
        self._draining = False
        for client in list(self.clients.values()):
            client.go_on()

    def unwatch(self) -> None:
        """Called before the engine's log is closed."""
        if self._watches:
            self._watches = False
            asyncio.get_running_loop().remove_reader(self.engine.fileno())
        self._logged = None

    def close(self) -> None:
        """Close all connections, after writing what can be written at once."""
        self._stop_accepting()
        self.unwatch()
        for client in list(self.clients.values()):
            client.transport.close()

    def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def write(self) -> None:
        """Write replies to all connections that have some."""
        while ready := self.engine.ready():
            for number in ready:
                if (client := self.clients.get(number)) is not None:
                    client.write()
        if self._logged is not None:
            self._logged.begin()

    @property
    def draining(self) -> bool:
        """Whether no more bytes are accepted."""
        return self._draining

    def _durable(self) -> None:
        if self.guard is not None:
            self.guard()
        self.engine.durable(now_ms())
        self._answered()

    def _answered(self) -> None:
        self.batches += 1
        self.write()


class Client(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, listener: Listener) -> None:
        self._listener, self._engine = listener, listener.engine
        self._number = -1
        self._slow = self._full = False
        self._held = b""
        """Bytes that came while none were accepted: of a new connection, or of TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection if the limit allows."""
        # uvloop's transport class does not inherit from `asyncio.Transport`
        self.transport = cast(asyncio.Transport, transport)
        listener = self._listener
        if len(listener.clients) >= listener.connections_max:
            listener.refused += 1
            self.transport.write(TOO_MANY)
            self.transport.close()
            return
        listener.accepted += 1
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._number = self._engine.connect()
        listener.clients[self._number] = self
        self.follow()

    def connection_lost(self, _error: Exception | None) -> None:
        """Changes that were accepted stay."""
        if self._listener.clients.pop(self._number, None) is not None:
            self._engine.disconnect(self._number)

    def data_received(self, data: bytes) -> None:
        """Make one call for all commands in the bytes."""
        if self._number < 0:
            return
        if self._listener.draining:
            self._held += data
            return
        if self._listener.guard is not None:
            self._listener.guard()
        if self._engine.feed(self._number, data, now_ms()):
            self._full = True
            self.follow()
        self._listener.write()

    def go_on(self) -> None:
        """Accept bytes again."""
        held, self._held = self._held, b""
        if held:
            self.data_received(held)
        self.follow()

    def pause_writing(self) -> None:
        """The client does not read: send it no more replies, so accept no more commands."""
        self._slow = True
        self.follow()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._slow = False
        self.write()
        self._listener.write()  # unparsed bytes may contain changes

    def write(self) -> None:
        """Write replies that are ready."""
        if self._slow or self.transport.is_closing():
            return
        if self._listener.guard is not None:
            self._listener.guard()
        replies, ends, self._full = self._engine.take(self._number, now_ms())
        self.transport.write(replies)
        if ends:
            self.transport.close()
        else:
            self.follow()

    def follow(self) -> None:
        """Read only while there is room."""
        if self.transport.is_closing():
            return
        if self._slow or self._full or self._listener.draining:
            self.transport.pause_reading()
        elif not self.transport.is_reading():
            self.transport.resume_reading()


def context(cert_file: str, key_file: str) -> ssl.SSLContext | None:
    """The TLS context of a node; None without a certificate. Raises `OSError` and `ssl.SSLError`."""
    if not cert_file:
        return None
    made: Any = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(cert_file, key_file or None)
    return cast(ssl.SSLContext, made)

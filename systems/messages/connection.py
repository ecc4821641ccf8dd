"""One HTTP/1.1 connection to a node of the system: a request is sent, its answer is read, whole or in parts.

Owns the socket and the parsing of answers, by the library httptools. It must not know the content of requests, nor the
node.
A general client costs a millisecond per request; thousands of messages a second go through these.
"""

import asyncio
from typing import Final

import httptools

ENDED: Final = "the connection ended"


class Broken(Exception):
    """The connection failed, or the answer is not HTTP. The request may have been carried out. The text is one line."""


class Connection(asyncio.Protocol):
    """One request at a time. `open`: it can send one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[int] | None = None
        """The status of the awaited answer."""
        self._parts: list[bytes] = []
        self._more = asyncio.Event()
        self._whole = True
        self._failure = ""
        self.used_at = self._loop.time()

    @property
    def open(self) -> bool:
        """Whether it can send a request."""
        return self._whole and not self._failure

    # --- requests -----------------------------------------------------------------------------------------------

    async def ask(self, head: bytes, body: bytes) -> int:
        """Send a request, whose head has no end yet; returns the status of the answer. Raises `Broken`."""
        if self._transport is None or self._failure:
            raise Broken(self._failure or ENDED)
        self._parts = []
        self._whole = False
        self._head = self._loop.create_future()
        self._transport.writelines((head, b"content-length: %d\r\n\r\n" % len(body), body))
        return await self._head

    async def body(self) -> bytes:
        """Return the whole body of the answer. Raises `Broken`."""
        parts: list[bytes] = []
        while (part := await self.part()) is not None:
            parts.append(part)
        return b"".join(parts)

    async def part(self) -> bytes | None:
        """Return the next part of the body; None: it is complete. Raises `Broken`."""
        while not self._parts:
            if self._whole:
                self.used_at = self._loop.time()
                return None
            if self._failure:
                raise Broken(self._failure)
            self._more.clear()
            await self._more.wait()
        part, self._parts = b"".join(self._parts), []
        return part

    def abort(self) -> None:
        """Close it at once."""
        self._fail(ENDED)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        if self._transport is not None:
            self._transport.abort()
        if self._head is not None and not self._head.done():
            self._head.set_exception(Broken(self._failure))
        self._more.set()

    # --- called by the loop and the parser ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """As `asyncio.Protocol`."""
        self._transport = None
        self._fail(str(error) if error else ENDED)

    def on_headers_complete(self) -> None:
        """As httptools calls it."""
        if self._head is not None and not self._head.done():
            self._head.set_result(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        """As httptools calls it."""
        self._parts.append(body)
        self._more.set()

    def on_message_complete(self) -> None:
        """As httptools calls it."""
        self._whole = True
        self._more.set()
        if not self._parser.should_keep_alive():
            self._fail(ENDED)


async def connect(host: str, port: int) -> Connection:
    """Open a connection. Raises `OSError`."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection

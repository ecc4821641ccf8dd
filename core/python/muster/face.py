"""Connections of an asyncio program to an HTTP face: several, kept open, one question at a time on each.

Owns HTTP/1.1 as far as a face speaks it, and what a failure means. It must not know what is asked. Needs nothing beside
Python.
"""

import asyncio
import json
import ssl
import time
from typing import Any, Final
from urllib.parse import urlsplit

from .errors import Invalid, MusterError, Refused, TimedOut, Unavailable

TIMEOUT_S: Final = 30.0
CONNECTIONS: Final = 4
IDLE_S: Final = 5.0
"""A connection that was idle for longer is opened anew: a face closes idle ones."""
HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 256 << 20


class Face:
    """Asks one HTTP face from one loop. `close` once."""

    def __init__(
        self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S, connections: int = CONNECTIONS
    ) -> None:
        """`url`: `http://host:port` or `https://…`, of the face or the proxy before it. `key`: an API key, or `token`: that
        of a user. Raises `Invalid`."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise Invalid(f"invalid URL {url!r:.80} of an HTTP face (expected for example http://127.0.0.1:8080)")
        if bool(key) == bool(token) or not (key or token).isascii() or not (key or token).isprintable():
            raise Invalid("missing or invalid credential: give an API key (muster key create), or a user's token")
        if connections < 1:
            raise Invalid(f"invalid connections {connections} (expected at least 1)")
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._timeout = timeout
        credential = f"x-api-key: {key}" if key else f"authorization: Bearer {token}"
        self._head = f"host: {parts.netloc.rpartition('@')[2]}\r\n{credential}\r\n"
        self._places = asyncio.Semaphore(connections)
        self._most = connections
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._closed = False

    async def ask(self, method: str, path: str, document: Any = None) -> Any:
        """The answer, from JSON. Raises `Refused`; `Unavailable` and `TimedOut`: it may be done all the same."""
        async with self._places:
            return await self._ask(method, path, document, self._timeout)

    async def wait(self, method: str, path: str, document: Any, wait_s: float) -> Any:
        """The same for a question whose answer may take `wait_s` longer: it takes no place of others. Cancelled, it is asked
        no more, and the face learns of it."""
        return await self._ask(method, path, document, wait_s + self._timeout)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)

    async def _ask(self, method: str, path: str, document: Any, timeout_s: float) -> Any:
        if self._closed:
            raise Invalid("the connections to the HTTP face are closed")
        body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n"
        if document is not None:
            head += "content-type: application/json\r\n"
        connection: _Connection | None = None
        whole = False
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                status, content = await connection.ask(head.encode() + b"\r\n" + body)
                whole = True
        except TimeoutError:
            raise TimedOut("no answer in time; the call may have succeeded") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Unavailable(f"the HTTP face does not answer: {error or type(error).__name__}") from None
        finally:
            if connection is not None:
                self._give_back(connection, whole)
        try:
            said = json.loads(content)
        except ValueError:
            raise Unavailable(f"unexpected answer {status}: the server is not a Muster HTTP face") from None
        if status >= 400:
            raise problem(said)
        return said

    async def _connected(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_good and time.monotonic() - connection.used < IDLE_S:
                return connection
            self._drop(connection)
        context = ssl.create_default_context() if self._tls else None
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context, limit=HEAD_BYTES_MAX)
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection

    def _give_back(self, connection: "_Connection", whole: bool) -> None:
        if whole and connection.is_good and not self._closed and len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.close()


class _Connection:
    """A connection to the face."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._keeps = True
        self.used = time.monotonic()

    @property
    def is_good(self) -> bool:
        """Whether it can take a question."""
        return self._keeps and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close it, also amid an answer."""
        self._writer.transport.abort()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises `OSError`, `EOFError`, `ValueError`."""
        self._writer.write(request)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        version, status = lines[0].split(b" ", 2)[:2]
        if not version.startswith(b"HTTP/1."):
            raise ValueError("the answer is not HTTP")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines[1:])
        }
        self._keeps = headers.get(b"connection", b"").lower() != b"close"
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = await self._chunks()
        else:
            body = await self._reader.readexactly(_length(headers.get(b"content-length", b"")))
        self.used = time.monotonic()
        return int(status), body

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while length := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            size += length
            if size > BODY_BYTES_MAX:
                raise ValueError("the answer is too long")
            parts.append((await self._reader.readexactly(length + 2))[:-2])
        await self._reader.readuntil(b"\r\n")
        return b"".join(parts)


def _length(text: bytes) -> int:
    if not text:
        raise ValueError("the answer has no Content-Length")
    length = int(text)
    if not 0 <= length <= BODY_BYTES_MAX:
        raise ValueError("the answer is too long")
    return length


def problem(said: Any) -> MusterError:
    """The error that a problem in JSON is (RFC 9457). Other JSON comes from another server, as a proxy."""
    if not isinstance(said, dict):
        return Unavailable("the server that answers is not a Muster HTTP face")
    code, detail = str(said.get("code", "unavailable")), str(said.get("detail", ""))
    if code == "timeout":
        return TimedOut(detail)
    if code in {"unavailable", "draining"}:
        return Unavailable(detail)
    return Refused(detail, code, said.get("retry_after"))

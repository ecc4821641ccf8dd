"""An HTTP server that answers as a test scripts it: bytes as they come, cut off, late or never."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request. `connection` numbers connections from 1."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body, from JSON."""
        return json.loads(self.body) if self.body else None


Answer = Callable[[Asked], Awaitable[bytes | None]]
"""The whole answer; None: the connection ends instead."""


class Scripted:
    """`answer` is asked for each request. `async with`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.now = self.most = self.connections = self.gone = 0
        """Requests under way, the most of them at once, connections so far, and connections that clients ended."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while asked := await _read(reader, number):
                self.asked.append(asked)
                self.now += 1
                self.most = max(self.most, self.now)
                answering = asyncio.ensure_future(self.answer(asked))
                ended = asyncio.ensure_future(reader.read(1))  # a client sends nothing before its answer
                await asyncio.wait({answering, ended}, return_when=asyncio.FIRST_COMPLETED)
                self.now -= 1
                if not answering.done():
                    answering.cancel()
                    break
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)
                said = answering.result()
                if said is None:
                    break
                writer.write(said)
        finally:
            self.gone += 1
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, number: int) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, OSError):
        return None
    method, path, _ = first.split(" ")
    return Asked(number, method, path, headers, body)


def said(document: Any, status: int = 200, *more: str) -> bytes:
    """An answer in JSON."""
    body = json.dumps(document).encode()
    head = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def problem(status: int, code: str, **more: Any) -> bytes:
    """A problem (RFC 9457) as an HTTP face answers it."""
    return said({"code": code, "detail": f"because of {code}", **more}, status)

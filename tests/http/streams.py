"""A reader of server-sent events over a bare socket: a thousand of them cost nothing, and one can stop to read."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


class Event(NamedTuple):
    """One event; a comment has the name `comment`."""

    name: str
    id: str
    data: Any


class Reader:
    """One stream. Raises `EOFError` at its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._text = b""
        self.head = b""

    async def start(self) -> None:
        """Read the head; it has to be that of a stream."""
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in self.head.split(b"\r\n")[0], self.head
        assert b"text/event-stream" in self.head

    async def event(self) -> Event:
        """The next one, comments and pauses before a reconnection too."""
        fields: dict[str, str] = {}
        while line := await self._line():
            if line.startswith((":", "retry:")):
                return Event("comment", "", line)
            name, _, value = line.partition(": ")
            fields[name] = value
        assert "data" in fields, "an empty line without an event before it"
        return Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))

    async def _line(self) -> str:
        while b"\n" not in self._text:
            size = int((await self._reader.readuntil(b"\r\n")).strip() or b"0", 16)
            if not size:
                raise EOFError
            self._text += (await self._reader.readexactly(size + 2))[:-2]
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    async def message(self) -> Event:
        """The next one that is no comment."""
        while (found := await self.event()).name == "comment":
            continue
        return found

    async def messages(self, count: int) -> list[Event]:
        """The next so many."""
        return [await self.message() for _ in range(count)]


@contextlib.asynccontextmanager
async def stream(
    address: tuple[str, int], path: str, key: str, headers: dict[str, str] | None = None, limit: int = 1 << 20
) -> AsyncIterator[Reader]:
    """Open one."""
    reader, writer = await asyncio.open_connection(*address, limit=limit)
    try:
        asked = {"host": "localhost", "accept": "text/event-stream", "x-api-key": key, **(headers or {})}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        found = Reader(reader, writer)
        await found.start()
        yield found
    finally:
        writer.transport.abort()

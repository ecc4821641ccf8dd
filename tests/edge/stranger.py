"""A client by a plain socket, which keeps to no rule: any bytes, at any pace."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

PATH: Final = "/connection/websocket"
CLOSE: Final = 8


def head(address: str, *more: str) -> bytes:
    """An upgrade request with further headers."""
    lines = (
        f"GET {PATH} HTTP/1.1",
        f"Host: {address}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *more,
    )
    return "\r\n".join([*lines, "", ""]).encode()


def frame(payload: bytes, first: int = 0x81, announced: int | None = None) -> bytes:
    """A masked frame. `first`: its first byte; `announced`: its length as the head says it."""
    size = len(payload) if announced is None else announced
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = bytes([0x80 | 126]) + size.to_bytes(2)
    else:
        length = bytes([0x80 | 127]) + size.to_bytes(8)
    mask = os.urandom(4)
    return bytes([first]) + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


class Stranger:
    """One connection."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address, self.reader, self.writer = address, reader, writer
        self._messages: list[Any] = []

    async def upgrade(self, *more: str) -> str:
        """Ask for it. Returns the head of the answer."""
        self.writer.write(head(self.address, *more))
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    def say(self, command: Any) -> None:
        """Send one command."""
        self.writer.write(frame(json.dumps(command).encode()))

    async def connect(self, token: str) -> Any:
        """Upgrade, and show a token. Returns the reply."""
        assert " 101 " in await self.upgrade()
        self.say({"id": 1, "connect": {"token": token}})
        return await self.reply(1)

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: its opcode and its payload."""
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def message(self) -> Any:
        """The next message that is no ping, or the code of a close frame as `{"close": CODE}`."""
        while not self._messages:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                return {"close": int.from_bytes(payload[:2])}
            self._messages = [told for line in payload.splitlines() if (told := json.loads(line)) != {}]
        return self._messages.pop(0)

    async def reply(self, number: int) -> Any:
        """The reply to a command, or the close; pushes before it are dropped."""
        while (told := await self.message()).get("id") != number and "close" not in told:
            pass
        return told

    async def end(self) -> int:
        """The code of the close frame; messages before it are dropped."""
        while "close" not in (told := await self.message()):
            pass
        code: int = told["close"]
        return code


@asynccontextmanager
async def stranger(url: str, source: str = "127.0.0.1") -> AsyncIterator[Stranger]:
    """A connection to an edge, not upgraded. `source`: the IPv4 address from which it comes."""
    address = urlsplit(url).netloc
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1), local_addr=(source, 0))
    try:
        yield Stranger(address, reader, writer)
    finally:
        writer.transport.abort()

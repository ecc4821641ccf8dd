"""Sessions over WebSocket for a bench: bare streams that count marks, so that the driver stays cheap.

Owns the bytes of the client's side: the Centrifuge client protocol in both encodings, and `raw`, a frame for each message. A
payload is text that begins with a mark and the time of its publish; all carry it as it is, so a delivery is a mark among the
bytes. It must not know any server.
"""

import asyncio
import base64
import json
import os
import time
from array import array
from functools import partial
from typing import Final, Literal

from bench.child import ChildFailedError

Encoding = Literal["json", "protobuf", "raw"]
CENTRIFUGE: Final[tuple[Encoding, ...]] = ("json", "protobuf")
MARK: Final = b"MUSTERBENCH:"
TIME_CHARS: Final = 16
PATH: Final = "/connection/websocket"
CHANNEL: Final = "CHANNEL"
"""Stands for the channel in the path of a server that speaks raw frames."""
READY: Final = b"ready"
"""A raw server's answer to the word of a session, where the path does not say its channel."""
ANSWER_S: Final = 30.0
MASK: Final = b"\0\0\0\0"
"""A mask of zeros is one: the driver need not spend time on it, and servers unmask all alike."""


def payload(size: int) -> bytes:
    """A message that says when it was published."""
    return (MARK + b"%016x" % time.monotonic_ns()).ljust(size, b"x")


def frame(body: bytes, encoding: Encoding) -> bytes:
    """One message of a client: text for JSON, binary for Protobuf."""
    opcode = 0x82 if encoding == "protobuf" else 0x81
    if len(body) < 126:
        return bytes([opcode, 0x80 | len(body)]) + MASK + body
    return bytes([opcode, 0x80 | 126]) + len(body).to_bytes(2, "big") + MASK + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def connect(encoding: Encoding) -> bytes:
    """The command that opens a session without a token."""
    return _command(encoding, 1, "connect", 4, {}, b"")


def subscribe(encoding: Encoding, channel: str) -> bytes:
    """The command that subscribes to a channel."""
    return _command(encoding, 2, "subscribe", 5, {"channel": channel}, _field(1, channel.encode()))


def publish(encoding: Encoding, number: int, channel: str, data: bytes) -> bytes:
    """The command that publishes a message; a string in JSON, and alone in a raw frame."""
    if encoding == "raw":
        return frame(data, encoding)
    body = _field(1, channel.encode()) + _field(2, data)
    return _command(encoding, number, "publish", 7, {"channel": channel, "data": data.decode()}, body)


def _command(encoding: Encoding, number: int, name: str, tag: int, said: dict[str, str], body: bytes) -> bytes:
    if encoding == "json":
        return frame(json.dumps({"id": number, name: said}).encode(), encoding)
    command = b"\x08" + _varint(number) + _field(tag, body)
    return frame(_varint(len(command)) + command, encoding)


class Session(asyncio.Protocol):
    """One client. `deliveries` counts marks."""

    def __init__(self, encoding: Encoding, host: str, times: "array[int] | None" = None, path: str = PATH) -> None:
        self._encoding, self._host, self._times, self._path = encoding, host, times, path
        self._rest = b""
        self._waiting: tuple[bytes, asyncio.Future[None]] | None = None
        self.deliveries = 0
        self.heard = asyncio.Event()
        self.closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self.closed = True
        if self._waiting is not None and not self._waiting[1].done():
            self._waiting[1].set_exception(ChildFailedError("the server closed a session"))
        self.heard.set()

    def data_received(self, data: bytes) -> None:
        """Count."""
        if self._waiting is not None:
            self._rest += data
            wanted, done = self._waiting
            if wanted in self._rest and not done.done():
                done.set_result(None)
            return
        data = self._rest + data
        found = data.count(MARK)
        self.deliveries += found
        if self._times is not None and found:
            at = data.find(MARK) + len(MARK)
            if at + TIME_CHARS <= len(data):
                self._times.append(time.monotonic_ns() - int(data[at : at + TIME_CHARS], 16))
        tail = data[-(len(MARK) - 1) :]
        self._rest = tail if MARK[:1] in tail else b""
        self.heard.set()

    async def open(self, channel: str, *, publishes: bool = False) -> None:
        """Upgrade and connect; subscribe to the channel unless the session only publishes."""
        key = base64.b64encode(os.urandom(16)).decode()
        path = self._path.replace(CHANNEL, channel)
        head = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        head += "" if self._encoding != "protobuf" else "Sec-WebSocket-Protocol: centrifuge-protobuf\r\n"
        await self._answered(f"{head}\r\n".encode(), b"\r\n\r\n")
        if self._encoding == "raw":
            if path == self._path:
                word = "publish" if publishes else "subscribe"
                await self._answered(frame(f"{word} {channel}".encode(), "raw"), READY)
            return
        wanted = (b'"connect"', b'"subscribe"') if self._encoding == "json" else (b"\x08\x01", b"\x08\x02")
        await self._answered(connect(self._encoding), wanted[0])
        if not publishes:
            await self._answered(subscribe(self._encoding, channel), wanted[1])

    async def _answered(self, request: bytes, wanted: bytes) -> None:
        self._rest, done = b"", asyncio.get_running_loop().create_future()
        self._waiting = (wanted, done)
        self.transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            await done
        self._waiting, self._rest = None, b""


async def opened(
    port: int,
    encoding: Encoding,
    channel: str,
    count: int,
    times: "array[int] | None" = None,
    *,
    path: str = PATH,
    publishes: bool = False,
) -> list[Session]:
    """This many sessions in a channel, or ones that publish there; the first one keeps the times of deliveries."""
    loop = asyncio.get_running_loop()
    sessions = []
    for index in range(count):
        make = partial(Session, encoding, f"127.0.0.1:{port}", times if index == 0 else None, path)
        _, session = await loop.create_connection(make, "127.0.0.1", port)
        await session.open(channel, publishes=publishes)
        sessions.append(session)
    return sessions

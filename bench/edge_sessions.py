"""Sessions over WebSocket for a bench: bare streams that count marks, so that the driver stays cheap.

They speak the Centrifuge client protocol in both encodings, or `raw`, a frame for each message. A payload is a JSON string
that begins with a mark and the time of its publish; all carry it as it is, so a delivery is a mark among the
bytes. It must not know any server.
"""

import asyncio
import ssl
import time
from array import array
from functools import partial
from typing import Final, Literal

from bench.child import ChildFailedError
from muster_server.systems.edge import wire
from muster_server.systems.edge.wire import PATH

Encoding = Literal["json", "protobuf", "raw"]
CENTRIFUGE: Final[tuple[Encoding, ...]] = wire.ENCODINGS
MARK: Final = b"MUSTERBENCH:"
REFUSED: Final = b"too many requests"
TIME_CHARS: Final = 16
CHANNEL: Final = "CHANNEL"
"""Stands for the channel in the path of a server that speaks raw frames."""
READY: Final = b"ready"
"""A raw server's answer to the word of a session, where the path does not say its channel."""
ANSWER_S: Final = 30.0
TIMED: Final = 20
"""Sessions of a channel that keep times, spread over the order in which they came: a server serves them in some order."""


def payload(size: int) -> bytes:
    """A message that says when it was published."""
    return (b'"' + MARK + b"%016x" % time.monotonic_ns()).ljust(size - 1, b"x") + b'"'


def publish(encoding: Encoding, number: int, channel: str, data: bytes) -> bytes:
    """The command that publishes a message; alone in a raw frame."""
    return wire.frame(data, "json") if encoding == "raw" else wire.publish(encoding, number, channel, data)


class Session(asyncio.Protocol):
    """One client. `deliveries` counts marks."""

    def __init__(self, encoding: Encoding, host: str, times: "array[int] | None" = None, path: str = PATH) -> None:
        self._encoding, self._host, self.times, self._path = encoding, host, times, path
        self._rest = b""
        self._waiting: tuple[bytes, asyncio.Future[None]] | None = None
        self.deliveries = 0
        self.refused = 0
        """Messages of this client that the server did not take, as too many wait for their acknowledgement."""
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
        self.refused += data.count(REFUSED)
        self.deliveries += found
        if self.times is not None and found:
            at = data.find(MARK) + len(MARK)
            if at + TIME_CHARS <= len(data):
                self.times.append(time.monotonic_ns() - int(data[at : at + TIME_CHARS], 16))
        tail = data[-(len(MARK) - 1) :]
        self._rest = tail if MARK[:1] in tail else b""
        self.heard.set()

    async def open(self, channel: str, *, publishes: bool = False) -> None:
        """Upgrade and connect; subscribe to the channel unless the session only publishes."""
        path = self._path.replace(CHANNEL, channel)
        encoding = "json" if self._encoding == "raw" else self._encoding
        await self.ask(wire.upgrade(self._host, encoding, path), b"\r\n\r\n")
        if self._encoding == "raw":
            if path == self._path:
                word = "publish" if publishes else "subscribe"
                await self.ask(wire.frame(f"{word} {channel}".encode(), "json"), READY)
            return
        wanted = (b'"connect"', b'"subscribe"') if encoding == "json" else (b"\x08\x01", b"\x08\x02")
        await self.ask(wire.connect(encoding, 1), wanted[0])
        if not publishes:
            await self.ask(wire.subscribe(encoding, 2, channel, recoverable=False), wanted[1])

    async def ask(self, request: bytes, wanted: bytes) -> None:
        """Send a request, and wait for these bytes."""
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
    tls: ssl.SSLContext | None = None,
) -> list[Session]:
    """This many sessions in a channel, or ones that publish there. Some keep the times of deliveries."""
    loop = asyncio.get_running_loop()
    sessions = []
    apart = max(1, count // TIMED)
    for index in range(count):
        make = partial(Session, encoding, f"127.0.0.1:{port}", times if index % apart == 0 else None, path)
        _, session = await loop.create_connection(make, "127.0.0.1", port, ssl=tls)
        await session.open(channel, publishes=publishes)
        sessions.append(session)
    return sessions

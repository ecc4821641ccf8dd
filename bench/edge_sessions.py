"""Sessions of the Centrifuge client protocol for a bench: bare streams that count marks, so that the driver stays cheap.

A payload is a JSON string that begins with a mark and the time of its publish; both encodings carry it as it is, so a
delivery is a mark among the bytes. It must not know any server.
"""

import asyncio
import time
from array import array
from functools import partial
from typing import Final

from bench.child import ChildFailedError
from muster_server.systems.edge import wire
from muster_server.systems.edge.wire import Encoding

MARK: Final = b"MUSTERBENCH:"
TIME_CHARS: Final = 16
ANSWER_S: Final = 30.0


def payload(size: int) -> bytes:
    """A message that says when it was published."""
    return (b'"' + MARK + b"%016x" % time.monotonic_ns()).ljust(size - 1, b"x") + b'"'


class Session(asyncio.Protocol):
    """One client. `deliveries` counts marks."""

    def __init__(self, encoding: Encoding, host: str, times: "array[int] | None" = None) -> None:
        self._encoding, self._host, self._times = encoding, host, times
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

    async def open(self, channel: str) -> None:
        """Upgrade and connect; with a channel also subscribe."""
        await self._answered(wire.upgrade(self._host, self._encoding), b"\r\n\r\n")
        wanted = (b'"connect"', b'"subscribe"') if self._encoding == "json" else (b"\x08\x01", b"\x08\x02")
        await self._answered(wire.connect(self._encoding, 1), wanted[0])
        if channel:
            await self._answered(wire.subscribe(self._encoding, 2, channel, recoverable=False), wanted[1])

    async def _answered(self, request: bytes, wanted: bytes) -> None:
        self._rest, done = b"", asyncio.get_running_loop().create_future()
        self._waiting = (wanted, done)
        self.transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            await done
        self._waiting, self._rest = None, b""


async def opened(
    port: int, encoding: Encoding, channel: str, count: int, times: "array[int] | None" = None
) -> list[Session]:
    """This many sessions in a channel; the first one keeps the times of deliveries."""
    loop = asyncio.get_running_loop()
    sessions = []
    for index in range(count):
        make = partial(Session, encoding, f"127.0.0.1:{port}", times if index == 0 else None)
        _, session = await loop.create_connection(make, "127.0.0.1", port)
        await session.open(channel)
        sessions.append(session)
    return sessions

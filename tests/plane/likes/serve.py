"""A likes engine behind a socket, as small as it can be: for tests of the engine, some of which kill it.

Run as `python -m tests.plane.likes.serve FOLDER`; it prints its port.
"""

import asyncio
import sys
import time
from typing import Final, cast

import uvloop

from muster._core import LikesEngine

SEGMENT_BYTES: Final = 8 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Served:
    """An engine and the sockets of its clients."""

    def __init__(self, engine: LikesEngine) -> None:
        self.engine = engine
        self.clients: dict[int, Client] = {}

    async def listen(self) -> int:
        """Serve on a free port of the loopback; the port is the answer."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.engine.fileno(), self.durable)
        self.server = await loop.create_server(lambda: Client(self), "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Serve nobody any more; the engine stays open."""
        asyncio.get_running_loop().remove_reader(self.engine.fileno())
        self.server.close()
        for client in self.clients.values():
            client.transport.close()

    def durable(self) -> None:
        self.engine.durable(now_ms())
        self.write()

    def write(self) -> None:
        while ready := self.engine.ready():
            for number in ready:
                self.clients[number].write()


class Client(asyncio.Protocol):
    def __init__(self, served: Served) -> None:
        self.served = served
        self.engine = served.engine
        self.slow = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of its subclasses
        self.number = self.engine.connect()
        self.served.clients[self.number] = self

    def connection_lost(self, _error: Exception | None) -> None:
        del self.served.clients[self.number]
        self.engine.disconnect(self.number)

    def data_received(self, data: bytes) -> None:
        self.engine.feed(self.number, data, now_ms())
        self.served.write()

    def pause_writing(self) -> None:
        self.slow = True

    def resume_writing(self) -> None:
        self.slow = False
        self.write()

    def write(self) -> None:
        if self.slow or self.transport.is_closing():
            return
        replies, ends, full = self.engine.take(self.number, now_ms())
        self.transport.write(replies)
        if ends:
            self.transport.close()
        elif full:
            self.transport.pause_reading()
        elif not self.transport.is_reading():
            self.transport.resume_reading()


async def _main() -> None:
    served = Served(LikesEngine(folder=sys.argv[1], segment_bytes=SEGMENT_BYTES))
    print(await served.listen(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_main())

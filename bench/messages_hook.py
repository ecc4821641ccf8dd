"""A null server for callbacks: `python -m bench.messages_hook PORT`. Each body has its due time in ms, between quotes.

Notes when each was due and how late it came. `GET /` gives all since the last one, in ms, as JSON.
"""

import asyncio
import re
import sys
import time

import msgspec
import uvloop

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
DUE = re.compile(rb"\"(\d{13})\"")
OK = b"HTTP/1.1 204 No Content\r\n\r\n"

came: list[tuple[int, float]] = []


class Hook(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.time() * 1_000
        data = self._buffer + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(data, 0, end + 2)
            length = int(found[1]) if found else 0
            if len(data) < end + 4 + length:
                break
            if data.startswith(b"GET"):
                said, came[:] = msgspec.json.encode(came), []
                self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
            else:
                due = DUE.search(data, end + 4, end + 4 + length)
                if due is not None:
                    came.append((int(due[1]), now - int(due[1])))
                self._transport.write(OK)
            data = data[end + 4 + length :]
        self._buffer = data


async def serve(port: int) -> None:
    """Until it is ended."""
    server = await asyncio.get_running_loop().create_server(Hook, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

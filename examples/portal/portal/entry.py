"""`python -m portal.entry FD=ADDRESS…`: the way into the hosts of `python -m portal --real`, on the client's host.

Each socket is open at the machine's loopback. Its connections go on to the address of the front, from the given address:
so each socket is a client of its own, which has its server by its address.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from typing import Final

from .hosts import ADDRESS

BYTES: Final = 1 << 16
CONNECT_S: Final = 5.0


async def serve(sockets: dict[int, str]) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async def begin(fd: int, address: str) -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _pass_on(reader, writer, address)

        await asyncio.start_server(pass_on, sock=socket.socket(fileno=fd))

    for fd, address in sockets.items():
        await begin(fd, address)
    await ended.wait()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
    with contextlib.closing(writer.transport), contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            there, back = await asyncio.open_connection(ADDRESS, 80, local_addr=(address, 0))
        with contextlib.closing(back.transport):
            ways = [asyncio.ensure_future(_copy(reader, back)), asyncio.ensure_future(_copy(there, writer))]
            await asyncio.wait(ways)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of one side, and tell the other side."""
    try:
        with contextlib.suppress(OSError):
            while some := await reader.read(BYTES):
                writer.write(some)
                await writer.drain()
            writer.write_eof()
            return
    finally:
        if not reader.at_eof():
            writer.transport.abort()


if __name__ == "__main__":
    pairs = (word.partition("=") for word in sys.argv[1:])
    asyncio.run(serve({int(fd): address for fd, _, address in pairs}))

"""Ways of datagrams that a test cuts and heals: a node dials a port here, and what comes goes on to another port."""

import asyncio
from typing import Final, Self, cast

HOST: Final = "127.0.0.1"
Address = tuple[str, int]


class _Side(asyncio.DatagramProtocol):
    """One socket: what it takes leaves by `other`, to the last peer there."""

    def __init__(self, way: "Way", peer: Address | None) -> None:
        self._way, self.peer = way, peer
        self.other: _Side | None = None
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self.peer = addr
        other = self.other
        if self._way.is_cut or other is None or other.peer is None or other.transport is None:
            return
        other.transport.sendto(data, other.peer)

    def error_received(self, exc: Exception) -> None:
        """A port that nobody has, as of a killed node."""


class Way:
    """From whoever dials `port`, one node at a time, to the node at `to`."""

    def __init__(self, port: int, to: int) -> None:
        self.port, self._to = port, to
        self.is_cut = False
        self._sides: list[_Side] = []

    async def opened(self) -> Self:
        """Listen."""
        loop = asyncio.get_running_loop()
        near, far = _Side(self, None), _Side(self, (HOST, self._to))
        near.other, far.other = far, near
        await loop.create_datagram_endpoint(lambda: near, local_addr=(HOST, self.port))
        await loop.create_datagram_endpoint(lambda: far, local_addr=(HOST, 0))
        self._sides = [near, far]
        return self

    def close(self) -> None:
        """Close its sockets."""
        for side in self._sides:
            if side.transport is not None:
                side.transport.close()

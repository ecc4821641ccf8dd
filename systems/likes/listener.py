"""The clients of one engine: the engine reads and writes their sockets in turns, and replies once changes are durable.

Owns when a turn is due, and the end. Knows no socket and no command: the engine has them.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from muster.clock import now_ms
from muster_server._engines import LikesEngine
from muster_server.systems.likes.logged import Logged

LOOK_S: Final = 0.001
"""Seconds between two looks whether all that was accepted is answered."""
Tls = tuple[bytes, bytes]
"""Certificates and their key, in PEM."""


class Clients(NamedTuple):
    """Counts of clients: connected, that connected since the start, and refused beyond the limit."""

    connected: int
    accepted: int
    refused: int


class Listener:
    """All clients of one engine. Call `start`, then `close`.

    `logged`: for an engine whose log is elsewhere; `keeps`: whether it has a log at all. `guard` is called before the
    engine may answer a question.
    """

    def __init__(
        self,
        engine: LikesEngine,
        connections_max: int,
        logged: Logged | None = None,
        *,
        keeps: bool = True,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.engine, self.connections_max, self._logged = engine, connections_max, logged
        self.guard = guard
        self.batches = 0
        self._clients: int | None = None
        """The descriptor of the sockets."""
        self._watches = keeps and logged is None
        self._last = Clients(0, 0, 0)

    def start(self, bind: tuple[str, int], tls: Tls | None) -> tuple[str, int]:
        """Listen; returns the bound address. Raises `OSError` if it is in use, or for an unusable certificate."""
        try:
            bound: tuple[str, int] = self.engine.listen(bind, self.connections_max, tls)
        except ValueError as error:
            raise OSError(f"likes.tls_cert_file: {error}") from None
        loop = asyncio.get_running_loop()
        self._clients = self.engine.clients_fileno()
        loop.add_reader(self._clients, self._turn)
        if self._watches:
            loop.add_reader(self.engine.fileno(), self._durable)
        elif self._logged is not None:
            self._logged.done = self._answered
        return bound

    async def drain(self, drain_s: float) -> None:
        """Accept no more clients and bytes; wait until everything accepted is answered, for at most `drain_s` seconds."""
        self.engine.stop_listening()
        await self.hold(drain_s)

    async def hold(self, hold_s: float) -> None:
        """Accept no more bytes; wait until everything accepted is answered, for at most `hold_s` seconds."""
        self.engine.hold()
        self._turn()
        deadline = time.monotonic() + hold_s
        while self.engine.pending() and time.monotonic() < deadline:  # noqa: ASYNC110 - the engine tells no one else
            await asyncio.sleep(LOOK_S)

    def go_on(self) -> None:
        """Accept bytes again; those that came since `hold` go first."""
        self.engine.go_on()
        self._turn()

    def unwatch(self) -> None:
        """Called before the engine's log is closed."""
        if self._watches:
            self._watches = False
            asyncio.get_running_loop().remove_reader(self.engine.fileno())
        self._logged = None

    def close(self) -> None:
        """Close all connections, after writing what can be written at once."""
        self.unwatch()
        if self._clients is not None:
            asyncio.get_running_loop().remove_reader(self._clients)
            self._clients = None
            self.engine.close_clients(now_ms())
            self._last = self._last._replace(connected=0)

    def clients(self) -> Clients:
        """Counts of clients."""
        if self._clients is not None:
            self._last = Clients(*self.engine.clients())
        return self._last

    def _turn(self) -> None:
        """Read, answer and write. The descriptor stays readable while more is to be done."""
        if self._clients is None:
            return
        if self.guard is not None:
            self.guard()
        self.engine.turn(now_ms())
        if self._logged is not None:
            self._logged.begin()

    def _durable(self) -> None:
        if self.guard is not None:
            self.guard()
        self.engine.durable(now_ms())
        self._answered()

    def _answered(self) -> None:
        self.batches += 1
        self._turn()


def certificate(cert_file: str, key_file: str) -> Tls | None:
    """The certificates of a node and their key; None without a certificate. Raises `OSError` and `ssl.SSLError`."""
    if not cert_file:
        return None
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file or None)
    return Path(cert_file).read_bytes(), Path(key_file or cert_file).read_bytes()

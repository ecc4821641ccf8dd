"""Chooses addresses once, before any node starts, so that a restarted node returns to its address.

A free port is taken from outside the kernel's range for arbitrary sockets: another socket could take a port of that
range while its node is down. Instances that start at the same time choose from the same ports, and a port is free for a
moment until its node binds it. So the choice is marked for a while, by a socket whose name contains the port.
"""

import contextlib
import errno
import os
import random
import socket
import time
from pathlib import Path
from typing import Final, Self

from muster_server.control.errors import UserError
from muster_server.control.host.addresses import address_text

KERNELS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
OWN: Final = range(20_000, 65_536)
TRIES: Final = 64
MARKED_S: Final = 60.0
"""Seconds that a chosen port stays marked at least; its node has bound it by then."""
_MARKS: Final[dict[int, tuple[float, int]]] = {}
"""For each port: the end of its mark, and the descriptor of a socket with a name that the kernel gives to no other
process."""
WHY: Final = {
    errno.EADDRINUSE: "is in use by another process; choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.EACCES: "needs privileges; choose a port from 1024 up, or 0 for a free one",
}


class Ports:
    """Reserves addresses until `release`, or the end of the context. Addresses reserved in one pass are distinct."""

    def __init__(self, *, marks: bool = True) -> None:
        """`marks`: nodes will use these addresses; otherwise they are only tried."""
        self._marks = marks
        self._held: dict[tuple[socket.SocketKind, tuple[str, int]], socket.socket] = {}
        self._keys: dict[tuple[str, int], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def udp(self, key: str, host: str, port: int) -> tuple[str, int]:
        """Reserve a UDP address; port 0 is replaced by a free port. `key` names it in the `UserError` if the address is
        in use."""
        bound = self._take(key, host, port, socket.SOCK_DGRAM)
        self._keys[bound] = key
        return bound

    def tcp(self, key: str, host: str, port: int = 0) -> tuple[str, int]:
        """The same for TCP."""
        return self._take(key, host, port, socket.SOCK_STREAM)

    def release(self) -> None:
        """Release the ports for the nodes that will bind them."""
        while self._held:
            self._held.popitem()[1].close()

    def release_tcp(self, address: tuple[str, int]) -> None:
        """Release this port only."""
        if held := self._held.pop((socket.SOCK_STREAM, address), None):
            held.close()

    def _take(self, key: str, host: str, port: int, kind: socket.SocketKind) -> tuple[str, int]:
        if not port:
            for free in _free():
                with contextlib.suppress(OSError):
                    found = self._bind(host, free, kind)
                    if not self._marks or _mark(free):
                        return found
                    self._held.pop((kind, found)).close()
        try:
            return self._bind(host, port, kind, named=port > 0)
        except OSError as error:
            why = WHY.get(error.errno or 0, f"cannot be bound: {error.strerror}")
            if (host, port) in self._keys:
                why = f"is the address of {self._keys[host, port]} already; choose another port, or 0 for a free one"
            raise UserError(f"{key}: {address_text(host, port)} {why}") from None

    def _bind(self, host: str, port: int, kind: socket.SocketKind, *, named: bool = False) -> tuple[str, int]:
        with contextlib.ExitStack() as held:
            bound = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind))
            if kind is socket.SOCK_STREAM and named:  # ended connections block the port for a minute
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            name: tuple[str, int] = bound.getsockname()[:2]
            self._held[kind, name] = bound
            held.pop_all()
        return name


def _free() -> list[int]:
    """Ports to try, in random order; empty if the kernel's range covers all, or is unknown."""
    try:
        low, high = map(int, KERNELS.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return []
    own = [port for port in OWN if not low <= port <= high]
    return random.sample(own, min(TRIES, len(own)))


def _mark(port: int) -> bool:
    """Mark the port, unless it is marked. While it is marked, it is not chosen again, neither here nor elsewhere."""
    now = time.monotonic()
    for past in [past for past, (end, _) in _MARKS.items() if end < now]:
        os.close(_MARKS.pop(past)[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        try:
            mark.bind(f"\0muster-port-{port}")
        except OSError:
            return False
        _MARKS[port] = now + MARKED_S, mark.detach()
    return True

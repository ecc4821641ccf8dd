"""Chooses addresses once, before anything starts, so that a restarted role comes back where it was."""

import contextlib
import errno
import socket
from typing import Final

from control.config import address_text
from control.errors import UserError

WHY: Final = {
    errno.EADDRINUSE: "is in use by another process; choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "is no address of this machine",
    errno.EACCES: "needs privileges; choose a port from 1024 up, or 0 for a free one",
}


class Ports:
    """Reserves addresses until `release`. What is reserved in one pass is distinct."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._keys: dict[tuple[str, int], str] = {}

    def udp(self, key: str, host: str, port: int) -> tuple[str, int]:
        """The address, port 0 replaced. `key` names it in the `UserError` when it is taken."""
        bound = self._take(key, host, port, socket.SOCK_DGRAM)
        self._keys[bound] = key
        return bound

    def tcp(self, key: str, host: str) -> tuple[str, int]:
        """A free port on `host`."""
        return self._take(key, host, 0, socket.SOCK_STREAM)

    def release(self) -> None:
        """Let go, for those who will bind them."""
        self._held.close()

    def _take(self, key: str, host: str, port: int, kind: socket.SocketKind) -> tuple[str, int]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = self._held.enter_context(socket.socket(family, kind))
        try:
            held.bind((host, port))
        except OSError as error:
            why = WHY.get(error.errno or 0, f"cannot be bound: {error.strerror}")
            if (host, port) in self._keys:
                why = f"is {self._keys[host, port]}'s already; choose another port, or 0 for a free one"
            raise UserError(f"{key}: {address_text(host, port)} {why}") from None
        bound: tuple[str, int] = held.getsockname()[:2]
        return bound

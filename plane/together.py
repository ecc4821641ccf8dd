"""The machines of one process: what one sends to another goes through memory, and that one has its turn at once.

Owns the order of turns among their servers, and the one descriptor that the loop watches for all of them. Knows no role.
"""

import asyncio
import time
from typing import Final

from muster._core import Mailboxes
from plane.server import Server

ROUNDS_MAX: Final = 16
"""Turns of one machine that follow each other before the loop's other work: a message and its acknowledgement go by four
machines."""
BRISK_S: Final = 0.0005
"""A round that begins so soon after the last one may linger, as the turns of a machine alone do."""
LINGER_S: Final = 0.002
"""The longest wait of the loop's other work while datagrams follow each other closely."""
LINGER_STEP_MS: Final = 1


class Together:
    """Gives each machine its turns. Made and used in one loop; machines come and go."""

    def __init__(self) -> None:
        self._mailboxes = Mailboxes()
        self._servers: dict[int, Server] = {}
        self._going = False
        self._ended = 0.0

    def add(self, server: Server) -> bool:
        """Give a machine its turns from now on; False beyond 64: it keeps to its own descriptor and its sockets."""
        try:
            number = server.engine.join(self._mailboxes)
        except OverflowError:
            return False
        if not self._servers:
            asyncio.get_running_loop().add_reader(self._mailboxes.fd(), self._go)
        self._servers[number] = server
        return True

    def remove(self, server: Server) -> None:
        """Give it none any more. Its engine is closed next."""
        for number in [number for number, each in self._servers.items() if each is server]:
            del self._servers[number]
            self._mailboxes.leave(number)
            if not self._servers:
                asyncio.get_running_loop().remove_reader(self._mailboxes.fd())

    def deliver(self) -> None:
        """Give those a turn who have mail: after a machine had a turn outside of a round."""
        if not self._going and (mail := self._mailboxes.mail()):
            self._round(mail)

    def _go(self) -> None:
        """The descriptor is readable."""
        began = time.monotonic()
        waits = self._round(self._mailboxes.due(0))
        if began - self._ended < BRISK_S:
            until = began + LINGER_S
            while not waits and time.monotonic() < until and (due := self._mailboxes.due(LINGER_STEP_MS)):
                waits = self._round(due)
        self._ended = time.monotonic()

    def _round(self, due: int) -> bool:
        """Give these a turn, and then those who have mail, until none has. Returns whether turns wait behind the loop's
        other work."""
        self._going = True
        try:
            later = 0
            for _ in range(ROUNDS_MAX):
                later |= self._turn(due)
                due = self._mailboxes.mail() & ~later
                if not due:
                    return later != 0
        finally:
            self._going = False
        asyncio.get_running_loop().call_soon(self.deliver)
        return True

    def _turn(self, due: int) -> int:
        """Returns those of them whose next turn waits behind the loop's other work."""
        later = 0
        while due:
            lowest = due & -due
            due ^= lowest
            server = self._servers.get(lowest.bit_length() - 1)
            if server is None or server.turn():
                later |= lowest
        return later

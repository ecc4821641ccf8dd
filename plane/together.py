"""The machines of one process: what one sends to another goes through memory, and that one has its turn at once.

Owns the order of turns among their servers, and the one descriptor that the loop watches for all of them. Knows no role.
A round lingers by the same rule as a turn of a machine alone; the compiled `Mailboxes` have it.
"""

import asyncio
from typing import Final

from muster_server._engines import Mailboxes
from muster_server.plane.server import Server

ROUNDS_MAX: Final = 16
"""Turns of one machine that follow each other before the loop's other work: a message and its acknowledgement go by four
machines."""


class Together:
    """Gives each machine its turns. Made and used in one loop; machines come and go."""

    def __init__(self) -> None:
        self._mailboxes = Mailboxes()
        self._servers: dict[int, Server] = {}
        self._going = False

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

    def linger(self, us: int) -> None:
        """From now on a round waits for the next datagrams at most so long."""
        self._mailboxes.linger(us)

    def deliver(self) -> None:
        """Give those a turn who have mail: after a machine had a turn outside of a round."""
        if not self._going and (mail := self._mailboxes.mail()):
            self._round(mail)

    def _go(self) -> None:
        """The descriptor is readable."""
        waits = self._round(self._mailboxes.begin())
        while not waits and (due := self._mailboxes.wait()):
            waits = self._round(due)
        self._mailboxes.end()

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

"""The machines of one process: datagrams between them go through memory, and the receiver has its turn at once.

Owns the order of turns among their servers, and the one descriptor that the loop watches for all of them. Knows no
role.
A round lingers by the same rule as a turn of a single machine; the compiled `Mailboxes` implement it.
"""

import asyncio
from typing import Final

from muster_server._engines import Mailboxes
from muster_server.plane.server import Server

ROUNDS_MAX: Final = 16
"""Limit of one machine's consecutive turns before the loop's other work: a message and its acknowledgement pass four
machines."""


class Together:
    """Runs each machine's turns. Made and used in one loop; machines come and go."""

    def __init__(self) -> None:
        self._mailboxes = Mailboxes()
        self._servers: dict[int, Server] = {}
        self._going = False

    def add(self, server: Server) -> bool:
        """Run a machine's turns from now on. Returns False beyond 64 machines: the machine then keeps its own
        descriptor and its sockets."""
        try:
            number = server.engine.join(self._mailboxes)
        except OverflowError:
            return False
        if not self._servers:
            asyncio.get_running_loop().add_reader(self._mailboxes.fd(), self._go)
        self._servers[number] = server
        return True

    def remove(self, server: Server) -> None:
        """Stop running its turns. Its engine is closed next."""
        for number in [number for number, each in self._servers.items() if each is server]:
            del self._servers[number]
            self._mailboxes.leave(number)
            if not self._servers:
                asyncio.get_running_loop().remove_reader(self._mailboxes.fd())

    def linger(self, us: int) -> None:
        """Let a round wait at most `us` microseconds for the next datagrams."""
        self._mailboxes.linger(us)

    def deliver(self) -> None:
        """Run a turn of each machine that has mail, after a machine had a turn outside of a round."""
        if not self._going and (mail := self._mailboxes.mail()):
            self._round(mail)

    def _go(self) -> None:
        """Runs when the descriptor is readable."""
        waits = self._round(self._mailboxes.begin())
        while not waits and (due := self._mailboxes.wait()):
            waits = self._round(due)
        self._mailboxes.end()

    def _round(self, due: int) -> bool:
        """Run a turn of each machine in `due`, then of those that have mail, until none has. Returns whether turns are
        queued behind the loop's other work."""
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
        """Run their turns; returns the machines whose next turn is queued behind the loop's other work."""
        later = 0
        while due:
            lowest = due & -due
            due ^= lowest
            server = self._servers.get(lowest.bit_length() - 1)
            if server is None or server.turn():
                later |= lowest
        return later

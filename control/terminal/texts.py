"""The texts of users, for people to read: those that gateways and proxies have seen.

Owns the questions to these nodes, and their answers as long as a command runs. A user without a text stays a number. Must
not know what users do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.plane.kinds import kind
from muster_server.plane.users import HASHED

QUESTION: Final = 100
"""Users of one question to a node."""
KEPT: Final = 65_536
"""Texts that are kept: 16 MB with what Python adds. Beyond that all are asked for anew."""
AGAIN_S: Final = 1.0
"""Users that nobody knows, or that came since, are asked for at most this often."""
Look = Callable[[], Awaitable[Iterable[Process]]]
"""The nodes as they are now. Raises `UserError`."""


class Texts:
    """Asks the nodes of `look` for the texts of users that it does not know yet."""

    def __init__(self, look: Look, known: Mapping[int, str] | None = None) -> None:
        self._look = look
        self._known: dict[int, str] = dict(known or {})
        self._asks_at = 0.0

    async def of(self, users: Iterable[int]) -> Mapping[int, str]:
        """The known texts of these users. Asks nobody for numbers that no text has, nor before `AGAIN_S` is over."""
        wanted = {user for user in users if user >= HASHED}
        unknown = sorted(wanted - self._known.keys())
        now = asyncio.get_running_loop().time()
        if unknown and now >= self._asks_at:
            await self._ask(unknown)
            self._asks_at = asyncio.get_running_loop().time() + AGAIN_S
        return {user: self._known[user] for user in wanted if user in self._known}

    async def _ask(self, users: list[int]) -> None:
        try:
            doors = [each for each in await self._look() if kind(each.role).door is not None]
        except UserError:  # the users are numbers then
            return
        if len(self._known) > KEPT:
            self._known.clear()
        for first in range(0, len(users), QUESTION):
            path = f"/api/v1/users?ids={','.join(map(str, users[first : first + QUESTION]))}"
            for said in await asyncio.to_thread(common.Asking().all, doors, path):
                if said is not None:
                    self._known |= {int(user): text for user, text in said["users"].items()}

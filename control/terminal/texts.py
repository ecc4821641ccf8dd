"""Names of users that are text, for people: those that gateways and proxies have seen.

Owns the requests to these nodes, and caches their answers while a command runs. A user without a name stays a number.
Must not know what users do.
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
"""Limit of users in one request to a node."""
KEPT: Final = 65_536
"""Limit of cached names: 16 MB including Python's overhead. Beyond it the cache is emptied."""
AGAIN_S: Final = 1.0
"""Unknown or new users are requested at most once per this many seconds."""
Look = Callable[[], Awaitable[Iterable[Process]]]
"""Returns the current nodes. Raises `UserError`."""


class Texts:
    """Asks the nodes of `look` for the names of users that it does not know yet."""

    def __init__(self, look: Look, known: Mapping[int, str] | None = None) -> None:
        self._look = look
        self._known: dict[int, str] = dict(known or {})
        self._asks_at = 0.0

    async def of(self, users: Iterable[int]) -> Mapping[int, str]:
        """The known names of these users. Requests nothing for numbers that no text has, nor before `AGAIN_S` has
        passed."""
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
        except UserError:  # the users stay numbers then
            return
        if len(self._known) > KEPT:
            self._known.clear()
        for first in range(0, len(users), QUESTION):
            path = f"/api/v1/users?ids={','.join(map(str, users[first : first + QUESTION]))}"
            for said in await asyncio.to_thread(common.Asking().all, doors, path):
                if said is not None:
                    self._known |= {int(user): text for user, text in said["users"].items()}

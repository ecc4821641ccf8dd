"""Mails: entries that are due and not read go to a topic of delayed messages, which calls the program that mails them.

Owns what is one mail, its id and its form. A mail that was handed over and not noted is handed over again with the same
id, which the topic takes once. It must not know a store or a topic.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Figure
from muster_server.plane.ways import NotTaken, Way
from muster_server.systems.inbox.records import Due, Store
from muster_server.systems.inbox.shapes import Entry

AT_ONCE: Final = 500
LOOK_S: Final = 1.0
AGAIN_S: Final = 5.0
WARN_S: Final = 60.0
DAILY_MAX: Final = 50
"""Limit of entries of a daily mail; further ones are another mail."""


class Mails:
    """Hands mails over while `run` runs."""

    def __init__(self, store: Store, way: Way, topic: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._store, self._way, self._topic, self._log = store, way, topic, log
        self._sent = 0
        self._warned = 0.0
        self.error = ""
        """Why mails wait; empty: they do not."""

    async def run(self) -> None:
        """Hand over until cancelled."""
        while True:
            try:
                count = await self.turn(now_ms())
                self.error = ""
            except (NotTaken, StoreError) as error:
                self._warn(str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            if count < AT_ONCE:
                await asyncio.sleep(LOOK_S)

    async def turn(self, now: int) -> int:
        """Hand over what is due. Returns how many entries that were. Raises `NotTaken`, `StoreError`."""
        found = await self._store.due(now, AT_ONCE)
        for some in mails(found):
            await self._put(some)
            await self._store.mailed(some)
        return len(found)

    async def _put(self, some: Sequence[Due]) -> None:
        user, first = some[0].user, some[0].entry.id
        body = {"user": str(user), "entries": [mailed(each.entry) for each in some]}
        try:
            await self._way.put(self._topic, f"mail:{user}:{first}", msgspec.json.encode(body), "application/json")
            self._sent += 1
        except NotTaken as error:
            if not error.lasting:
                raise
            raise NotTaken(f"topic {self._topic} refuses mails: {error}") from None

    def _warn(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if text != self.error or now - self._warned > WARN_S:
            self._warned = now
            self._log.warning("mails wait", cause=text)
        self.error = text

    def counters(self) -> list[Figure]:
        """Mails that were handed over."""
        return [("inbox_mails", "Mails handed over to their topic", float(self._sent))]


def mails(found: Sequence[Due]) -> list[list[Due]]:
    """The content of one mail: an entry, or the entries of one user's day."""
    made: list[list[Due]] = []
    order = sorted(found, key=lambda each: (each.due, each.user, int(each.entry.id)))
    for (_, _, way), some in groupby(order, key=lambda each: (each.due, each.user, each.way)):
        entries = list(some)
        size = DAILY_MAX if way == "daily" else 1
        made += [entries[first : first + size] for first in range(0, len(entries), size)]
    return made


def mailed(entry: Entry) -> dict[str, Any]:
    """An entry in a mail."""
    said: dict[str, Any] = {"id": entry.id, "kind": entry.kind, "at": entry.at, "count": entry.count}
    said |= {"data": msgspec.Raw(entry.data)}
    if entry.actor:
        said["actor"] = entry.actor
    return said

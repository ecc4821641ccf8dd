"""The rooms of an instance by name, from the admin ports of its gateways and edges.

A list of very many rooms costs the gateways some time, so it is used again for a while: for `REUSED` times as long as it
took. Requests that come meanwhile share it.
"""

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.systems.http.face import Nodes
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.cli.ls import DOORS, merged
from muster_server.systems.rooms.rates import Rates

PAGE: Final = 1_000
SEEN_MAX: Final = 20_000
"""Limit of rooms that one request reads from each gateway; if there are more, `truncated` is set."""
REUSED: Final = 10
"""So the gateways spend at most about a tenth of one processor on lists, whoever asks for them."""
SEARCHES_MAX: Final = 16
"""Limit of searches whose lists are kept."""
ASK_S: Final = 2.0


class Listed(NamedTuple):
    """Rooms by name, and whether the list is complete."""

    rooms: list[dict[str, Any]]
    truncated: bool
    """True: there are more rooms than were read."""
    partial: bool
    """True: a gateway did not answer."""


class _Search:
    """A text in names of rooms, and the list that was made for it last."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.list: asyncio.Task[Listed] | None = None
        self.good_until = 0.0

    @property
    def is_good(self) -> bool:
        """Return whether the list can be used, once it is there."""
        return self.list is not None and (not self.list.done() or time.monotonic() < self.good_until)


class Listing:
    """Asks the nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._searches: dict[str, _Search] = {}
        """The one that was asked for last comes last."""

    async def close(self) -> None:
        """Stop asking."""
        lists = [each.list for each in self._searches.values() if each.list is not None]
        for task in lists:
            task.cancel()
        await asyncio.gather(*lists, return_exceptions=True)

    async def rooms(self, text: str = "") -> Listed:
        """All rooms with a text in their names, with their messages per second since the list before. Raises `Problem`."""
        search = self._searches.pop(text) if text in self._searches else _Search()
        self._searches[text] = search
        if not search.is_good:
            search.list = asyncio.create_task(self._list(text, search))
            idle = [other for other, each in self._searches.items() if each.list is None or each.list.done()]
            for other in idle[: max(0, len(self._searches) - SEARCHES_MAX)]:
                del self._searches[other]
        assert search.list is not None
        return await asyncio.shield(search.list)

    async def _list(self, text: str, search: _Search) -> Listed:
        began = time.monotonic()
        try:
            nodes = await self._nodes()
        except UserError as error:
            raise Problem("unavailable", str(error)) from None
        names = {node.node: node.name for node in nodes}
        gateways = [node for node in nodes if node.role in DOORS]
        told = await asyncio.gather(*(self._told(gateway, names, text) for gateway in gateways))
        rooms: dict[str, list[dict[str, Any]]] = {}
        for entries, _, _ in told:
            for entry in entries:
                rooms.setdefault(entry["name"], []).append(entry)
        now = time.monotonic()
        found = search.rates.add([merged(rooms[name]) for name in sorted(rooms)], now)
        partial = any(each.partial for each in told)
        if not partial:
            search.good_until = now + REUSED * (now - began)
        return Listed(found, any(each.truncated for each in told), partial)

    async def _told(self, gateway: Process, names: Mapping[int, str], text: str) -> Listed:
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            if len(found) >= SEEN_MAX:
                return Listed(found, True, False)
            asked = f"/api/v1/rooms?after={quote(after, safe='')}&limit={PAGE}&search={quote(text, safe='')}"
            try:
                status, page = await asyncio.to_thread(common.get, gateway, asked, ASK_S)
            except UserError:
                return Listed(found, False, True)
            if status != HTTPStatus.OK:
                return Listed(found, False, True)
            for room in page["rooms"]:
                owner = None if room["stream"] is None else names.get(room["stream"][0])
                found.append({**room, "owner": owner, "gateways": [gateway.name]})
            after = page["next"]
        return Listed(found, False, False)

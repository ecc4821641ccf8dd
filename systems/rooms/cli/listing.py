"""All rooms of an instance by name, from the admin ports of its gateways and edges. One request at a time."""

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
ASK_S: Final = 2.0


class Listed(NamedTuple):
    """Rooms by name, and whether the list is complete."""

    rooms: list[dict[str, Any]]
    truncated: bool
    """True: there are more rooms than were read."""
    partial: bool
    """True: a gateway did not answer."""


class Listing:
    """Asks the nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes, self._rates = nodes, Rates()
        self._asking: asyncio.Task[Listed] | None = None

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def rooms(self) -> Listed:
        """All rooms, with their messages per second since the list before. Raises `Problem`."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._list())
        return await asyncio.shield(self._asking)

    async def _list(self) -> Listed:
        try:
            nodes = await self._nodes()
        except UserError as error:
            raise Problem("unavailable", str(error)) from None
        names = {node.node: node.name for node in nodes}
        gateways = [node for node in nodes if node.role in DOORS]
        told = await asyncio.gather(*(self._told(gateway, names) for gateway in gateways))
        rooms: dict[str, list[dict[str, Any]]] = {}
        for entries, _, _ in told:
            for entry in entries:
                rooms.setdefault(entry["name"], []).append(entry)
        found = self._rates.add([merged(rooms[name]) for name in sorted(rooms)], time.monotonic())
        return Listed(found, any(each.truncated for each in told), any(each.partial for each in told))

    async def _told(self, gateway: Process, names: Mapping[int, str]) -> Listed:
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            if len(found) >= SEEN_MAX:
                return Listed(found, True, False)
            asked = f"/api/v1/rooms?after={quote(after, safe='')}&limit={PAGE}"
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

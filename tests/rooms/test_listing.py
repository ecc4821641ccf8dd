"""Lists of rooms from the admin ports of gateways: what is asked again, and what is used again."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.systems.rooms.cli import listing
from muster_server.systems.rooms.cli.listing import Listing

LOCAL = ("127.0.0.1", 1)
GATEWAY = Process(
    name="gateway-0",
    role="gateway",
    node=1,
    partition=0,
    pid=1,
    epoch=1,
    restarts=0,
    ready=True,
    link=LOCAL,
    admin=LOCAL,
    bind=LOCAL,
)
SPARE = {"stream": None, "next_offset": 0, "members": 1, "joining": 0, "held": 0, "held_bytes": 0, "in_force": True}


class Gateway:
    """A gateway with this many rooms, in the place of HTTP. It answers after `takes_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, takes_s: float = 0.0) -> None:
        self.names = [f"room-{number:06d}" for number in range(count)]
        self.takes_s, self.asked, self.silent = takes_s, 0, False
        monkeypatch.setattr(common, "get", self._get)

    async def nodes(self) -> Sequence[Process]:
        """It alone."""
        return [GATEWAY]

    def _get(self, _: Process, path: str, __: float) -> tuple[int, Any]:
        if self.silent:
            raise UserError("no answer")
        self.asked += 1
        time.sleep(self.takes_s)
        asked = parse_qs(urlsplit(path).query)
        text, after, limit = asked.get("search", [""])[0], int(asked.get("after", ["0"])[0]), int(asked["limit"][0])
        names = [name for name in self.names if text in name]
        page = [{"name": name, **SPARE} for name in names[after : after + limit]]
        return 200, {"rooms": page, "next": str(after + limit) if after + limit < len(names) else None}


async def test_a_search_finds_a_room_behind_those_that_a_list_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SEEN_MAX", 3_000)
    rooms = Listing(Gateway(monkeypatch, 10_000).nodes)
    whole = await rooms.rooms()
    assert (len(whole.rooms), whole.truncated) == (3_000, True)
    found = await rooms.rooms("room-009999")
    assert ([room["name"] for room in found.rooms], found.truncated) == (["room-009999"], False)


async def test_a_list_is_shared_and_used_again_in_proportion_to_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, 10, takes_s=0.05)
    rooms = Listing(gateway.nodes)
    await asyncio.gather(*(rooms.rooms() for _ in range(10)))
    assert gateway.asked == 1
    await rooms.rooms()
    assert gateway.asked == 1
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 3_600)
    await rooms.rooms()
    assert gateway.asked == 2


async def test_a_list_that_lacks_a_gateway_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(monkeypatch, 10)
    rooms, gateway.silent = Listing(gateway.nodes), True
    assert (await rooms.rooms()).partial
    gateway.silent = False
    found = await rooms.rooms()
    assert (len(found.rooms), found.partial) == (10, False)


async def test_few_searches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = Listing(Gateway(monkeypatch, 10).nodes)
    for number in range(5 * listing.SEARCHES_MAX):
        await rooms.rooms(f"room-{number}")
    assert len(rooms._searches) <= listing.SEARCHES_MAX + 1

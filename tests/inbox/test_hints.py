"""Hints: the count is that of the moment at which a hint goes out, many users are counted together, and a database that
does not answer costs the count alone."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from muster.errors import Unavailable
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.inbox.hints import AT_ONCE, Hints
from muster_server.systems.inbox.records import Told
from muster_server.systems.inbox.shapes import Entry, New
from tests.waiting import PATIENT_S, until


class Client:
    """Takes hints once the test lets it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.published: list[str] = []
        self.open = asyncio.Event()
        self.waiting = 0

    async def send(self, user: int, data: bytes, *, expires: float) -> list[Any]:
        self.waiting += 1
        await self.open.wait()
        self.waiting -= 1
        self.sent.append((user, json.loads(data)["inbox"]))
        return []

    async def publish(self, room: str, data: bytes, *, timeout: float) -> None:
        self.published.append(room)


class Store:
    """Counts, or does not answer."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.count, self.away = 1, False

    async def unread(self, users: Sequence[int], now: int) -> dict[int, int]:
        if self.away:
            raise StoreError("away")
        self.asked.append(len(users))
        return dict.fromkeys(users, self.count)


class Site:
    """Hints that run, their client and their store."""

    def __init__(self) -> None:
        self.client, self.store = Client(), Store()
        self.hints = Hints(self.opened, self.store.unread, structlog.get_logger(), pushes=True)

    async def opened(self) -> Any:
        return self.client

    def tell(self, *users: int) -> None:
        for user in users:
            self.hints.entry(Told(user, 5, New("like", b"1"), push=True))


@pytest.fixture
async def site() -> Any:
    made = Site()
    running = asyncio.create_task(made.hints.run())
    yield made
    running.cancel()
    await asyncio.wait([running], timeout=PATIENT_S)


async def test_users_are_counted_together_and_each_count_is_read_when_its_hint_goes_out(site: Site) -> None:
    site.tell(*range(2 * AT_ONCE))
    await until(lambda: site.client.waiting == AT_ONCE)
    assert site.store.asked == [AT_ONCE]
    site.hints.broadcast(1, Entry("b1", "news", "", "", 1, 0, b"1", False, "all"))
    site.store.count = 0  # all is read while the others wait for a place
    site.client.open.set()
    await until(lambda: len(site.client.sent) == 2 * AT_ONCE)
    assert {hint["unread"] for user, hint in site.client.sent if user >= AT_ONCE} == {0}
    assert {hint["unread"] for user, hint in site.client.sent if user < AT_ONCE} == {1}
    assert sum(site.store.asked) == 2 * AT_ONCE
    assert site.client.published == ["audience:all"]


async def test_a_hint_without_a_count_goes_out_while_the_database_is_away(site: Site) -> None:
    site.store.away = True
    site.client.open.set()
    site.tell(7)
    await until(lambda: site.client.sent == [(7, {"seq": 5, "kind": "like", "begin": "1"})])


async def test_hints_go_on_after_a_client_that_could_not_be_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.systems.inbox.hints.AGAIN_S", 0.0)
    tries = iter([Unavailable("no gateway"), None])

    async def opened() -> Any:
        if error := next(tries, None):
            raise error
        return site.client

    monkeypatch.setattr(site.hints, "_client", opened)
    site.client.open.set()
    site.tell(7)
    await until(lambda: len(site.client.sent) == 1)

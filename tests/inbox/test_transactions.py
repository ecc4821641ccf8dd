"""Messages to `inbox:USER` over the three databases: an entry if and only if the transaction commits, and its mail unless
it was read.

The orders and the inbox are in one database. The test delivers messages and says how late it is.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from muster.database.transactions import Transactions
from muster.errors import Unavailable
from muster.inbox import entry
from muster_server.plane.database.url import location
from muster_server.systems.inbox.database.store import SqlStore
from muster_server.systems.inbox.mails import Mails
from muster_server.systems.inbox.records import Limits
from muster_server.systems.inbox.shapes import Count, Cursor, Mark, New, Page, Read
from muster_server.systems.inbox.target import Target
from tests.databases import Database
from tests.fakes.face import face
from tests.inbox.conftest import Rig
from tests.messages.handlers import CHECKS, ORDERS
from tests.messages.test_transactions import Shop

TEN_MINUTES_MS: Final = 600_000
TOPIC: Final = "orders"
USER: Final = 7


class Dies(Transactions):
    """A handler that dies after its commit: it sends nothing."""

    def send(self, *_: Any) -> Any:
        raise Unavailable("the handler is dead")


class Site:
    """Orders, the inbox, and the way between them."""

    def __init__(self, shop: Shop, rig: Rig) -> None:
        self.shop, self.inboxes = shop, rig.inboxes
        self._target = Target(rig.inboxes)

    async def order(self, number: int, transactions: Transactions | None = None, *, fails: bool = False) -> None:
        """Write an order, and its notice, in one transaction."""
        notice = entry("order", {"order": number})
        async with (
            self.shop.session() as session,
            (transactions or self.shop.messages).transaction(session, TOPIC, notice),
        ):
            await session.execute(insert(ORDERS).values(id=number))
            if fails:
                raise ValueError(number)

    async def deliver(self) -> None:
        """Hand every message to the inbox, twice, as after a lost answer."""
        for held in self.shop.plane.held(TOPIC):
            for _ in range(2):
                await self._target.put(str(USER), f"{TOPIC}:{held.id}", held.body, held.type)

    async def told(self) -> list[bytes]:
        """The data of the user's entries."""
        page = await self.inboxes.ask(Read(USER, after=Cursor()), Page)
        return [each.data for each in page.entries]


@pytest.fixture
async def site(database: Database, tmp_path: Path) -> AsyncIterator[Site]:
    with face(CHECKS, TOPIC) as plane:
        shop, rig = Shop(database.url, plane), Rig(tmp_path, database.url)
        await shop.open()
        await rig.start()
        try:
            yield Site(shop, rig)
        finally:
            await rig.inboxes.close()
            await rig.end()
            await shop.close()


async def test_an_entry_is_there_if_and_only_if_its_transaction_commits(site: Site) -> None:
    await site.order(1)
    with pytest.raises(ValueError, match="2"):
        await site.order(2, fails=True)
    dies = site.shop.answering(Dies, 5.0)
    await site.order(3, dies)
    async with AsyncSession(site.shop.engine) as session:  # a handler that dies before its commit
        block = dies.transaction(session, TOPIC, entry("order", {"order": 4}))
        await block.__aenter__()
        await session.execute(insert(ORDERS).values(id=4))
    await site.deliver()
    assert await site.told() == [b'{"order":1}']
    await site.shop.settle()  # the plane asks what came of the others
    await site.deliver()
    assert await site.told() == [b'{"order":1}', b'{"order":3}']
    assert await site.shop.committed() == {1, 3}


class Taken:
    """A topic in memory: the way of mails."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        assert (place, kind) == ("mail", "application/json")
        self.ids.append(id)

    async def close(self) -> None:
        """It holds nothing."""


@contextlib.asynccontextmanager
async def stored(database: Database) -> AsyncIterator[SqlStore]:
    store = SqlStore(location(database.url), "test", Limits(mails=True, mail="unless_read"))
    try:
        yield store
    finally:
        await store.close()


async def test_a_mail_goes_out_after_ten_minutes_unless_its_entry_was_read(database: Database) -> None:
    topic = Taken()
    async with stored(database) as store:
        mails = Mails(store, topic, "mail", structlog.get_logger())
        await store.notify([(user, New("order", b"1")) for user in (7, 8, 9)], 0)
        await store.mark(Mark(8, "read", Cursor(1, 0)), TEN_MINUTES_MS - 2)
        await store.mark(Mark(9, "seen", Cursor(1, 0)), TEN_MINUTES_MS - 2)
        await mails.turn(TEN_MINUTES_MS - 1)
        assert topic.ids == []
        await mails.turn(TEN_MINUTES_MS)
        assert sorted(topic.ids) == ["mail:7:1", "mail:9:1"], "seen is not read"
        await store.mark(Mark(7, "read", Cursor(1, 0)), TEN_MINUTES_MS + 1)
        await mails.turn(10 * TEN_MINUTES_MS)
        assert len(topic.ids) == 2
        assert (await store.count(Count(7), 10 * TEN_MINUTES_MS)).unread == {}

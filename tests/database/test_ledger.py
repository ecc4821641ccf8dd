"""The ledger of `examples/portal` on SQLite, MariaDB and PostgreSQL: tasks that come twice, and at once, in any order."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import DBAPIError

from portal.ledger import GIFT, Accounts
from portal.services import create_in, engine_of
from portal.settings import driven
from portal.tables import Ledger, Order, new_id
from tests.databases import Database

BUYERS, ORDERS, EACH = 4, 12, 6


@pytest.fixture
async def accounts(database: Database) -> AsyncIterator[Accounts]:
    url = driven(database.url)
    await create_in(url, Ledger.metadata)
    engine = engine_of(url)
    yield Accounts(engine)
    await engine.dispose()


def ordered(buyer: int, fee: int) -> Order:
    return Order(id=new_id(), share=1, buyer=buyer, fee=fee, state="waiting")


async def test_an_order_is_taken_and_returned_once_however_many_tasks_try(accounts: Accounts) -> None:
    async def insisted(order: Order, step: int) -> None:
        """A task: it runs again after an error, as a deadlock is one."""
        while True:
            try:
                if step % 3 == 2 and order.id % 2:
                    await accounts.give_back(order)
                else:
                    await accounts.take(order, seller=99)
                return
            except DBAPIError:
                await asyncio.sleep(0)

    orders = [ordered(at % BUYERS, fee=3) for at in range(ORDERS)]
    await asyncio.gather(*(insisted(order, step) for step in range(EACH) for order in orders))
    states = await accounts.payments([order.id for order in orders])
    returned = {order.id for order in orders if order.id % 2}
    assert {id for id, state in states.items() if state == "returned"} == returned
    assert set(states.values()) <= {"returned", "taken"}
    taken = sum(3 for state in states.values() if state == "taken")
    assert await accounts.credits(99) == GIFT + taken
    assert await accounts.total() == 0


async def test_credits_never_fall_below_zero(accounts: Accounts) -> None:
    orders = [ordered(1, fee=9) for _ in range(4)]
    states = [await accounts.take(order, seller=2) for order in orders]
    assert states == ["taken", "taken", "refused", "refused"]
    assert (await accounts.credits(1), await accounts.credits(2)) == (2, 38)
    assert await accounts.take(orders[2], seller=2) == "refused"  # the same task again


async def test_an_order_that_was_returned_before_it_was_taken_is_never_taken(accounts: Accounts) -> None:
    order = ordered(1, fee=5)
    await accounts.give_back(order)
    assert await accounts.take(order, seller=2) == "returned"
    assert (await accounts.credits(1), await accounts.credits(2)) == (GIFT, GIFT)

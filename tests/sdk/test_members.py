"""Gateways count and name the members of a room, for any client that asks."""

import asyncio
import contextlib
import time

import pytest

import muster
import muster.testing
from tests.waiting import PATIENT_S

TOKENS = {b"ann": 7, b"bob": 3, b"cy": 1 << 63}


async def answered(client: muster.Client, wanted: muster.Members) -> None:
    """Ask for the members of `r`, as often as that is allowed, until the answer is this one."""
    said = None
    async with asyncio.timeout(PATIENT_S):
        while said != wanted:
            try:
                said = await client.members("r")
            except muster.Refused as error:
                await asyncio.sleep(error.retry_after or 0)


async def test_memberships_are_counted_and_users_are_named_once_and_in_order() -> None:
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(muster.testing.instance(tokens=TOKENS))
        for token in (b"ann", b"bob", b"ann", b"cy"):
            client = await stack.enter_async_context(muster.connect(address, token=token))
            room = await stack.enter_async_context(client.join("live:final"))
        assert await client.members("live:final") == muster.Members(4, (), False, False)
        assert await room.members(ids=True) == muster.Members(4, (3, 7, 1 << 63), False, False)
        assert await room.members(ids=True, start=4) == muster.Members(4, (7, 1 << 63), False, False)


async def test_the_answer_tells_how_the_question_went(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r"):
        began = time.monotonic()
        broker, gateway = (await client.members("r")).hops
        whole = time.monotonic() - began
    assert broker.node != gateway.node
    assert 0 < gateway.seconds <= broker.seconds <= whole


async def test_who_has_left_is_no_member_and_a_room_without_members_has_none(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        assert await client.members("r", ids=True) == muster.Members(0, (), False, False)
        async with client.join("r") as room:
            assert (await room.members(ids=True)).ids == (1,)
        await answered(client, muster.Members(0, (), False, False))  # the leave is on its way


async def test_more_users_than_an_answer_names_are_named_page_by_page() -> None:
    tokens = {b"user %d" % user: user for user in range(10, 130)}
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(muster.testing.instance(tokens=tokens))
        for token in tokens:
            client = await stack.enter_async_context(muster.connect(address, token=token, proxies=()))
            await stack.enter_async_context(client.join("crowd"))
        asking = await stack.enter_async_context(muster.connect(address, token=b"user 10", gateways=()))
        first = await asking.members("crowd", ids=True)
        assert (first.count, first.ids, first.truncated) == (120, tuple(range(10, 110)), True)
        rest = await asking.members("crowd", ids=True, start=first.ids[-1] + 1)
        assert (rest.count, rest.ids, rest.truncated) == (120, tuple(range(110, 130)), False)


async def test_a_user_asks_five_questions_at_once_and_commands_do_not_count_as_such(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client:
        said = await asyncio.gather(*(client.members("r") for _ in range(10)), return_exceptions=True)
        assert await client.command("r", b"x") == muster.NoMember()
        refused = [error for error in said if isinstance(error, muster.Refused)]
        assert len(refused) == 5
        assert {(error.code, error.retry) for error in refused} == {("rate_limited", True)}
        await asyncio.sleep(max(error.retry_after or 0 for error in refused))
        assert (await client.members("r")).count == 0


async def test_where_no_broker_answers_nobody_is_counted_by_mistake(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r"):
        address.stop("broker")
        with pytest.raises(muster.TimedOut):
            await client.members("r", wait=0.2)


async def test_a_gateway_that_does_not_answer_makes_the_answer_partial(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r"):
        assert await client.members("r") == muster.Members(1, (), False, False)
        address.stop("gateway")
        assert await client.members("r", ids=True, wait=0.2) == muster.Members(0, (), False, True)
        address.start("gateway")
        await answered(client, muster.Members(1, (), False, False))


@pytest.mark.parametrize(("start", "wait"), [(-1, 1), (1 << 64, 1), ("7", 1), (0, 0), (0, 61), (0, float("nan"))])
async def test_mistakes_are_told_before_anything_is_asked(
    address: muster.testing.Instance, start: int, wait: float
) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(muster.Invalid):
            await client.members("r", ids=True, start=start, wait=wait)
        with pytest.raises(muster.BadRoomName):
            await client.members("")
    with pytest.raises(muster.Closed):
        await client.members("r")

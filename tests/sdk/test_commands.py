"""A command reaches every member once, apart from the messages, and its sender gets the outcome."""

import asyncio
import contextlib

import pytest

import muster
import muster.testing
from tests.sdk.items import next_of


async def test_every_member_is_told_once_and_the_sender_learns_how_many(address: muster.testing.Instance) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sender = await stack.enter_async_context(muster.connect(address))
        rooms = []
        for _ in range(3):
            client = await stack.enter_async_context(muster.connect(address, proxies=()))
            rooms.append(await stack.enter_async_context(client.join("live:final")))
        outcome = await sender.command("live:final", b"half-time", expires=10)
        assert outcome == muster.Delivered(3)
        told = [await next_of(room, muster.Command) for room in rooms]
        await sender.publish("live:final", b"behind it")
        behind = [await anext(room) for room in rooms]
    assert {(command.room, command.data, command.sender) for command in told} == {("live:final", b"half-time", 1)}
    assert len({command.number for command in told}) == 1
    assert [isinstance(item, muster.Message) for item in behind] == [True] * 3
    assert [room.stats()["commands"] for room in rooms] == [1] * 3


async def test_a_room_without_members_is_said_to_be_so(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        assert await client.command("nobody:here", b"x") == muster.NoMember()


async def test_the_sender_may_be_a_member_and_is_told_as_well(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        assert await client.command("r", b"me too") == muster.Delivered(1)
        assert (await next_of(room, muster.Command)).data == b"me too"


async def test_more_than_one_at_once_is_refused_with_the_time_to_wait(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        said = await asyncio.gather(*(client.command("r", b"x") for _ in range(20)), return_exceptions=True)
        refused = [error for error in said if isinstance(error, muster.Refused)]
        assert len(refused) == 19
        assert said.count(muster.NoMember()) == 1
        assert {(error.code, error.retry) for error in refused} == {("rate_limited", True)}
        waits = [error.retry_after for error in refused if error.retry_after is not None]
        assert len(waits) == 19
        assert 0 < min(waits) <= max(waits) < 1.1
        await asyncio.sleep(max(waits))
        assert await client.command("r", b"x") == muster.NoMember()


async def test_an_instance_can_be_told_to_take_more_at_once() -> None:
    async with muster.testing.instance(command_burst=5) as address, muster.connect(address) as client:
        said = await asyncio.gather(*(client.command("r", b"x") for _ in range(6)), return_exceptions=True)
    assert said.count(muster.NoMember()) == 5


@pytest.mark.parametrize(
    ("data", "expires", "error"),
    [
        (b"x" * 801, 5, muster.TooLong),
        ("text", 5, muster.Invalid),
        (b"x", 0, muster.Invalid),
        (b"x", 61, muster.Invalid),
        (b"x", float("nan"), muster.Invalid),
    ],
)
async def test_mistakes_are_told_before_anything_is_sent(
    address: muster.testing.Instance, data: bytes, expires: float, error: type[muster.MusterError]
) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(error):
            await client.command("r", data, expires=expires)
        with pytest.raises(muster.BadRoomName):
            await client.command("", b"x")


async def test_the_longest_command_to_the_room_with_the_longest_name_comes(address: muster.testing.Instance) -> None:
    name = "n" * 32 + ":" + "r" * 160
    async with muster.connect(address) as client, client.join(name) as room:
        assert await client.command(name, b"x" * 800) == muster.Delivered(1)
        assert (await next_of(room, muster.Command)).data == b"x" * 800


async def test_a_client_that_is_closed_ends_its_commands(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        waiting = asyncio.create_task(client.command("r", b"x" * 10))
        await asyncio.sleep(0)
        await client.close()
        with contextlib.suppress(muster.Closed):
            assert await waiting == muster.NoMember()

"""A gateway that stands still or dies for good: its members move in time, and commands do not wait for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

import muster
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import until, until_asked

ROOM = "live:silent"
GATEWAYS = {"gateways": 2}
ELSEWHERE_S_MAX = 1.5
EVERY_S = 0.05
"""The pause between messages that show when the first one arrives."""
ROUNDS = 3
"""A machine with other work may delay a client for this long as well, but not repeatedly."""
FOUND_S = 3.0
"""After this silence a gateway counts as without members."""


async def gateway_of_members(instance: Instance) -> str:
    """The one that has any, once earlier members are forgotten there."""

    def having() -> list[str]:
        return [name for name in instance.names("gateway") if instance.metrics(name)["members"]]

    await until_asked(lambda: len(having()) == 1)
    return having()[0]


@contextlib.asynccontextmanager
async def member(instance: Instance, items: list[tuple[float, muster.Item]]) -> AsyncIterator[None]:
    """Be in the room while the block lasts, and note arrivals and their times."""
    async with muster.connect(instance.folder.path, proxies=[]) as client, client.join(ROOM) as room:

        async def read() -> None:
            async for item in room:
                came = time.monotonic()
                items.append((came, item))

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            yield
            reading.cancel()


async def elsewhere(instance: Instance, said: int) -> float:
    """The time from its gateway's stop until a member has one message more than `said`."""
    items = list[tuple[float, muster.Item]]()
    async with member(instance, items), muster.connect(instance.folder.path, gateways=[]) as client:
        for number in range(2):
            if number < said:
                await client.publish(ROOM, b"%d" % number)
            await asyncio.sleep(1.0)
        async with instance.stopped(await gateway_of_members(instance)):
            stopped, number = time.monotonic(), said
            while len(items) == said:
                assert time.monotonic() < stopped + 30.0
                await client.publish(ROOM, b"%d" % number)
                number += 1
                await asyncio.sleep(EVERY_S)
            took = items[said][0] - stopped
            await until(lambda: len(items) == number)
    assert [item.data for _, item in items if isinstance(item, muster.Message)] == [b"%d" % at for at in range(number)]
    return took


@pytest.mark.parametrize("said", [2, 0], ids=["one a second", "quiet"])
async def test_a_member_that_hears_little_is_at_another_gateway_within_one_and_a_half_seconds(
    make: Make, figures: Callable[..., None], said: int
) -> None:
    instance, times = make(up=APART | GATEWAYS), list[float]()
    with instance.running():
        while not any(took < ELSEWHERE_S_MAX for took in times) and len(times) < ROUNDS:
            times.append(await elsewhere(instance, said))
    figures(said=said, elsewhere_s=[round(took, 3) for took in times])
    assert times[-1] < ELSEWHERE_S_MAX, times


@contextlib.asynccontextmanager
async def dead(instance: Instance, name: str) -> AsyncIterator[None]:
    """SIGKILL, and nobody starts it again while the block lasts."""
    with strikes.standing_still(instance.record().pid):
        killed = instance.kill(name)
        yield
    await instance.back(name, killed)


@pytest.mark.parametrize("strike", [Instance.stopped, dead], ids=["stopped", "dead"])
async def test_a_command_does_not_wait_for_a_gateway_that_is_gone(
    make: Make, strike: Callable[..., contextlib.AbstractAsyncContextManager[None]]
) -> None:
    instance, items = (
        make(up=APART | GATEWAYS | {"brokers": "1x2", "routers": "1x2"}),
        list[tuple[float, muster.Item]](),
    )
    with instance.running():
        async with member(instance, items), muster.connect(instance.folder.path, gateways=[]) as client:
            assert await client.command(ROOM, b"before", expires=3.0) == muster.Delivered(1)
            async with strike(instance, await gateway_of_members(instance)):
                await asyncio.sleep(FOUND_S)
                assert await client.command(ROOM, b"after", expires=3.0) == muster.Delivered(1)
                assert await client.members(ROOM) == muster.Members(1, (), truncated=False, partial=False)
            told = [item.data for _, item in items if isinstance(item, muster.Command)]
            assert told == [b"before", b"after"]

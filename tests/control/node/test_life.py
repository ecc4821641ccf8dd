"""A node ends in order once it serves, and at once before that, whenever it is asked."""

import asyncio
from collections.abc import Callable

import pytest

from muster_server.control.node.life import Life
from muster_server.plane.spec import SpecError


class Node:
    """Waits for something without a limit, then serves until its end."""

    def __init__(self, life: Life) -> None:
        self.registry, self.end, self.stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.did: list[str] = []
        self._life = life

    async def work(self) -> None:
        self.did.append("began")
        try:
            await self.registry.wait()
            self._life.watch(self.end, self.stop)
            await self.end.wait()
            self.did.append("drained")
        finally:
            self.did.append("ended")


ORDERS = [Life.end, Life.stop]


@pytest.mark.parametrize("order", ORDERS)
async def test_a_node_that_waits_ends_at_once(order: Callable[[Life], None]) -> None:
    life = Life()
    node = Node(life)
    running = asyncio.create_task(life.run(node.work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert node.did == ["began"]
    order(life)
    await running
    assert node.did == ["began", "ended"]


@pytest.mark.parametrize("order", ORDERS)
async def test_an_order_before_the_first_step_is_not_lost(order: Callable[[Life], None]) -> None:
    life = Life()
    node = Node(life)
    order(life)
    await life.run(node.work())
    assert node.did == []
    running = asyncio.create_task(life.run(node.work()))
    order(life)
    await running
    assert node.did == []


@pytest.mark.parametrize(("order", "stops"), [(Life.end, False), (Life.stop, True)])
async def test_a_node_that_serves_drains(order: Callable[[Life], None], stops: bool) -> None:
    life = Life()
    node = Node(life)
    node.registry.set()
    running = asyncio.create_task(life.run(node.work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    order(life)
    await running
    assert node.did == ["began", "drained", "ended"]
    assert node.stop.is_set() is stops


async def test_an_error_and_a_cancellation_by_nobodys_order_are_passed_on() -> None:
    async def fails() -> None:
        raise SpecError("no key")

    with pytest.raises(SpecError, match="no key"):
        await Life().run(fails())
    life = Life()
    running = asyncio.create_task(life.run(Node(life).work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

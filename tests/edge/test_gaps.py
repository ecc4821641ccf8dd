"""Gaps at a real edge under faults, as an unchanged SDK tells them: each is announced, and none draws a storm."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import muster
from tests.edge import sdks
from tests.edge.role import Role, role
from tests.edge.watcher import Watcher, watching
from tests.faults.instance import APART
from tests.waiting import PATIENT_S

ROOMS: Final = ("faults:one", "faults:two", "faults:three")
STRUCK: Final = ("broker", "router", "edge")
RESUBSCRIPTIONS_MAX: Final = 2
"""Limit for a subscription and fault: an SDK asks again at once, so a loop would be hundreds."""
STILL_S: Final = 2.0
"""Longer than the time after which a node that stands still is passed by."""
EVERY_S: Final = 0.02


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Role]:
    sdks.need("js")
    with role(tmp_path, "edge", up=APART) as serving:
        yield serving


class Publisher:
    """Publishes numbers to each room, and keeps those that were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = defaultdict[str, list[int]](list)
        self.next = 0

    async def run(self, client: muster.Client, stop: asyncio.Event) -> None:
        """A number to each room, again and again."""
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                self.next += 1
                for room in ROOMS:
                    tasks.create_task(self._publish(client, room, self.next))
                await asyncio.sleep(EVERY_S)

    async def _publish(self, client: muster.Client, room: str, number: int) -> None:
        await client.publish(room, b"%d" % number)
        self.acknowledged[room].append(number)


async def strike(edge: Role, node: str, *, kills: bool) -> None:
    """One fault, to its end."""
    if kills:
        await edge.instance.renew(node)
    else:
        async with edge.instance.stopped(node):
            await asyncio.sleep(STILL_S)


async def go_on(watcher: Watcher, publisher: Publisher) -> None:
    """Wait until messages from now on come in all rooms."""
    mark = publisher.next + 1
    await watcher.until(lambda: all(max(watcher.seen(room), default=0) >= mark for room in ROOMS))


async def under_faults(edge: Role, rounds: int, *, made: bool = False) -> None:
    """All faults, this number of times. `made`: the server subscribes to the rooms, as the client's token says."""
    rooms, entered = ((), ROOMS) if made else (ROOMS, ())
    publisher, stop, told = Publisher(), asyncio.Event(), list[str]()
    async with (
        asyncio.timeout(PATIENT_S * (1 + rounds)),
        watching(edge.url, edge.token(7, rooms=entered), rooms, entered) as watcher,
        muster.connect(edge.instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
        asyncio.TaskGroup() as tasks,
    ):
        publishing = tasks.create_task(publisher.run(client, stop))
        await go_on(watcher, publisher)
        for turn, kills, node in itertools.product(range(rounds), (True, False), STRUCK):
            before = watcher.count("subscribing")
            await strike(edge, node, kills=kills)
            await go_on(watcher, publisher)
            for room, count in (watcher.count("subscribing") - before).items():
                if count > RESUBSCRIPTIONS_MAX:
                    fault = "kill -9" if kills else "SIGSTOP"
                    told.append(f"{fault} of {node}, round {turn}: {room} was subscribed {count} times")
        stop.set()
        await publishing
        last = publisher.next
        await watcher.until(lambda: all(max(watcher.seen(room)) == last for room in ROOMS))
    assert told + watcher.faults(publisher.acknowledged) == []


async def test_each_loss_is_announced_and_none_draws_a_storm(edge: Role) -> None:
    await under_faults(edge, 1)


async def test_losses_in_rooms_of_a_token_are_announced_and_the_client_stays_in_them(edge: Role) -> None:
    await under_faults(edge, 1, made=True)


@pytest.mark.soak
async def test_the_same_over_and_over(edge: Role) -> None:
    await under_faults(edge, 10)

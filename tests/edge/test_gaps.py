"""Gaps at a real edge under faults, as an unchanged SDK tells them: each is announced, and none draws a storm."""

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import muster
from tests.edge import sdks
from tests.edge.role import Role, role
from tests.edge.watcher import Watcher, watching
from tests.faults.instance import APART, Instance
from tests.faults.test_growth import grow
from tests.strikes import standing_still
from tests.waiting import PATIENT_S

ROOMS: Final = ("faults:one", "faults:two", "faults:three")
STRUCK: Final = ("broker", "router", "edge")
KILL, STOP, END = "kill -9", "SIGSTOP", "SIGTERM"
FAULTS: Final = (*((KILL, node) for node in STRUCK), *((STOP, node) for node in STRUCK), (END, "edge"))
DRAIN_S: Final = 1.0
RESUBSCRIPTIONS_MAX: Final = 2
"""Limit for a subscription and fault: an SDK asks again at once, so a loop would be hundreds."""
STILL_S: Final = 2.0
"""Longer than the time after which a node that stands still is passed by."""
EVERY_S: Final = 0.02
ARENA_MIB: Final = 8
LARGE: Final = 20_000
"""Bytes of filler in a message."""
MISSED: Final = 1_200
"""So large messages: more than the edge keeps and sockets hold."""
BATCH: Final = 40


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Role]:
    sdks.need("js")
    with role(tmp_path, "edge", up=APART, edge={"drain_s": DRAIN_S, "arena_mib": ARENA_MIB}) as serving:
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


async def strike(edge: Role, fault: str, node: str) -> None:
    """One fault, to its end."""
    if fault == KILL:
        await edge.instance.renew(node)
    elif fault == END:
        await edge.instance.renew(node, Instance.terminate)
    else:
        async with edge.instance.stopped(node):
            await asyncio.sleep(STILL_S)


def often(watcher: Watcher, before: Counter[str], fault: str) -> list[str]:
    """The rooms that were subscribed to too often since then."""
    since = watcher.count("subscribing") - before
    return [f"{fault}: {room} was subscribed {n} times" for room, n in since.items() if n > RESUBSCRIPTIONS_MAX]


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
        for turn, (fault, node) in itertools.product(range(rounds), FAULTS):
            before = watcher.count("subscribing")
            await strike(edge, fault, node)
            await go_on(watcher, publisher)
            told += often(watcher, before, f"{fault} of {node}, round {turn}")
        stop.set()
        await publishing
        last = publisher.next
        await watcher.until(lambda: all(max(watcher.seen(room)) == last for room in ROOMS))
    assert told + watcher.faults(publisher.acknowledged) == []


async def test_each_loss_is_announced_and_none_draws_a_storm(edge: Role) -> None:
    await under_faults(edge, 1)


async def test_losses_in_rooms_of_a_token_are_announced_and_the_client_stays_in_them(edge: Role) -> None:
    await under_faults(edge, 1, made=True)


async def test_brokers_and_routers_double_and_clients_miss_nothing_in_silence(edge: Role) -> None:
    publisher, stop = Publisher(), asyncio.Event()
    async with (
        asyncio.timeout(2 * PATIENT_S),
        watching(edge.url, edge.token(7), ROOMS) as watcher,
        muster.connect(edge.instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
        asyncio.TaskGroup() as tasks,
    ):
        publishing = tasks.create_task(publisher.run(client, stop))
        told: list[str] = []
        for layer in ("broker", "router"):
            await go_on(watcher, publisher)
            before = watcher.count("subscribing")
            assert await grow(edge.instance, layer, "--to", "2", "--grace", "1") == 2
            await go_on(watcher, publisher)
            told += often(watcher, before, f"doubling of {layer}")
        stop.set()
        await publishing
        last = publisher.next
        await watcher.until(lambda: all(max(watcher.seen(room)) == last for room in ROOMS))
    assert told + watcher.faults(publisher.acknowledged) == []


async def test_a_client_that_stood_still_hears_of_one_gap_and_goes_on(edge: Role) -> None:
    room, acknowledged = ROOMS[0], list[int]()
    async with (
        asyncio.timeout(2 * PATIENT_S),
        watching(edge.url, edge.token(7), [room]) as watcher,
        muster.connect(edge.instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
    ):

        async def publish(number: int, size: int = 0) -> None:
            data = json.dumps({"n": number, "filler": "." * size})
            await client.publish(room, data.encode())
            acknowledged.append(number)

        await publish(0)
        await watcher.until(lambda: watcher.seen(room) == [0])
        before = watcher.count("subscribing")
        with standing_still(watcher.pid):
            for first in range(1, MISSED, BATCH):
                await asyncio.gather(*(publish(first + at, LARGE) for at in range(BATCH)))
        last = max(acknowledged)
        while max(watcher.seen(room)) <= last:  # what it had in its sockets may come before
            await publish(max(acknowledged) + 1)
            await asyncio.sleep(EVERY_S)
    lost = set(acknowledged) - set(watcher.seen(room))
    assert lost
    assert often(watcher, before, "standstill") + watcher.faults({room: acknowledged}) == []


@pytest.mark.soak
async def test_the_same_over_and_over(edge: Role) -> None:
    await under_faults(edge, 10)

"""Pages of a feed over two partitions, each with a port in the test's own loop, while the table of slots changes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from muster_server._engines import LikesEngine
from muster_server.plane.ownership.errors import Full
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.listener import Listener
from muster_server.systems.likes.reach import Reach
from muster_server.systems.likes.slots import Node, partition_of, slots_of
from tests.likes.serve import SEGMENT_BYTES, serve
from tests.redis_server import client_of

ITEMS = [b"share:%d" % number for number in range(30)]
VIEWER = 7


class Two:
    """Partitions 0 and 1. `listed`: which of both ports each partition has, as clients are told; None: no port."""

    def __init__(self, folder: Path) -> None:
        self.engines = [
            LikesEngine(folder=str(folder / str(number)), segment_bytes=SEGMENT_BYTES) for number in range(2)
        ]
        self.listeners: list[Listener] = []
        self.ports: list[int] = []
        self._epoch = 0

    async def start(self) -> None:
        for engine in self.engines:
            listener, port = await serve(engine)
            self.listeners.append(listener)
            self.ports.append(port)
        for item in ITEMS:
            async with client_of(self.ports[partition_of(item, 2)]) as redis:
                await redis.setbit(item, VIEWER, 1)

    def tell(self, listed: Sequence[int | None]) -> None:
        self._epoch += 1
        nodes: list[Node] = []
        for port_of in range(2):
            ranges = [slots_of(partition, 2) for partition, port in enumerate(listed) if port == port_of]
            nodes.append((f"{port_of}" * 40, "127.0.0.1", self.ports[port_of], ranges))
        for me, engine in enumerate(self.engines):
            engine.set_cluster(nodes, me, self._epoch)

    def close(self) -> None:
        for listener, engine in zip(self.listeners, self.engines, strict=True):
            listener.close()
            engine.close()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    made = Two(tmp_path)
    await made.start()
    yield made
    made.close()


def client(two: Two) -> Likes:
    return Likes(Reach([("127.0.0.1", two.ports[0])]))


async def whole(likes: Likes) -> bool:
    """Whether the page has the like of each item, some of which are of either partition."""
    assert {partition_of(item, 2) for item in ITEMS} == {0, 1}
    return [(entry.count, entry.likes, entry.newest) for entry in await likes.feed(ITEMS, VIEWER, 3)] == [
        (1, True, [VIEWER])
    ] * len(ITEMS)


async def test_a_page_takes_one_command_of_each_partition(two: Two) -> None:
    two.tell([0, 1])
    async with client(two) as likes:
        assert await whole(likes)
    assert [engine.figures()["feeds"] for engine in two.engines] == [1, 1]
    assert sum(engine.figures()["feed_items"] for engine in two.engines) == len(ITEMS)


async def test_a_page_follows_a_partition_that_has_moved(two: Two) -> None:
    two.tell([0, 0])
    async with client(two) as likes:
        await likes.likes(ITEMS[0], VIEWER)  # so that it knows the table
        two.tell([0, 1])
        assert await whole(likes)


async def test_a_page_waits_for_a_partition_without_an_owner(two: Two) -> None:
    two.tell([0, None])
    async with client(two) as likes:
        await likes.likes(next(item for item in ITEMS if partition_of(item, 2) == 0), VIEWER)
        page = asyncio.create_task(whole(likes))
        # Until its items of partition 0 are answered.
        while not (two.engines[0].figures()["feeds"] or page.done()):  # noqa: ASYNC110 - the engine tells no one
            await asyncio.sleep(0.01)
        two.tell([0, 1])
        assert await page


async def test_a_page_is_refused_while_a_part_of_it_has_no_owner(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.systems.likes.routes.PATIENCE_S", 0.0)
    two.tell([None, 1])
    async with client(two) as likes:
        with pytest.raises(Full, match="no node has the slot now"):
            await likes.feed(ITEMS, VIEWER, 3)

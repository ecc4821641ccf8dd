"""The copy in a real Redis: counts and rankings a second later, also after that Redis or the node was away."""

import asyncio
import contextlib
import shutil
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis

from muster_server._engines import LikesEngine
from muster_server.systems.likes.behind import Behind
from muster_server.systems.likes.changes import Changes
from muster_server.systems.likes.mirror import Mirror, Target
from muster_server.systems.likes.options import LikesOptions
from muster_server.systems.likes.partition import Partition
from muster_server.systems.likes.records import StoredState
from tests.likes.test_behind import Fails, Node
from tests.ports import free_ports
from tests.waiting import PATIENT_S

LOG = structlog.get_logger()
pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")


class Server:
    """A Redis that keeps nothing."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: Process | None = None

    async def start(self) -> None:
        command = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = await asyncio.create_subprocess_exec("redis-server", *command, stdout=DEVNULL, stderr=DEVNULL)
        async with Redis.from_url(self.url) as client, asyncio.timeout(PATIENT_S):
            while True:
                with contextlib.suppress(Exception):
                    await client.ping()
                    return
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.start()
    yield made
    await made.kill()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LikesEngine]:
    made = LikesEngine(folder=str(tmp_path), segment_bytes=8 << 20)
    yield made
    made.close()


def node_of(engine: LikesEngine) -> Node:
    return Node(Partition(engine, Behind(engine, Fails(), LikesOptions(), LOG, StoredState())))


@contextlib.asynccontextmanager
async def following(engine: LikesEngine, mirror: Mirror) -> AsyncIterator[None]:
    """The changes reach the mirror; the test has it write."""
    task = asyncio.create_task(Changes(engine, [mirror.waiting]).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await mirror.close()


async def told(mirror: Mirror, items: int) -> None:
    """Wait until so many items wait."""
    async with asyncio.timeout(PATIENT_S):
        while len(mirror.waiting) < items:  # noqa: ASYNC110 - a task fills it
            await asyncio.sleep(0.01)


async def test_counts_and_rankings_are_read_from_redis(engine: LikesEngine, server: Server) -> None:
    node = node_of(engine)
    await node.like("share:1", 1)
    mirror = Mirror(engine, Target(server.url, None, "likes:"), LOG)
    async with following(engine, mirror), Redis.from_url(server.url, decode_responses=True) as reader:
        assert await mirror.tried()
        assert await reader.get("likes:count:share:1") == "1", "what was there before is written at the start"
        await node.like("share:2", 1)
        await node.like("share:2", 2)
        await node("LIKE.FIELDS", "share:1", "agriculture")
        await told(mirror, 2)
        assert await mirror.tried()
        assert await reader.get("likes:count:share:2") == "2"
        assert await reader.zrevrange("likes:rank", 0, 9, withscores=True) == [("share:2", 2.0), ("share:1", 1.0)]
        assert await reader.zrevrange("likes:rank:share", 0, 9) == ["share:2", "share:1"]
        assert await reader.zrevrange("likes:rank:agriculture", 0, 9) == ["share:1"]
        await node("LIKE.FIELDS", "share:1", "sports")
        await node("DEL", "share:2")
        await told(mirror, 2)
        assert await mirror.tried()
        assert await reader.zrevrange("likes:rank:agriculture", 0, 9) == []
        assert await reader.zrevrange("likes:rank:sports", 0, 9) == ["share:1"]
        assert await reader.zrevrange("likes:rank", 0, 9) == ["share:1"]
        assert await reader.exists("likes:count:share:2") == 0


async def test_dead_redis_costs_nothing_and_is_written_when_it_is_back(engine: LikesEngine, server: Server) -> None:
    node = node_of(engine)
    mirror = Mirror(engine, Target(server.url, None, ""), LOG)
    async with following(engine, mirror):
        assert await mirror.tried()
        await server.kill()
        for turn in range(10):
            assert await node.like("share:1", turn) is False
            await told(mirror, 1)
            assert not await mirror.tried()
            assert (mirror.status()["connected"], mirror.status()["items_behind"]) == (False, 1)
        await server.start()
        async with Redis.from_url(server.url) as reader, asyncio.timeout(PATIENT_S):
            assert await mirror.tried()
            while await reader.get("count:share:1") != b"10":  # the last changes may reach the mirror only now
                await asyncio.sleep(0.01)
                assert await mirror.tried()
        assert mirror.status()["error"] == ""


async def test_items_of_an_earlier_life_are_gone_after_a_start(engine: LikesEngine, server: Server) -> None:
    async with Redis.from_url(server.url) as other:
        await other.set("likes:count:share:9", 5)
        await other.zadd("likes:rank:share", {"share:9": 5})
        await other.zadd("likes:rank", {"share:9": 5})
        await other.set("else", 1)
        node = node_of(engine)
        await node.like("share:1", 1)
        mirror = Mirror(engine, Target(server.url, None, "likes:"), LOG)
        assert await mirror.tried()
        assert await other.exists("likes:count:share:9") == 0
        assert await other.zrevrange("likes:rank:share", 0, 9) == [b"share:1"]
        assert await other.zrevrange("likes:rank", 0, 9) == [b"share:1"]
        assert await other.get("else") == b"1"
        await mirror.close()


async def test_partition_that_writes_beside_others_leaves_their_items_alone(
    engine: LikesEngine, server: Server
) -> None:
    async with Redis.from_url(server.url) as other:
        for item in ("share:8", "share:9"):
            await other.set(f"likes:count:{item}", 5)
            await other.zadd("likes:rank", {item: 5})
        await node_of(engine).like("share:1", 1)
        mirror = Mirror(engine, Target(server.url, None, "likes:"), LOG, lambda item: item != b"share:9")
        assert await mirror.tried()
        assert await other.zrevrange("likes:rank", 0, 9) == [b"share:9", b"share:1"]
        assert [await other.exists(f"likes:count:share:{number}") for number in (1, 8, 9)] == [1, 0, 1]
        await mirror.close()

"""Bitmaps of a real Redis become likes, once each, also after an interruption."""

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from muster_server.systems.likes.cli.importing import CHUNK_BYTES, Done, Moving
from muster_server.systems.likes.client import Likes
from tests.likes.conftest import Node
from tests.likes.test_mirror import Server

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")


@pytest.fixture
async def source() -> AsyncIterator[Redis]:
    server = Server()
    await server.start()
    async with Redis.from_url(server.url) as client:
        yield client
    await server.kill()


async def fill(source: Redis, items: int, most: int, seed: int = 1) -> dict[bytes, set[int]]:
    """Items with their likers, some with none and some beyond the first chunk."""
    dice = random.Random(seed)
    filled: dict[bytes, set[int]] = {}
    for item in range(items):
        key = b"share:%d" % item
        filled[key] = {dice.randrange(12 * CHUNK_BYTES) for _ in range(dice.randrange(1, most))}
        async with source.pipeline(transaction=False) as pipe:
            for user in filled[key]:
                pipe.setbit(key, user, 1)
            await pipe.execute()
    return filled


async def moved(source: Redis, likes: Likes, file: Path) -> Moving:
    done = Done(file)
    moving = Moving(source, likes, done)
    try:
        await moving.run("share:*")
    finally:
        done.close()
    return moving


async def check(node: Node, filled: dict[bytes, set[int]]) -> None:
    for key, users in filled.items():
        assert set(node.engine.likers(key, 0, 10_000)) == users
        assert node.engine.count(key) == len(users)


async def test_every_bit_of_one_becomes_a_like(source: Redis, node: Node, likes: Likes, tmp_path: Path) -> None:
    filled = await fill(source, 12, 3_000)
    await source.set("other:1", b"\xff")
    await source.sadd("share:set", "no", "bitmap")
    await source.setbit("share:none", 70, 0)
    moving = await moved(source, likes, tmp_path / "done")
    count = sum(map(len, filled.values()))
    assert (moving.keys, moving.before, moving.of, moving.likes, moving.new) == (13, 0, 13, count, count)
    await check(node, filled)
    assert node.engine.figures()["likes"] == count
    again = await moved(source, likes, tmp_path / "done")
    assert (again.keys, again.before, again.likes) == (0, 13, 0)


async def test_interrupted_import_goes_on_and_counts_nothing_twice(
    source: Redis, node: Node, likes: Likes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = await fill(source, 8, 3_000)
    whole, left = Moving._put, [7]

    async def fails(self: Moving, key: bytes, users: list[int]) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ConnectionError("cut")
        await whole(self, key, users)

    monkeypatch.setattr(Moving, "_put", fails)
    with pytest.raises(ConnectionError):
        await moved(source, likes, tmp_path / "done")
    with (tmp_path / "done").open("ab") as file:
        file.write(b"73686172")  # a line that a crash cut
    moving = await moved(source, likes, tmp_path / "done")
    assert 0 < moving.before < 8
    assert moving.keys == 8 - moving.before
    await check(node, filled)


@pytest.mark.soak
async def test_million_likes_move(source: Redis, node: Node, likes: Likes, tmp_path: Path) -> None:
    filled = await fill(source, 200, 10_000)
    count = sum(map(len, filled.values()))
    assert count > 900_000
    moving = await moved(source, likes, tmp_path / "done")
    assert moving.new == count
    await check(node, filled)

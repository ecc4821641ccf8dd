"""The likes engine by way of a real client, and of a second owner."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from muster_server._engines import LikesEngine
from muster_server.systems.likes.logged import now_ms
from tests.likes.serve import SEGMENT_BYTES, serve
from tests.redis_server import client_of

SNOWFLAKE = 1_790_123_456_789_012_345


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[LikesEngine, Redis]]:
    engine = LikesEngine(folder=str(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    listener, port = await serve(engine)
    async with Redis(host="127.0.0.1", port=port) as client:
        yield engine, client
    listener.close()
    engine.close()


async def test_redis_client_likes_counts_and_ranks(served: tuple[LikesEngine, Redis]) -> None:
    engine, client = served
    assert await client.setbit("share:1000", SNOWFLAKE, 1) == 0
    assert await client.setbit("share:1000", SNOWFLAKE, 1) == 1
    async with client.pipeline(transaction=False) as pipe:
        for user in range(200):
            pipe.setbit(f"share:{user % 3}", user, 1)
        pipe.bitcount("share:0")
        pipe.zrevrange("rank:share", 0, 1, withscores=True)
        assert (await pipe.execute())[200:] == [67, [(b"share:1", 67.0), (b"share:0", 67.0)]]
    assert engine.likes(b"share:1000", SNOWFLAKE)
    assert engine.items(SNOWFLAKE, 0, 9) == [b"share:1000"]
    assert engine.newest(b"share:0", 2) == [198, 195]
    assert engine.rank(b"rank", b"share:1000") == 3
    assert engine.page(b"rank@24h", 3, 1, now_ms())[0][0] == b"share:1000"
    assert engine.both([b"share:0", b"share:1"]) == []
    with pytest.raises(ResponseError, match="bit offset"):
        await client.setbit("share:1000", 1 << 64, 1)


async def test_rows_are_written_once_and_a_snapshot_restarts_the_engine(
    served: tuple[LikesEngine, Redis], tmp_path: Path
) -> None:
    engine, client = served
    for user in range(20):
        await client.setbit("share:1", user * SNOWFLAKE // 20, 1)
    (_, [(key, modification, likes)]) = engine.rows(0, 100, 1 << 20)
    assert (key, likes and likes[0]) == (b"share:1", 20)
    await client.setbit("share:1", 5, 1)
    engine.written(key, modification)
    assert engine.figures()["not_written_behind"] == 1, "changed since the row was taken"
    (_, [(key, modification, _)]) = engine.rows(0, 100, 1 << 20)
    engine.written(key, modification)
    assert engine.rows(0, 100, 1 << 20) == (None, [])
    snapshot = engine.snapshot()
    await client.setbit("share:1", 6, 1)
    copy = shutil.copytree(tmp_path / "log", tmp_path / "copy")
    again = LikesEngine(folder=str(copy), segment_bytes=SEGMENT_BYTES, snapshot=snapshot)
    assert again.count(b"share:1") == 22
    assert again.newest(b"share:1", 2) == [6, 5]
    again.close()


async def test_fenced_owner_answers_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    first = LikesEngine(folder=folder, segment_bytes=SEGMENT_BYTES, epoch=1)
    listener, port = await serve(first)
    async with client_of(port) as client:
        assert await client.setbit("share:1", 1, 1) == 0
        second = LikesEngine(folder=folder, segment_bytes=SEGMENT_BYTES, epoch=2)
        for _try in range(2):
            with pytest.raises(RedisError, match="belongs to the owner of epoch 2"):
                await client.setbit("share:1", 2, 1)
        assert first.count(b"share:1") == 1
        assert "epoch 2" in first.figures()["refusal"]
    listener.close()
    assert second.count(b"share:1") == 1
    second.close()
    with pytest.raises(OSError, match="epoch 2"):
        LikesEngine(folder=folder, segment_bytes=SEGMENT_BYTES, epoch=1)

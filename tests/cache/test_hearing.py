"""C-7: level 1 serves only while its process hears of drops: connections that end, that are cut silently, and rooms."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest

import muster
import muster.testing
from muster.cache import Cache
from tests.cache.conftest import Makes
from tests.cache.test_fence import Slow
from tests.cache.way import Way
from tests.redis_server import RedisServer, client_of
from tests.waiting import PATIENT_S, until


async def test_a_process_that_is_cut_off_serves_level_1_for_its_lease_and_no_longer(
    caches: Makes, redis_of_the_run: RedisServer, way: Way
) -> None:
    cut = await caches(f"redis://127.0.0.1:{way.port}", near_lease_s=2.0, seconds=0.5)
    writer, database = await caches(redis_of_the_run.url), Slow()
    share = database.of(cut)
    assert await share(7) == 0
    way.cut()
    database.version = 1
    await writer.drop("share:7")
    dropped = time.monotonic()
    while await share(7) == 0:
        served = time.monotonic() - dropped
        await asyncio.sleep(0.01)
    assert served < 2.0
    way.heal()
    await until(lambda: cut._hears.until > time.monotonic(), 60)
    assert [await share(7), await share.strict(7)] == [1, 1]


async def test_a_connection_that_ends_takes_all_of_level_1_with_it(
    caches: Makes, redis_of_the_run: RedisServer, way: Way
) -> None:
    cut = await caches(f"redis://127.0.0.1:{way.port}")
    writer, database = await caches(redis_of_the_run.url), Slow()
    share = database.of(cut)
    assert await share(7) == 0
    cleared = cut.figures()["cleared"]
    way.end_all()
    await until(lambda: cut.figures()["cleared"] > cleared, 60)
    assert cut.figures()["near_count"] == 0
    database.version = 1
    await writer.drop("share:7")
    await until(lambda: cut._hears.until > time.monotonic(), 60)
    assert await share(7) == 1


async def test_a_load_that_began_while_nothing_was_heard_is_not_put_into_level_1(
    redis_of_the_run: RedisServer, way: Way
) -> None:
    way.cut()
    async with asyncio.timeout(60):
        cache = Cache(f"redis://127.0.0.1:{way.port}", name="deaf", seconds=0.3)
        database = Slow()
        share = database.of(cache)
        assert await share(7) == 0
        assert cache.figures()["near_count"] == 0
        slow = await database.asked_again(share)
        way.heal()
        assert await cache.open(60)
        database.go.set()
        await slow
        assert cache.figures()["near_count"] == 0
        await cache.close()


@pytest.mark.parametrize("message", [b"", b"1 {}", b"x", b"1 [7]", b"\xff"])
async def test_a_message_that_is_no_drop_empties_level_1(
    message: bytes, caches: Makes, redis_of_the_run: RedisServer
) -> None:
    cache, database = await caches(redis_of_the_run.url), Slow()
    share = database.of(cache)
    await share(7)
    assert cache.figures()["near_count"] == 1
    async with client_of(redis_of_the_run.port) as client:
        await client.publish(f"muster:cache:{cache.name}", message)
    await until(lambda: cache.figures()["near_count"] == 0)
    assert await share(7) == 0


async def test_drops_reach_another_process_within_milliseconds(caches: Makes, redis_of_the_run: RedisServer) -> None:
    here, there = await caches(redis_of_the_run.url), await caches(redis_of_the_run.url)
    for _ in range(50):
        await there.drop("share:7")
    await until(lambda: here.figures()["heard"] == 50)
    async with asyncio.timeout(PATIENT_S):
        while here.figures()["late_ms"] == 0.0:  # the clock of the Redis is known less well than a drop takes
            await there.drop("share:7")
    assert here.figures()["late_ms"] < 60_000


# --- rooms -----------------------------------------------------------------------------------------------------------


async def test_drops_through_a_room_reach_other_processes_and_end_clients(
    caches: Makes, redis_of_the_run: RedisServer
) -> None:
    async with (
        muster.testing.instance() as address,
        muster.connect(address) as one,
        muster.connect(address) as two,
        muster.connect(address) as end,
    ):
        here, there = await caches(redis_of_the_run.url, rooms=one), await caches(redis_of_the_run.url, rooms=two)
        database = Slow()
        share = database.of(here)
        async with end.join(f"cache:{here.name}") as room:
            assert await share(7) == 0
            database.version = 1
            async with there.changing("share:7"):
                pass
            await until(lambda: here.figures()["heard"] == 2)
            assert await share(7) == 1
            told = [item.data async for item in _first(room, 2)]
        assert [json.loads(data)[1:] for data in told] == [["share:7"]] * 2
        assert here.figures()["near_count"] == 1
        await one.publish(f"cache:{here.name}", b"no drop")
        await until(lambda: here.figures()["near_count"] == 0)
        await here.close()
        await there.close()


async def _first(room: muster.Room, count: int) -> AsyncIterator[muster.Message]:
    async for item in room:
        if isinstance(item, muster.Message) and item.data != b"beat":
            yield item
            count -= 1
            if not count:
                return


async def test_a_room_that_is_away_ends_level_1_and_refuses_drops(caches: Makes, redis_of_the_run: RedisServer) -> None:
    unread = contextlib.suppress(muster.TimedOut)  # at its end the client waits for what was published
    async with muster.testing.instance() as address:
        with unread:
            async with muster.connect(address, timeout=1) as client:
                cache = await caches(redis_of_the_run.url, rooms=client, near_lease_s=1.5)
                share = Slow().of(cache)
                await share(7)
                assert cache._hears.until > time.monotonic()
                address.stop("broker")
                await until(lambda: cache._hears.until < time.monotonic(), 60)
                with pytest.raises(muster.Unavailable, match="does not accept a drop"):
                    await cache.drop("share:7")
                assert await share(7) == 0
                await cache.close()

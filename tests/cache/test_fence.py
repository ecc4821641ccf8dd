"""Nothing older is served after a drop: slow loads, flights, marks of writers that die, and what is told to others.

Two caches of one name stand for two processes.
"""

import asyncio
import time
from typing import Any

import pytest

from muster.cache import Cache, Cached, MarkLapsed
from tests.cache.conftest import Makes
from tests.redis_server import RedisServer, client_of
from tests.waiting import PATIENT_S, until


class Slow:
    """A database whose answers are what it had when it was asked, and leave when they may."""

    def __init__(self) -> None:
        self.version = 0
        self.go = asyncio.Event()
        self.go.set()
        self.asked = 0

    async def read(self, id: int) -> int:
        self.asked += 1
        version = self.version
        await self.go.wait()
        return version

    def of(self, cache: Cache, **options: Any) -> Cached[[int], int]:
        return cache.cached("share:{id}", **({"fresh_s": 60.0} | options))(self.read)

    async def asked_again(self, share: Cached[[int], int]) -> asyncio.Task[int]:
        """A read that has its answer, but not yet here."""
        before = self.asked
        self.go.clear()
        task = asyncio.ensure_future(share(7))
        await until(lambda: self.asked > before)
        return task


async def test_a_slow_load_does_not_write_back_what_was_dropped(cache: Cache) -> None:
    database = Slow()
    share = database.of(cache)
    slow = await database.asked_again(share)
    database.version = 1
    await cache.drop("share:7")
    database.go.set()
    assert await slow == 0  # it began before
    assert [await share(7), await share(7), await share.strict(7)] == [1, 1, 1]
    assert cache.figures()["refused"] == 1


async def test_nor_does_that_of_another_process(caches: Makes, redis_of_the_run: RedisServer) -> None:
    reader, writer, database = await caches(redis_of_the_run.url), await caches(redis_of_the_run.url), Slow()
    share, same = database.of(reader), database.of(writer)
    slow = await database.asked_again(share)
    database.version = 1
    await writer.drop("share:7")
    database.go.set()
    assert await slow == 0
    assert [await share.strict(7), await same(7), await share(7)] == [1, 1, 1]


async def test_a_caller_after_a_drop_joins_no_load_from_before_it(cache: Cache) -> None:
    database = Slow()
    share = database.of(cache)
    slow = await database.asked_again(share)
    database.version = 1
    await cache.drop("share:7")
    later = await database.asked_again(share)
    database.go.set()
    assert (await slow, await later) == (0, 1)
    assert await share(7) == 1


async def test_each_flight_of_a_key_is_dirty_not_only_the_one_that_callers_join(cache: Cache) -> None:
    database = Slow()
    share = database.of(cache)
    flights = [await database.asked_again(share)]
    await cache.drop("share:7")
    flights.append(await database.asked_again(share))
    database.version = 1
    await cache.drop("share:7")
    database.go.set()
    assert await asyncio.gather(*flights) == [0, 0]
    assert await share(7) == 1


async def test_another_process_hears_of_a_drop(caches: Makes, redis_of_the_run: RedisServer) -> None:
    here, there, database = await caches(redis_of_the_run.url), await caches(redis_of_the_run.url), Slow()
    share, same = database.of(here), database.of(there)
    assert [await share(7), await same(7)] == [0, 0]
    database.version = 1
    await there.drop("share:7")
    assert [await same(7), await share.strict(7)] == [1, 1]
    await until(lambda: here.figures()["heard"] == 1)
    assert await share(7) == 1


async def test_nothing_is_stored_while_a_mark_stands_and_no_level_keeps_it_if_its_writer_dies(
    caches: Makes, redis_of_the_run: RedisServer
) -> None:
    here, there, database = await caches(redis_of_the_run.url), await caches(redis_of_the_run.url), Slow()
    share = database.of(here)
    assert await share(7) == 0
    await there._change(["share:7"], "a writer that dies", 0.3)
    await until(lambda: here.figures()["heard"] == 1)
    assert [await share(7), await share.strict(7)] == [0, 0]
    database.version = 1  # committed, and never dropped
    asked = database.asked
    assert [await share(7), await share(7)] == [1, 1]
    assert database.asked == asked + 2
    while here.figures()["far_hits"] == 0:  # until the mark has lapsed
        assert await share.strict(7) == 1
        await asyncio.sleep(0.01)
    assert await share(7) == 1


async def test_a_mark_belongs_to_its_writer(cache: Cache) -> None:
    database = Slow()
    share = database.of(cache)
    async with cache.changing("share:7"):
        async with cache.changing("share:7"):
            pass
        assert await share(7) == 0
        database.version = 1
        assert await share(7) == 1
    assert await share(7) == 1


async def test_an_error_of_the_body_takes_the_mark_off(cache: Cache) -> None:
    database = Slow()
    share = database.of(cache)
    with pytest.raises(LookupError):
        async with cache.changing("share:7", "share:8"):
            raise LookupError
    asked = database.asked
    assert [await share(7) for _ in range(3)] == [0, 0, 0]
    assert database.asked == asked + 1


async def test_a_writer_that_is_cancelled_drops_all_the_same(cache: Cache) -> None:
    database, begun = Slow(), asyncio.Event()
    share = database.of(cache)

    async def write() -> None:
        async with cache.changing("share:7"):
            database.version = 1
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [await share(7), await share(7)] == [1, 1]
    await until(lambda: not cache._tasks)


async def test_a_mark_gets_more_time_while_the_body_runs(caches: Makes, redis_of_the_run: RedisServer) -> None:
    for url in ("", redis_of_the_run.url):
        cache, database = await caches(url, name=f"renew{len(url)}", mark_s=1.0), Slow()
        share = database.of(cache)
        async with cache.changing("share:7") as change:
            began = time.monotonic()
            while time.monotonic() < began + 1.3:  # longer than the mark
                assert await share(7) == 0
                change.check()
                await asyncio.sleep(0.02)
            assert cache.figures()["marked"] == database.asked


async def test_a_writer_that_stood_still_is_told_to_roll_back(caches: Makes, redis_of_the_run: RedisServer) -> None:
    cache = await caches(redis_of_the_run.url, mark_s=0.05)
    async with cache.changing("share:7") as change:
        time.sleep(0.1)  # noqa: ASYNC251 - it stands still
        with pytest.raises(MarkLapsed, match=r"the mark of share:7 has lapsed: roll back") as error:
            change.check()
    assert (error.value.code, error.value.retry) == ("mark_lapsed", True)


async def test_a_mark_that_a_redis_lost_is_made_anew(caches: Makes, redis_of_the_run: RedisServer) -> None:
    cache, database = await caches(redis_of_the_run.url, mark_s=0.3), Slow()
    share = database.of(cache)
    async with client_of(redis_of_the_run.port) as client, cache.changing("share:7"):
        await client.flushdb()
        await share(7)
        marked = cache.figures()["marked"]
        while cache.figures()["marked"] == marked:
            await asyncio.sleep(0.02)
            await share.strict(7)


async def test_fills_are_told_to_nobody(caches: Makes, redis_of_the_run: RedisServer) -> None:
    cache, database = await caches(redis_of_the_run.url), Slow()
    share = database.of(cache, absent_s=1.0)
    async with client_of(redis_of_the_run.port) as client, client.pubsub() as listener:
        await listener.subscribe(f"muster:cache:{cache.name}")
        assert await listener.get_message(timeout=PATIENT_S)
        for id in range(100):
            await share(id)
        assert cache.figures()["loads"] == 100
        await cache.drop("share:7")
        message = await listener.get_message(timeout=PATIENT_S)
        assert message is not None
        assert message["data"].partition(b" ")[2] == b'["","share:7"]'


async def test_level_1_ends_no_later_than_level_2(caches: Makes, redis_of_the_run: RedisServer) -> None:
    one, two, database = await caches(redis_of_the_run.url), await caches(redis_of_the_run.url), Slow()
    first, second = database.of(one, fresh_s=30.0, early=0), database.of(two, fresh_s=30.0, early=0)
    for id in range(100):
        assert await first(id) == 0
        loaded = time.monotonic()
        await asyncio.sleep(0.2)  # the time itself is what is tested
        assert await second(id) == 0
        kept = two._near.get(f"share:{id}")
        assert kept is not None
        if time.monotonic() - loaded < 0.3:  # no stall of the machine stands between
            assert kept.until <= loaded + 30.0 + 0.1
            return
    raise AssertionError("this machine stalls all the time")

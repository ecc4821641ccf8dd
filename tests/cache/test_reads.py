"""Reads of a cache, alone and over a Redis: one load, stale while loading, early, absent, strict, errors and bounds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from muster import Invalid
from muster.cache import Cache, where
from muster.cache import reading as module
from tests.cache.conftest import Database, Makes
from tests.redis_server import RedisServer
from tests.waiting import until


async def test_callers_that_come_together_share_one_load(cache: Cache, database: Database) -> None:
    go = asyncio.Event()

    @cache.cached("share:{id}", fresh_s=30)
    async def share(id: int) -> dict[str, int]:
        database.begin()
        await go.wait()
        return {"id": id}

    callers = [asyncio.create_task(share(7)) for _ in range(50)]
    await until(lambda: database.loads)
    go.set()
    assert await asyncio.gather(*callers) == [{"id": 7}] * 50
    assert await share(id=7) == {"id": 7}
    assert database.loads == 1


async def test_a_caller_that_leaves_takes_nothing_from_the_others(cache: Cache, database: Database) -> None:
    go = asyncio.Event()

    @cache.cached("share:{id}", fresh_s=30)
    async def share(id: int) -> int:
        database.begin()
        await go.wait()
        return id

    first, second = asyncio.create_task(share(7)), asyncio.create_task(share(7))
    await until(lambda: database.loads)
    first.cancel()
    go.set()
    assert await second == 7
    assert first.cancelled() or await asyncio.gather(first, return_exceptions=True)
    assert database.loads == 1


async def test_a_value_is_what_its_encoded_form_gives_from_the_first_call_on(cache: Cache) -> None:
    @cache.cached("pair", fresh_s=30)
    async def pair() -> Any:
        return {"pair": (1, 2)}

    assert await pair() == await pair() == await pair.strict() == {"pair": [1, 2]}


async def test_a_value_that_json_does_not_have_is_refused_with_its_key(cache: Cache) -> None:
    @cache.cached("thing:{id}", fresh_s=30)
    async def thing(id: int) -> object:
        return object()

    with pytest.raises(Invalid, match=r"the value of thing:7 cannot be encoded.*give encode and decode"):
        await thing(7)


async def test_a_function_may_have_its_own_encoding(cache: Cache) -> None:
    def read(data: bytes) -> complex:
        return complex(data.decode())

    @cache.cached("z", fresh_s=30, encode=lambda z: str(z).encode(), decode=read)
    async def z() -> complex:
        return 1 + 2j

    assert await z() == await z() == 1 + 2j


async def test_what_is_absent_is_kept_for_a_while(cache: Cache, database: Database) -> None:
    @cache.cached("share:{id}", fresh_s=30, absent_s=30)
    async def share(id: int) -> int | None:
        database.begin()
        return None

    @cache.cached("other:{id}", fresh_s=30, absent_s=0)
    async def other(id: int) -> int | None:
        database.begin()
        return None

    assert [await share(7) for _ in range(3)] == [None] * 3
    assert database.loads == 1
    assert [await other(7) for _ in range(3)] == [None] * 3
    assert database.loads == 4
    assert cache.figures()["absent"] == 4


async def test_an_error_of_a_load_comes_to_all_its_callers_and_is_not_kept(cache: Cache, database: Database) -> None:
    go = asyncio.Event()

    @cache.cached("share:{id}", fresh_s=30)
    async def share(id: int) -> int:
        database.begin()
        await go.wait()
        if database.loads == 1:
            raise LookupError("no such table")
        return id

    callers = [asyncio.create_task(share(7)) for _ in range(3)]
    await until(lambda: database.loads)
    go.set()
    assert [str(each) for each in await asyncio.gather(*callers, return_exceptions=True)] == ["no such table"] * 3
    assert await share(7) == 7
    assert cache.figures()["failures"] == 1


async def test_a_stale_value_is_served_while_one_load_runs(cache: Cache, database: Database) -> None:
    go = asyncio.Event()

    @cache.cached("share:{id}", fresh_s=0.05, stale_s=60, early=0)
    async def share(id: int) -> int:
        database.begin()
        if database.loads > 1:
            await go.wait()
        return database.loads

    assert await share(7) == 1
    await asyncio.sleep(0.06)  # the time itself is what is tested
    assert [await share(7) for _ in range(20)] == [1] * 20
    while database.loads == 1:  # a slow process knows the clock of the Redis less exactly
        assert await share(7) == 1
        await asyncio.sleep(0.005)
    go.set()
    while await share(7) == 1:  # noqa: ASYNC110 - the level in the process has it for a moment
        await asyncio.sleep(0.005)
    assert cache.figures()["stale"] > 0


async def test_a_strict_read_waits_for_the_load_of_what_is_stale(cache: Cache, database: Database) -> None:
    @cache.cached("share:{id}", fresh_s=0.05, stale_s=60, early=0)
    async def share(id: int) -> int:
        database.begin()
        return database.loads

    assert await share(7) == 1
    await asyncio.sleep(0.5)  # as above
    assert await share.strict(7) == 2


async def test_a_value_is_loaded_early_by_one_while_it_is_served(
    cache: Cache, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_drawn", lambda: 1e9)  # as it may be drawn once in a long time

    @cache.cached("share:{id}", fresh_s=60)
    async def share(id: int) -> int:
        database.begin()
        await asyncio.sleep(0)
        return database.loads

    assert await share(7) == 1
    monkeypatch.setattr(module, "_drawn", lambda: 0.0)
    assert await share(7) == 1
    await until(lambda: database.loads == 2)
    while await share(7) == 1:  # noqa: ASYNC110 - a task of the cache stores it
        await asyncio.sleep(0.005)
    assert (await share(7), database.loads) == (2, 2)
    assert cache.figures()["early"] == 1


async def test_entries_made_together_end_at_different_times(cache: Cache) -> None:
    @cache.cached("share:{id}", fresh_s=100, early=0)
    async def share(id: int) -> int:
        return id

    for id in range(50):
        await share(id)
    ends = [kept.until for id in range(50) if (kept := cache._near.get(f"share:{id}"))]
    assert 1 < max(ends) - min(ends) < 10.5


async def test_loads_at_once_are_bounded(caches: Makes, redis_of_the_run: RedisServer, database: Database) -> None:
    cache = await caches(redis_of_the_run.url, loads_at_once=3)

    @cache.cached("share:{id}", fresh_s=60)
    async def share(id: int) -> int:
        database.begin()
        await asyncio.sleep(0.001)
        database.end()
        return id

    assert await asyncio.gather(*(share(id) for id in range(200))) == list(range(200))
    assert (database.loads, database.most) == (200, 3)


async def test_two_processes_make_one_load(caches: Makes, redis_of_the_run: RedisServer, database: Database) -> None:
    async def slow(id: int) -> int:
        database.begin()
        await asyncio.sleep(0.05)
        return id

    both = [await caches(redis_of_the_run.url) for _ in range(2)]
    shares = [cache.cached("share:{id}", fresh_s=60)(slow) for cache in both]
    assert await asyncio.gather(*(share(7) for share in shares for _ in range(20))) == [7] * 40
    assert database.loads == 1


async def test_the_load_of_a_process_that_died_is_taken_over(
    caches: Makes, redis_of_the_run: RedisServer, database: Database
) -> None:
    dead, alive = await caches(redis_of_the_run.url, lock_s=0.2), await caches(redis_of_the_run.url)
    never = asyncio.Event()

    @dead.cached("share:{id}", fresh_s=60)
    async def stuck(id: int) -> int:
        database.begin()
        await never.wait()
        return 0

    @alive.cached("share:{id}", fresh_s=60)
    async def share(id: int) -> int:
        return id

    task = asyncio.create_task(stuck(7))
    await until(lambda: database.loads)
    assert await share(7) == 7
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_value_that_is_too_long_is_given_and_not_kept(
    caches: Makes, redis_of_the_run: RedisServer, database: Database
) -> None:
    cache = await caches(redis_of_the_run.url, value_bytes_max=100)

    @cache.cached("share:{id}", fresh_s=60)
    async def share(id: int) -> str:
        database.begin()
        return "x" * 200

    assert await share(7) == await share(7) == "x" * 200
    assert (database.loads, cache.figures()["too_long"]) == (2, 2)


async def test_a_load_is_told_to_read_the_primary_after_a_drop_and_no_longer(cache: Cache) -> None:
    told: list[bool] = []

    @cache.cached("share:{id}", fresh_s=60)
    async def share(id: int) -> int:
        told.append(where.primary)
        return id

    await share(1)
    await cache.drop("share:2")
    await share(2)
    async with cache.changing("share:3"):
        await share(3)
    await share.strict(4)
    assert told == [False, True, True, True]
    assert not where.primary


async def test_without_a_redis_reads_go_on_and_changes_raise_before_their_body(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", appendonly=False).start()
    try:
        await _goes_on_without(server)
    finally:
        server.end()


async def _goes_on_without(server: RedisServer) -> None:
    loads = 0
    async with Cache(server.url) as cache:

        @cache.cached("share:{id}", fresh_s=60)
        async def share(id: int) -> int:
            nonlocal loads
            loads += 1
            return id

        await share(7)
        server.kill()
        await until(lambda: cache._hears.until == 0.0)
        assert await asyncio.gather(*(share(8) for _ in range(20))) == [8] * 20
        assert loads == 2
        body = False
        with pytest.raises(Exception, match="the Redis of the cache does not answer") as error:
            async with cache.changing("share:7"):
                body = True
        assert (type(error.value).__name__, body) == ("Unavailable", False)
        async with cache.changing("share:7", on_outage="go on"):
            body = True
        assert body
        with pytest.raises(Exception, match="does not answer"):
            await cache.drop("share:7")
        assert cache.figures()["away"] > 0
        server.start()
        await until(lambda: cache._hears.until > 0.0, 60)
        await until(lambda: not cache._owed, 60)
        assert await share(7) == 7


async def test_a_cache_is_of_one_loop_and_says_so(redis_of_the_run: RedisServer) -> None:
    cache = Cache(redis_of_the_run.url)

    async def read() -> None:
        await cache.drop("a")

    await asyncio.to_thread(asyncio.run, _closed_after(cache, read))
    with pytest.raises(Invalid, match="belongs to another event loop"):
        await cache.drop("a")


async def _closed_after(cache: Cache, read: Any) -> None:
    await read()
    await cache.close()


def test_what_is_no_setting_is_refused() -> None:
    for options, words in (
        ({"url": "http://h"}, r"invalid URL of a Redis"),
        ({"url": "redis://:secret@h"}, "has a password"),
        ({"url": "redis+sentinel://a,b"}, "invalid URL of a Redis"),
        ({"name": ""}, "invalid key"),
        ({"name": "a{b"}, "braces"),
        ({"near_bytes": 0}, "near_bytes 0"),
        ({"hold_s": -1}, "hold_s"),
        ({"encode": json.dumps}, "give both"),
        ({"on_outage": "wait"}, "on_outage"),
        ({"password": "x"}, "one process"),
    ):
        with pytest.raises(Invalid, match=words) as error:
            Cache(**options)
        assert "secret" not in str(error.value)
    cache = Cache()
    with pytest.raises(Invalid, match="fresh_s must be above 0"):
        cache.cached("a", fresh_s=0)

"""C-8: what a Redis has from an earlier life is not served: after failovers by real sentinels and in a real cluster, and by
a server that comes back with what it had before."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

from muster import Unavailable
from muster.cache import Cache
from muster.cache.far import InRedis
from tests.cache.test_fence import Slow
from tests.fleet.redises import WORD, Cluster, Sentinels
from tests.redis_server import RedisServer, client_of
from tests.waiting import PATIENT_S, until

FAILOVERS: Final = int(os.environ.get("MUSTERTEST_FAILOVERS", "20"))
needs_redis = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")


@pytest.fixture
async def sentinels(tmp_path: Path) -> AsyncIterator[Sentinels]:
    made = Sentinels(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.end()


def of(cache: Cache) -> InRedis:
    """Its level 2."""
    assert isinstance(cache._far, InRedis)
    return cache._far


async def dropped(cache: Cache, *keys: str) -> None:
    """Once the Redis answers again."""
    while True:
        try:
            return await cache.drop(*keys)
        except Unavailable:
            await asyncio.sleep(0.05)


@needs_redis
async def test_a_promoted_replica_that_missed_a_drop_serves_nothing_older(sentinels: Sentinels) -> None:
    await fail_over(sentinels, "share:7")


async def fail_over(sentinels: Sentinels, key: str) -> None:
    """Cut the replica off, drop at the master, kill it: the replica that is promoted has the old value."""
    master, replica = sentinels.redis
    database = Slow()
    async with Cache(sentinels.url, password=WORD, name="main") as cache, Cache(sentinels.url, password=WORD) as other:
        share, same = database.of(cache), database.of(other)
        assert [await share(7), await same(7)] == [0, 0]
        async with client_of(master.port, password=WORD) as client, client_of(replica.port, password=WORD) as there:
            assert await client.wait(1, 10_000) == 1
            assert await there.exists(of(cache).names(key)[0])
            await there.config_set("masterauth", "wrong")
            await there.client_kill_filter(_type="master")
            await client.client_kill_filter(_type="replica")
            database.version = 1
            await cache.drop(key)
        master.kill()
        async with asyncio.timeout(PATIENT_S):
            await until(lambda: cache._hears.until == 0.0, 60)
            await until(lambda: cache._hears.until > 0.0, 60)
            assert await share.strict(7) == 1
            assert await same.strict(7) == 1
            await until(lambda: other.figures()["cleared"] > 1, 60)
            assert [await share(7), await same(7)] == [1, 1]


async def test_a_server_that_comes_back_with_what_it_had_serves_nothing_of_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        database = Slow()
        async with Cache(server.url) as cache:
            share = database.of(cache)
            assert await share(7) == 0
            kept = server.keep()
            database.version = 1
            await cache.drop("share:7")
            server.come_back_with(kept)
            assert server.said("EXISTS", of(cache).names("share:7")[0]) == 1
            assert await share.strict(7) == 1
            await until(lambda: cache._hears.until > 0.0, 60)
            assert await share(7) == 1
            assert cache.figures()["suspect"] >= 0
    finally:
        server.end()


async def test_a_load_from_before_a_restart_is_not_stored_after_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        database = Slow()
        async with Cache(server.url) as cache:
            share = database.of(cache)
            slow = await database.asked_again(share)
            kept = server.keep()  # it has the token
            database.version = 1
            await cache.drop("share:7")
            server.come_back_with(kept)
            await until(lambda: cache._hears.until > 0.0, 60)
            database.go.set()
            assert await slow == 0
            assert [await share(7), await share.strict(7)] == [1, 1]
            assert cache.figures()["refused"] == 1
    finally:
        server.end()


async def test_a_demoted_master_is_left(tmp_path: Path) -> None:
    one, two = RedisServer(tmp_path / "one", appendonly=False).start(), RedisServer(tmp_path / "two").start()
    try:
        database = Slow()
        async with Cache(one.url) as cache:
            share = database.of(cache)
            assert await share(7) == 0
            one.said("REPLICAOF", "127.0.0.1", str(two.port))
            await until(lambda: cache._hears.until == 0.0, 60)
            database.version = 1
            assert [await share(7), await share.strict(7)] == [1, 1]
            with pytest.raises(Unavailable):
                await cache.drop("share:7")
    finally:
        one.end()
        two.end()


@needs_redis
async def test_a_cluster_is_one_cache_and_its_promoted_replica_serves_nothing_older(tmp_path: Path) -> None:
    cluster, database = Cluster(tmp_path), Slow()
    try:
        await cluster.start()
        await cluster.replicated()
        async with Cache(cluster.url, name="c") as cache, Cache(cluster.url, name="c") as other:
            share, same = database.of(cache), database.of(other)
            for id in range(20):
                assert [await share(id), await same(id)] == [0, 0]
            database.version = 1
            keys = [share.key(id) for id in range(20)]
            async with other.changing(*keys):
                pass
            await until(lambda: cache.figures()["heard"] == 40, PATIENT_S)
            assert [await share(id) for id in range(20)] == [1] * 20
            assert cache.figures()["far_hits"] + cache.figures()["loads"] >= 40
            entry = of(cache).names("share:7")[0]
            master = cluster.master_of(entry)
            master.kill()
            database.version = 2
            async with asyncio.timeout(PATIENT_S):
                await dropped(other, *keys)
                assert [await share.strict(id) for id in range(20)] == [2] * 20
                await until(lambda: cache._hears.until > monotonic(), PATIENT_S)
    finally:
        cluster.end()


@needs_redis
@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_twenty_failovers_serve_nothing_older(tmp_path: Path) -> None:
    for number in range(FAILOVERS):
        made = Sentinels(tmp_path / str(number))
        try:
            await made.start()
            await fail_over(made, "share:7")
        finally:
            made.end()

"""Sessions in a Redis of several servers: with real sentinels, and in a real cluster, whose master is killed."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from muster.redis.where import Where
from muster_server.plane.spec import SpecError
from muster_server.systems.fleet import redis as module
from muster_server.systems.fleet.index import Update
from muster_server.systems.fleet.options import redis_url
from muster_server.systems.fleet.redis import Sessions
from muster_server.systems.fleet.sessions import Waiting
from tests.fleet.redises import WORD, Cluster, Sentinels
from tests.fleet.test_sessions import AT, CHINA, came, has, needs_redis
from tests.waiting import PATIENT_S, until

NODE = 7


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    monkeypatch.setattr(module, "AGAIN_S", 0.1)
    monkeypatch.setattr(module, "CALL_S", 3.0)


@pytest.fixture
async def sentinels(tmp_path: Path) -> AsyncIterator[Sentinels]:
    made = Sentinels(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.end()


async def counted(sessions: Sessions) -> int:
    """Clients that came, over all marks."""
    return sum(sum(minute.came.values()) for minute in await sessions.minutes(AT // 60_000, AT // 60_000))


@needs_redis
async def test_sessions_go_on_at_the_replica_that_sentinels_make_master(sentinels: Sentinels) -> None:
    waiting, records = Waiting(), [Update("a", 1, 1, CHINA)]
    sessions = Sessions(sentinels.url, WORD, "x", NODE, waiting, lambda: records, structlog.get_logger())
    sessions.start()
    try:
        came(waiting, "a")
        await until(lambda: sessions.written == 1)
        async with asyncio.timeout(PATIENT_S):
            while await sessions._redis.wait(1, 1_000) != 1:  # until the replica has it
                pass
        sentinels.redis[0].kill()
        came(waiting, "b")
        records.append(Update("b", 1, 1, CHINA))
        await until(lambda: sessions.written == 2)
        await has(sessions, "a", "b")
        assert await counted(sessions) == 2
    finally:
        await sessions.stop()


@needs_redis
@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
async def test_sessions_are_in_one_slot_of_a_cluster_and_outlive_its_master(cluster: Cluster) -> None:
    waiting, records = Waiting(), [Update("a", 1, 1, CHINA)]
    sessions = Sessions(cluster.url, "", "x", NODE, waiting, lambda: records, structlog.get_logger())
    sessions.start()
    try:
        came(waiting, "a")
        await until(lambda: sessions.written == 1)
        await cluster.replicated()
        cluster.master_of("muster:{x}:fleet:sessions").kill()
        came(waiting, "b")
        records.append(Update("b", 1, 1, CHINA))
        await until(lambda: sessions.written == 2)
        await has(sessions, "a", "b")
        assert await counted(sessions) == 2
    finally:
        await sessions.stop()


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("redis://h", Where("one", (("h", 6379),), False, "", 0, "")),
        ("rediss://u%40x@h:1/3", Where("one", (("h", 1),), True, "u@x", 3, "")),
        ("redis://[::1]:2/0", Where("one", (("::1", 2),), False, "", 0, "")),
        ("redis+sentinel://a,b:7/main", Where("sentinel", (("a", 26379), ("b", 7)), False, "", 0, "main")),
        ("rediss+sentinel://u@a/main/2", Where("sentinel", (("a", 26379),), True, "u", 2, "main")),
        ("redis+cluster://a:1,b:2", Where("cluster", (("a", 1), ("b", 2)), False, "", 0, "")),
    ],
)
def test_where_redis_is_can_be_said_in_a_url(url: str, kept: Where) -> None:
    assert redis_url(url) == kept


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:1",
        "http://h",
        "redis://",
        "redis://a,b",
        "redis://h:x",
        "redis://h/x",
        "redis://h/0/1",
        "redis+sentinel://a,b",
        "redis+sentinel://a/main/x",
        "redis+cluster://a/1",
        "redis+other://a",
        "redis://u:secret@h",
        "u:secret@h",
    ],
)
def test_what_is_no_url_of_redis_is_refused_and_tells_no_password(url: str) -> None:
    with pytest.raises(SpecError, match=r"fleet\.redis: ") as error:
        redis_url(url)
    assert "secret" not in str(error.value)

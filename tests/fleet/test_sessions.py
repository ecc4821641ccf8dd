"""Comings and goings in a real Redis: each is written once, whatever is lost, killed or wiped meanwhile."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from muster_server.control.cluster.programs import Running
from muster_server.control.host.ports import Ports
from muster_server.plane.kind import Launch
from muster_server.plane.ownership.errors import Away
from muster_server.plane.redis.server import SECRET
from muster_server.systems.fleet import redis as module
from muster_server.systems.fleet.index import Update
from muster_server.systems.fleet.keeper import PROGRAM
from muster_server.systems.fleet.redis import Sessions
from muster_server.systems.fleet.sessions import OTHER, Waiting, mark
from tests.waiting import PATIENT_S, until

CHINA = {"country": ["CN"], "province": ["520000"], "city": ["522200"], "carrier": ["1"]}
AT = 29_700_000 * 60_000

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class Server:
    """As `muster up` runs it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with Ports() as ports:
            self.host, self.port = ports.tcp("test", "127.0.0.1")
        self.folder = folder
        launch = Launch(folder, self.host, self.port, lambda name: None)
        self.running = Running(PROGRAM, launch, structlog.get_logger(), lambda: None)

    def sessions(self, waiting: Waiting, records: list[Update]) -> Sessions:
        word = (self.folder / SECRET).read_text().strip()
        url = f"redis://{self.host}:{self.port}/0"
        return Sessions(url, word, "x", 7, waiting, lambda: records, structlog.get_logger())


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    made = Server(tmp_path / "redis")
    await made.running.start()
    yield made
    await made.running.stop()


def came(waiting: Waiting, *names: str) -> None:
    for name in names:
        waiting.changed(Update(name, 1, 1, CHINA), True, CHINA, AT)


async def has(sessions: Sessions, *names: str) -> None:
    """Until these are written, and no others."""
    async with asyncio.timeout(PATIENT_S):
        while {each.client for each in await sessions.load()} != set(names):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


def test_what_was_not_written_comes_before_what_came_meanwhile() -> None:
    waiting = Waiting()
    came(waiting, "a")
    batch = waiting.take()
    waiting.changed(Update("a", 1, 2, None), False, CHINA, AT)
    waiting.put_back(batch)
    again = waiting.take()
    assert [(event.client, event.what) for event in again.events] == [("a", "came"), ("a", "went")]
    assert again.sessions == {"a": None}
    assert sum(again.counts.values()) == 2
    assert waiting.take().empty


def test_too_many_events_are_dropped_and_counted_the_oldest_first() -> None:
    waiting = Waiting(events_max=3)
    came(waiting, *"abcde")
    batch = waiting.take()
    assert ([event.client for event in batch.events], waiting.dropped) == (list("cde"), 2)
    assert sum(batch.counts.values()) == 5  # counts are bounded by marks, not by clients
    assert len(batch.sessions) == 5


def test_a_mark_is_that_of_selectors() -> None:
    assert mark(CHINA) == "CN_520000_522200_1"
    assert mark({"country": ["CN"]}) == OTHER


@needs_redis
async def test_sessions_counts_and_events_are_written_and_read_again(server: Server) -> None:
    waiting, records = Waiting(), [Update("old", 3, 2, CHINA)]
    sessions = server.sessions(waiting, records)
    sessions.start()
    came(waiting, "a", "b")
    waiting.changed(Update("b", 1, 2, None), False, CHINA, AT)
    await until(lambda: sessions.written == 3)
    assert {(each.client, each.epoch) for each in await sessions.load()} == {("old", 3), ("a", 1)}
    (minute,) = await sessions.minutes(AT // 60_000 - 5, AT // 60_000)
    assert (minute.came, minute.went) == ({"CN_520000_522200_1": 2}, {"CN_520000_522200_1": 1})
    await sessions.sweep(lambda name: name == "a")
    await until(lambda: not len(waiting))
    await has(sessions, "a")
    await sessions.stop()


@needs_redis
async def test_a_batch_whose_answer_was_lost_is_not_written_twice(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting()
    sessions = server.sessions(waiting, [])
    write, lost = sessions._write, [True, False, True]

    async def losing(batch: Any) -> None:
        await write(batch)
        if lost and lost.pop():
            raise TimeoutError("the answer was lost")

    monkeypatch.setattr(sessions, "_write", losing)
    sessions.start()
    for name in "abcdef":
        came(waiting, name)
        await until(lambda: not len(waiting))
    await until(lambda: sessions.connected)
    (minute,) = await sessions.minutes(AT // 60_000, AT // 60_000)
    assert minute.came == {"CN_520000_522200_1": 6}
    await sessions.stop()


@needs_redis
async def test_what_a_replica_that_took_over_lacks_is_written_anew(server: Server) -> None:
    waiting, records = Waiting(), [Update("a", 1, 1, CHINA), Update("b", 1, 1, CHINA)]
    sessions = server.sessions(waiting, records)
    sessions.start()
    came(waiting, "a")
    await until(lambda: sessions.written == 1)
    await sessions.sweep(lambda name: True)
    before = await sessions._redis.get("muster:{x}:fleet:batch:7")
    came(waiting, "b")
    await until(lambda: sessions.written == 2)
    pipe = sessions._redis.pipeline(transaction=True)  # as if the last batch had not been replicated
    pipe.set("muster:{x}:fleet:batch:7", before)
    pipe.hdel("muster:{x}:fleet:sessions", "b")
    await pipe.execute()
    await has(sessions, "a", "b")
    assert sessions.stale  # and sessions whose end was lost are looked for
    await sessions.stop()


@needs_redis
async def test_a_redis_that_dies_is_written_again_and_a_wiped_one_is_filled_anew(server: Server) -> None:
    waiting, records = Waiting(), [Update("a", 1, 1, CHINA)]
    sessions = server.sessions(waiting, records)
    sessions.start()
    await until(lambda: sessions.connected)
    os.kill(server.running.told().pid, signal.SIGKILL)
    came(waiting, "b")
    await until(lambda: sessions.written == 1)
    assert {each.client for each in await sessions.load()} == {"a", "b"}
    records.append(Update("b", 1, 1, CHINA))
    await sessions._redis.flushall()
    await has(sessions, "a", "b")
    await server.running.stop()
    with pytest.raises(Away, match="redis:"):
        await sessions.minutes(1, 2)
    assert await sessions.load() == []
    await sessions.stop()

"""The schedule in Redis when Redis dies, stands still, comes back older, or another center takes it over."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from muster.clock import now_ms
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.redis import connect
from muster_server.systems.messages.redis_url import mistake
from muster_server.systems.messages.schedule import NewMessage, Schedule
from muster_server.systems.messages.shapes import Scrubbed
from tests.messages.conftest import HOUR_MS, Made
from tests.ports import free_ports
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, until

LEASE_MS = 60_000
WORKER = 5


async def answered(schedule: Schedule) -> None:
    """Until it answers."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                await schedule.get([1])
                return
            except StoreError:
                await asyncio.sleep(0.05)


@pytest.fixture(params=["redis", "redis, logged"])
async def place(request: pytest.FixtureRequest, own_redis: RedisServer, tmp_path: Path) -> AsyncIterator[Made]:
    made = Made(request.param, tmp_path, own_redis)
    yield made
    await made.end()


async def test_a_killed_redis_keeps_what_was_answered_and_firing_goes_on(place: Made) -> None:
    assert place.redis is not None
    schedule = await place.open()
    schedule.serve(1, WORKER, LEASE_MS, 9, 10)
    assert (await schedule.insert([(1, 1, now_ms() + 600, None, b"body")]))[0][0] == "inserted"
    await place.redis.away()
    with pytest.raises(StoreError, match="Redis"):
        await schedule.insert([(2, 1, now_ms(), None, b"")])
    with pytest.raises(StoreError, match="Redis"):
        await schedule.change([(1, "cancel", None, None)])
    place.redis.start()
    await until(lambda: place.fires)
    (_, fire) = place.taken()[0]
    assert (fire.number, fire.envelope) == (1, b"body")
    assert (await schedule.change([(1, "deliver", fire.claim, None)]))[0][2] == "delivered"
    stats = await schedule.stats()
    assert (stats["backs"], stats["changes_lost"]) == (0, 0)
    assert not schedule.failed.is_set()


async def test_a_redis_that_stands_still_delays_and_loses_nothing(place: Made) -> None:
    assert place.redis is not None
    schedule = await place.open()
    with place.redis.standing_still():
        asking = asyncio.create_task(schedule.insert([(1, 1, now_ms(), None, b"")]))
        await asyncio.sleep(0.3)
        assert not asking.done()
    assert (await asking)[0][0] == "inserted"


async def test_a_redis_that_comes_back_older_is_told_and_mended_from_the_log(place: Made) -> None:
    assert place.redis is not None
    schedule, at = await place.open(), now_ms() + HOUR_MS
    await schedule.insert([(id, 1, at, None, b"%d" % id) for id in range(1, 11)])
    kept = place.redis.keep()
    schedule.serve(2, WORKER, LEASE_MS, 9, 1)
    await schedule.insert([(id, 1, at, None, b"%d" % id) for id in range(11, 21)])
    await schedule.change([(1, "cancel", None, None), (2, "due_by", None, 60_000), (99, "cancel", None, None)])
    await schedule.insert([(50, 2, now_ms(), None, b"fired")])
    await until(lambda: place.fires)
    (_, fire) = place.taken()[0]
    assert (await schedule.change([(50, "deliver", fire.claim, None)]))[0][0] == "changed"
    before = await schedule.get([*range(1, 21), 50])
    await asyncio.to_thread(place.redis.come_back_with, kept)
    await answered(schedule)
    await until_whole(schedule)
    stats = await schedule.stats()
    assert (stats["backs"], stats["changes_lost"]) == (1, 16)
    after = await schedule.get([*range(1, 21), 50])
    if "logged" in place.kind:
        assert after == before
        assert (await schedule.insert([(99, 1, at, None, b"")]))[0][1][5] == "cancelled", "asked ahead of it"
        schedule.serve(2, WORKER, LEASE_MS, 9, 5)
        await schedule.insert([(51, 2, now_ms(), None, b"")])
        await until(lambda: place.fires)
        assert [fire.number for _, fire in place.taken()] == [51], "what was delivered is not fired again"
    else:
        assert [each[0] for each in after[10:]] == ["unknown"] * 11
        assert after[0][1][5] == "scheduled"


async def until_whole(schedule: Schedule) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not (await schedule.stats())["whole"]:  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(0.05)


async def test_a_wiped_redis_is_made_again_from_the_log_at_the_next_start(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    made = Made("redis, logged", tmp_path, own_redis)
    schedule, at = await made.open(), now_ms() + HOUR_MS
    await schedule.insert([(id, 1, at, at + 5, b"%d" % id) for id in range(1, 6)])
    await schedule.change([(1, "cancel", None, None)])
    before = await schedule.get(range(1, 6))
    await made.close(schedule)
    assert own_redis.said("FLUSHALL") is True or own_redis.said("DBSIZE") == 0
    schedule = await made.open()
    assert await schedule.get(range(1, 6)) == before
    await made.end()


async def test_a_center_that_was_succeeded_writes_nothing(own_redis: RedisServer, tmp_path: Path) -> None:
    made = Made("redis", tmp_path, own_redis)
    first = await made.open()
    await first.insert([(1, 1, now_ms() + HOUR_MS, None, b"")])
    # As if it had stood still for longer than its lease.
    own_redis.said("DEL", f"{{{made.prefix}}}:lease")
    second = made.new()
    await second.open()
    await second.change([(1, "cancel", None, None)])
    with pytest.raises(StoreError, match="another center"):
        await first.change([(1, "due_by", None, 5)])
    assert first.failed.is_set()
    assert (await second.get([1]))[0][1][5] == "cancelled"
    await second.close()
    await made.end()


async def test_a_lease_that_nobody_keeps_ends(own_redis: RedisServer, tmp_path: Path) -> None:
    made = Made("redis", tmp_path, own_redis)
    dead = made.new()
    await dead.open()
    for task in cast(Any, dead)._tasks:  # a process that was killed
        task.cancel()
    successor = made.new()
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                await successor.open()
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
    await successor.close()
    await dead.close()


async def test_a_redis_that_writes_nothing_to_its_disk_is_refused_unless_a_log_keeps_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", appendonly=False).start()
    made = Made("redis", tmp_path, server)
    refused = made.new()
    with pytest.raises(OSError, match="appendonly"):
        await refused.open()
    await refused.close()
    logged = Made("redis, logged", tmp_path, server)
    await logged.open()
    await logged.end()
    server.end()


async def test_a_full_redis_refuses_and_goes_on_when_there_is_room(own_redis: RedisServer, tmp_path: Path) -> None:
    made = Made("redis", tmp_path, own_redis)
    schedule, at = await made.open(), now_ms() + HOUR_MS
    own_redis.said("CONFIG", "SET", "maxmemory", "1mb")
    assert await schedule.insert([(1, 1, at, None, b"")]) == [("disk_full",)]
    own_redis.said("CONFIG", "SET", "maxmemory", "0")
    assert (await schedule.insert([(1, 1, at, None, b"")]))[0][0] == "inserted"
    await made.end()


async def test_what_is_over_is_forgotten_and_dead_letters_are_counted(own_redis: RedisServer, tmp_path: Path) -> None:
    made = Made("redis", tmp_path, own_redis)
    schedule = await made.open(history_ms=0, ahead_ms=0, dead_days=0)
    await schedule.insert(
        [(1, 1, now_ms(), None, b""), (2, 1, now_ms() + HOUR_MS, None, b""), (3, 1, now_ms() + HOUR_MS, None, b"")]
    )
    schedule.serve(1, WORKER, LEASE_MS, 9, 1)
    await until(lambda: made.fires)
    (_, fire) = made.taken()[0]
    await schedule.change([(1, "fail", fire.claim, None), (2, "cancel", None, None), (77, "cancel", None, None)])
    async with asyncio.timeout(PATIENT_S):
        while own_redis.said("ZCARD", f"{{{made.prefix}}}:x"):  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(0.05)
    assert [each[0] for each in await schedule.get([1, 2, 3])] == ["unknown", "unknown", "found"]
    stats = await schedule.stats()
    assert (stats["dead_forgotten"], stats["live"], stats["known"]) == (1, 1, 1)
    await made.end()


async def test_a_scrub_names_each_part_that_does_not_agree(own_redis: RedisServer, tmp_path: Path) -> None:
    made = Made("redis", tmp_path, own_redis)
    schedule, at = await made.open(), now_ms() + HOUR_MS
    await schedule.insert([(id, 1, at + id, None, b"") for id in range(1, 6)])
    await schedule.change([(5, "cancel", None, None)])
    assert await schedule.scrub() == Scrubbed(5, 5, 0, [])
    prefix = f"{{{made.prefix}}}:".encode()
    one, two, three, four, five = (id.to_bytes(8, "big") for id in range(1, 6))
    own_redis.said("SETRANGE", prefix + b"m:" + one, "20", b"x")
    own_redis.said("ZADD", prefix + b"w:1", str(at), two)
    own_redis.said("DEL", prefix + b"m:" + three)
    own_redis.said("ZREM", prefix + b"w:1", four)
    own_redis.said("ZREM", prefix + b"x", five)
    found = await schedule.scrub()
    assert found is not None
    assert (found.messages, found.fault_count) == (4, 5)
    for id in (one, two, three, four, five):
        assert sum(id.hex() in fault for fault in found.faults) == 1, found.faults
    await made.end()


async def test_a_cluster_of_redis_serves_as_one_server_does(tmp_path: Path) -> None:
    (bus,) = free_ports(1)
    server = RedisServer(tmp_path / "redis", "--cluster-enabled", "yes", "--cluster-port", str(bus)).start()
    server.said("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    async with asyncio.timeout(PATIENT_S):
        while "cluster_state:ok" not in str(server.said("CLUSTER", "INFO")):  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(0.05)
    place = connect(f"redis+cluster://127.0.0.1:{server.port}", "")
    made = Made("redis", tmp_path, server)
    schedule = made.new()
    cast(Any, schedule)._place = place  # instead of the one of the server's plain URL
    await schedule.open()
    schedule.serve(1, WORKER, LEASE_MS, 9, 5)
    await schedule.insert([(id, 1, now_ms(), None, b"") for id in range(5)])
    await until(lambda: len(made.fires) == 5)
    await schedule.close()
    server.end()


class Sentinel:
    """A master, its replica, and a sentinel that makes the one of the other."""

    def __init__(self, folder: Path) -> None:
        self.master = RedisServer(folder / "master").start()
        self.replica = RedisServer(folder / "replica", "--replicaof", "127.0.0.1", str(self.master.port)).start()
        conf = folder / "sentinel" / "sentinel.conf"
        conf.parent.mkdir()
        conf.write_text(
            f"sentinel monitor mine 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 3000\n"
        )
        self._sentinel = RedisServer(conf.parent)
        self._sentinel._words = [str(conf), "--sentinel", "--port", str(self._sentinel.port), "--bind", "127.0.0.1"]

    async def start(self) -> str:
        """Gives the URL of the master, whichever it is."""
        await until_said(self.replica, "'master_link_status': 'up'", "INFO", "replication")
        self._sentinel.start()
        await until_said(self._sentinel, "'slaves': 1", "INFO", "sentinel")
        return f"redis+sentinel://127.0.0.1:{self._sentinel.port}/mine"

    async def replicated(self, made: Made, id: int) -> None:
        """The replica has this message."""
        await until_said(self.replica, "1", "EXISTS", b"{%b}:m:" % made.prefix.encode() + id.to_bytes(8, "big"))

    def end(self) -> None:
        for server in (self._sentinel, self.replica, self.master):
            server.end()


@pytest.fixture
async def sentinel(tmp_path: Path) -> AsyncIterator[Sentinel]:
    made = Sentinel(tmp_path)
    yield made
    made.end()


async def inserted(schedule: Schedule, message: NewMessage) -> None:
    """Until there is a master that takes it."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                assert (await schedule.insert([message]))[0][0] in {"inserted", "before"}
                return
            except StoreError:
                await asyncio.sleep(0.1)


async def test_a_master_that_dies_is_followed_by_its_replica_through_sentinel(
    sentinel: Sentinel, tmp_path: Path
) -> None:
    made = Made("redis", tmp_path, sentinel.master)
    schedule = made.new()
    cast(Any, schedule)._place = connect(await sentinel.start(), "")
    await schedule.open()
    at = now_ms() + HOUR_MS
    await schedule.insert([(1, 1, at, None, b"kept")])
    await sentinel.replicated(made, 1)
    await sentinel.master.away()
    await inserted(schedule, (2, 1, at, None, b""))
    assert (await schedule.get([1]))[0][3] == b"kept"
    await schedule.close()


async def test_a_replica_that_lagged_becomes_the_master_is_told_and_mended_from_the_log(
    sentinel: Sentinel, tmp_path: Path
) -> None:
    made = Made("redis, logged", tmp_path, sentinel.master)
    schedule = made.new()
    cast(Any, schedule)._inside._place = connect(await sentinel.start(), "")
    await schedule.open()
    at = now_ms() + HOUR_MS
    await schedule.insert([(id, 1, at, None, b"%d" % id) for id in range(1, 6)])
    await sentinel.replicated(made, 5)
    with sentinel.replica.standing_still():
        sentinel.master.said("CLIENT", "KILL", "TYPE", "replica")
        await schedule.insert([(id, 1, at, None, b"%d" % id) for id in range(6, 11)])
        await schedule.change([(1, "cancel", None, None)])
        before = await schedule.get(range(1, 11))
        await sentinel.master.away()
    await inserted(schedule, (11, 1, at, None, b""))
    await until_whole(schedule)
    stats = await schedule.stats()
    assert stats["backs"] == 1
    assert stats["changes_lost"] >= 6
    assert await schedule.get(range(1, 11)) == before
    await schedule.close()


async def until_said(server: RedisServer, text: str, *words: Any) -> None:
    async with asyncio.timeout(PATIENT_S):
        while text not in str(await asyncio.to_thread(server.said, *words)):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://127.0.0.1:6379/0", None),
        ("rediss://shop@redis.example/3", None),
        ("redis+sentinel://a:1,b:2/mine", None),
        ("redis+sentinel://a:1,b:2/mine/3", None),
        ("redis+cluster://a:1,b", None),
        ("redis://shop:secret@host/0", "password"),
        ("redis+sentinel://a:1", "master"),
        ("redis://a,b/0", "is not"),
        ("redis://", "is not"),
        ("redis://host:x", "is not"),
        ("redis://host/mine", "is not"),
        ("redis+cluster://host/1", "is not"),
        ("http://host", "is not"),
    ],
)
def test_a_url_that_names_no_redis_is_told(url: str, text: str | None) -> None:
    said = mistake(url)
    assert (said is None) == (text is None)
    assert text is None or (said is not None and text in said)

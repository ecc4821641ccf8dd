"""A Redis as a store: its errors by meaning, its limit of calls, and callers that end in the middle of a call."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from muster_server.plane.ownership.errors import Away, Full
from muster_server.plane.ownership.redis import CALLS_MAX, RedisStore
from tests.ports import free_ports
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, until

SET = "return redis.call('SET', KEYS[1], ARGV[1])"
SLOW = "redis.call('INCR', KEYS[1]) local n = 0 for i = 1, 3e6 do n = n + 1 end return redis.call('INCR', KEYS[1])"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendonly=False).start()
    yield server
    server.end()


@pytest.mark.parametrize("url", ["redis://{}", "redis+sentinel://{}/main", "redis+cluster://{}"])
async def test_a_redis_that_is_away_is_away_of_whatever_kind_it_is(url: str) -> None:
    (port,) = free_ports(1)
    store = RedisStore(url.format(f"127.0.0.1:{port}"), "", "the store", PATIENT_S)
    with pytest.raises(Away, match=r"^the store does not answer: "):
        await store.run(SET, ["k"], ["1"])
    await store.close()


async def test_a_redis_without_room_is_full_and_has_changed_nothing(server: RedisServer) -> None:
    store = RedisStore(server.url, "", "the store", PATIENT_S)
    await store.run(SET, ["k"], ["before"])
    server.said("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Full, match=r"^the store has no room: "):
        await store.run(SET, ["k"], ["after"])
    assert await store.call("get", "k") == b"before"
    await store.close()


async def test_a_script_whose_caller_is_cancelled_ends_by_itself_before_the_connections_do(server: RedisServer) -> None:
    store = RedisStore(server.url, "", "the store", PATIENT_S)
    await store.call("ping")
    callers = [asyncio.create_task(store.finish(SLOW, ["k"], [])) for _ in range(3)]
    await asyncio.sleep(0)  # all have begun
    for each in callers:
        each.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await store.close()
    assert int(server.said("GET", "k")) == 6


async def test_calls_beyond_the_limit_wait_and_one_that_blocks_takes_nobodys_turn(server: RedisServer) -> None:
    store = RedisStore(server.url, "", "the store", PATIENT_S)
    waiting = asyncio.create_task(store.after("s", "$", 1, PATIENT_S))
    await until(lambda: int(server.said("INFO", "clients")["blocked_clients"]) == 1)
    assert (
        await asyncio.gather(*(store.run("return 1", ["k"], []) for _ in range(8 * CALLS_MAX))) == [1] * 8 * CALLS_MAX
    )
    assert int(server.said("INFO", "clients")["connected_clients"]) <= CALLS_MAX + 2, (
        "one that blocks, and the test's own"
    )
    server.said("XADD", "s", "*", "f", "v")
    assert [entry for _, entry in await waiting] == [{b"f": b"v"}]
    await store.close()


async def test_the_answer_of_a_cancelled_call_goes_to_no_other(server: RedisServer) -> None:
    store = RedisStore(server.url, "", "the store", PATIENT_S)
    await store.call("ping")

    def sent(least: int) -> bool:
        return int(server.said("GET", "k") or 0) >= least

    for number in range(3):
        caller = asyncio.create_task(store.run(SLOW, ["k"], []))
        await until(partial(sent, 2 * number + 1))
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert await store.run("return ARGV[1]", ["k"], [f"{number}"]) == b"%d" % number
    await store.close()

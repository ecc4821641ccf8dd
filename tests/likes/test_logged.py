"""Likes whose log is elsewhere, in a folder or in Kafka: what one owner answered, the next one has; a stale one answers
nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import ClusterDownError, ResponseError

from muster_server._engines import LikesEngine
from muster_server.systems.likes.listener import Listener
from muster_server.systems.likes.logged import Logged, replayed
from tests.plane.log.conftest import Place, place
from tests.redis_server import client_of

__all__ = ["place"]


class Owner:
    """An engine over a log, with its socket."""

    def __init__(self, engine: LikesEngine, logged: Logged) -> None:
        self.engine, self.logged = engine, logged
        self.listener = Listener(engine, 100, logged)

    async def client(self) -> Redis:
        host, port = self.listener.start(("127.0.0.1", 0), None)
        return client_of(port, host=host)


Make = Callable[..., Awaitable[tuple[Owner, Redis]]]


@pytest.fixture
async def make(place: Place) -> AsyncIterator[Make]:
    made: list[tuple[Owner, Redis]] = []

    async def owner(epoch: int, snapshot: bytes | None = None) -> tuple[Owner, Redis]:
        log = await place.open(epoch)
        engine = LikesEngine(folder=None, epoch=log.epoch, snapshot=snapshot)
        await replayed(engine, log)
        owner = Owner(engine, Logged(engine, log))
        made.append((owner, await owner.client()))
        return made[-1]

    yield owner
    for owner_, client in made:
        await client.aclose()
        owner_.listener.close()


async def test_next_owner_has_what_the_last_one_answered(make: Make) -> None:
    first, client = await make(1)
    async with client.pipeline(transaction=False) as pipe:
        for user in range(3_000):
            pipe.setbit(f"share:{user % 7}", user << 40, 1)
        assert set(await pipe.execute()) == {0}
    snapshot = first.engine.snapshot()
    assert await client.setbit("share:0", 5, 1) == 0
    assert await client.setbit("share:0", 5, 1) == 1
    assert await client.delete("share:6") == 1
    last = first
    for epoch, given in ((2, None), (3, snapshot)):
        owner, client = await make(epoch, given)
        assert owner.engine.offset() == last.engine.offset()
        assert owner.engine.snapshot() == last.engine.snapshot()
        assert await client.bitcount("share:0") == 430
        assert await client.setbit("share:0", 5, 1) == 1
        last = owner


async def test_stale_owner_answers_no_change_and_then_no_question(make: Make) -> None:
    _, stale = await make(1)
    assert await stale.setbit("share:1", 7, 1) == 0
    owner, client = await make(2)
    assert await client.setbit("share:1", 8, 1) == 0
    for words in (("SETBIT", "share:1", 8, 1), ("GETBIT", "share:1", 8), ("SETBIT", "share:1", 9, 1)):
        with pytest.raises((ClusterDownError, ResponseError), match=r"owner of epoch 2"):
            await stale.execute_command(*words)  # type: ignore[no-untyped-call]
    assert await client.bitcount("share:1") == 2
    assert owner.engine.count(b"share:1") == 2


async def test_many_clients_are_answered_in_order_and_share_batches(make: Make) -> None:
    owner, client = await make(1)
    lists = await asyncio.gather(*(client.setbit("share:1", user // 2, 1) for user in range(80)))
    assert sum(lists) == 40, "each second one found the first"
    assert await client.bitcount("share:1") == 40
    assert owner.listener.batches < 80

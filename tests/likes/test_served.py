"""A partition on its port: an owner that is not sure asks its log; clients of one that gives up wait, and are sent away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from redis.exceptions import ClusterDownError, MovedError, RedisError

from muster_server._engines import LikesEngine
from muster_server.plane.service import Context
from muster_server.systems.likes.lease import Lease, now_s
from muster_server.systems.likes.means import Means
from muster_server.systems.likes.served import Served
from muster_server.systems.likes.slots import SLOTS, Node
from tests.likes.serve import SEGMENT_BYTES, settings, spec
from tests.redis_server import client_of
from tests.waiting import PATIENT_S

HOUR_S = 3_600.0


class Owner:
    """A partition that is served, and a client of it."""

    def __init__(self, served: Served, lease: Lease, port: int, folder: Path) -> None:
        self.served, self.lease, self.port, self.folder = served, lease, port, folder
        self.client = client_of(port, socket_timeout=PATIENT_S)

    def succeed(self) -> LikesEngine:
        """The next owner opens the log."""
        return LikesEngine(folder=str(self.folder), segment_bytes=SEGMENT_BYTES, epoch=6)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    told = settings(tmp_path)
    means, lease = Means(spec(told), told, Context(structlog.get_logger(), lambda: None, lambda: None)), Lease()
    served = Served(means, await means.opened(0, 5), lease=lease)
    _, port = served.start(("127.0.0.1", 0), None)
    made = Owner(served, lease, port, tmp_path / "0")
    lease.renew(now_s() + HOUR_S)
    yield made
    await made.client.aclose()
    served.close()
    await means.close()


async def test_owner_whose_lease_has_ended_answers_until_another_one_claims_its_log(owner: Owner) -> None:
    assert await owner.client.setbit("share:1", 1, 1) == 0
    owner.lease.end()
    assert await owner.client.getbit("share:1", 1) == 1
    assert await owner.client.setbit("share:1", 2, 1) == 0
    next_owner = owner.succeed()
    with pytest.raises(ClusterDownError):
        await owner.client.getbit("share:1", 1)
    with pytest.raises(ClusterDownError):
        await owner.client.setbit("share:1", 3, 1)
    assert next_owner.count(b"share:1") == 2
    assert owner.served.failed
    await owner.served.give_up(lost=True)


async def test_change_that_races_with_a_claim_is_refused_by_the_log(owner: Owner) -> None:
    assert await owner.client.setbit("share:1", 1, 1) == 0
    next_owner = owner.succeed()  # though the lease lasts, as no clock allows
    with pytest.raises(RedisError):
        await owner.client.setbit("share:1", 2, 1)
    assert next_owner.count(b"share:1") == 1
    await owner.served.give_up(lost=True)


async def test_clients_of_a_partition_that_goes_wait_and_are_sent_after_it(owner: Owner) -> None:
    assert await owner.client.setbit("share:1", 1, 1) == 0
    assert await owner.served.give_up(lost=False)
    waiting = asyncio.ensure_future(owner.client.setbit("share:1", 2, 1))
    new = client_of(owner.port, socket_timeout=PATIENT_S)
    also = asyncio.ensure_future(new.getbit("share:1", 1))
    done, _ = await asyncio.wait([waiting, also], timeout=0.2)
    assert not done, "nobody is told anything before it is known where the partition is"
    nodes: list[Node] = [("a" * 40, "127.0.0.1", 7_001, [(0, SLOTS - 1)]), ("b" * 40, "127.0.0.1", 7_002, [])]
    owner.served.tell(nodes, 1, 9)
    owner.served.send_away()
    for task in (waiting, also):
        with pytest.raises(MovedError) as told:
            await task
        assert told.value.port == 7_001
    await new.aclose()
    next_owner = owner.succeed()
    assert next_owner.count(b"share:1") == 1

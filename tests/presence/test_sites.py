"""Faults that a site lives through: writers that die again, numbers that end, clocks, cuts, other stores and shards.

What readers tell is what gateways have, or nothing; the log tells each change, in an order that a consumer can follow.
"""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster_server.plane.calls import CallError
from muster_server.systems.presence.asking import Readers
from tests.fleet.redises import WORD, Cluster, Redis, Sentinels
from tests.kafka import Kafka
from tests.presence.feed import changes, followed
from tests.presence.rig import Place, Rig
from tests.stepped import SteppedClock
from tests.waiting import PATIENT_S

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")

KILLS = int(os.environ.get("MUSTERTEST_KILLS", "30"))
LEASE_MS = 2_000
"""A site that is cut off is deaf before this."""


class Roaming:
    """Users of two gateways who come, go and move."""

    def __init__(self, rig: Rig, users: int, seed: int = 1) -> None:
        self._rig, self.users = rig, range(users)
        self._dice = random.Random(seed)

    def step(self, count: int = 20) -> None:
        """Some of them change at once."""
        for user in self._dice.sample(self.users, count):
            self.move(user)

    def move(self, user: int) -> None:
        """One of them goes, or comes to a gateway."""
        gateways = self._rig.gateways
        at = [number for number, each in gateways.items() if (user, "phone", number) in each.devices]
        for number in at:
            gateways[number].offline([user])
        if not at or self._dice.random() < 0.5:
            gateways[self._dice.choice(list(gateways))].online([user])

    @asynccontextmanager
    async def on(self, every_s: float = 0.02) -> AsyncIterator[None]:
        """All the time, while the block lasts."""

        async def roam() -> None:
            while True:
                self.step()
                await asyncio.sleep(every_s)

        roaming = asyncio.create_task(roam(), name="users roam")
        try:
            yield
        finally:
            roaming.cancel()
            await asyncio.gather(roaming, return_exceptions=True)


async def until(asked: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Return once it is so. Raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while not await asked():  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.05)


async def ends_true(rig: Rig, users: Sequence[int], url: str = "", seconds: float = 20.0) -> None:
    """Views are right, and so is the log of the first site once its writer is gone."""

    async def published() -> bool:
        return all(each.writer and not each.writer.unpublished for each in (await rig.stats()).values())

    await rig.right(users, seconds)
    await until(published, seconds)
    await asyncio.sleep(1.5)  # the grace time of those that just went, and a report of the writer behind it
    await until(published, seconds)
    for process in rig.writers.values():
        await process.kill()
    told = await changes(rig.folder, 1, rig.writers_of[0], url)
    assert followed(told) == {(user, device) for user, device, _ in rig.truth}


# ---- Writers that die ------------------------------------------------------------------------------------------------


async def test_a_writer_that_dies_again_and_again_tells_no_lie_and_loses_no_change(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=300) as rig:
        roaming = Roaming(rig, 2_000)
        rig.gateways[1].online(roaming.users[:1_000])
        await rig.right(roaming.users)
        async with roaming.on():
            for wait_s in (0.4, 0.1, 0.7, 0.0):
                await rig.writers[1, 0].kill()
                await rig.writers[1, 0].start()
                await asyncio.sleep(wait_s)
        await ends_true(rig, roaming.users)


async def answers(rig: Rig) -> bool:
    """Whether the first site does."""
    return await rig.view([7], 1) is not None


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_writer_of_a_hundred_thousand_users_dies_every_ten_seconds(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=1_000) as rig:
        roaming = Roaming(rig, 100_000)
        for first in range(0, 100_000, 10_000):
            rig.gateways[1 + first // 10_000 % 2].online(range(first, first + 10_000))
        await rig.right(roaming.users[::100], 60)
        async with roaming.on():
            for _ in range(KILLS):
                await rig.writers[1, 0].kill()
                await rig.writers[1, 0].start()
                await until(lambda: answers(rig))  # how soon: PF-15, `muster bench presence`
                await asyncio.sleep(5)
        sample = roaming.users[::10]
        await ends_true(rig, sample, seconds=PATIENT_S)


# ---- Stores and logs that are away -----------------------------------------------------------------------------------


async def test_a_store_that_comes_back_empty_and_then_older_under_load_loses_no_change(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=300) as rig:
        roaming, store = Roaming(rig, 500), rig.redis[0]
        rig.gateways[1].online(roaming.users[:250])
        await rig.right(roaming.users)
        async with roaming.on():
            await store.kill()
            await store.serves()
            await asyncio.sleep(0.5)
            await store.told("SAVE")
            await asyncio.sleep(0.5)
            await store.kill()
            await store.serves()
        await ends_true(rig, roaming.users)


@pytest.mark.soak
async def test_a_minute_without_kafka_loses_no_change(tmp_path: Path, kafka: Kafka) -> None:
    async with Rig(tmp_path, grace_ms=300, log=kafka.url) as rig:
        roaming = Roaming(rig, 2_000)
        await rig.right(roaming.users, 60)  # a Kafka that has just started is slow
        async with roaming.on():
            kafka.kill()
            await asyncio.sleep(60)
            kafka.start()
            await kafka.ready()
        await ends_true(rig, roaming.users, kafka.url, 60)


# ---- Numbers and clocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [(1 << 32) - 50, (1 << 64) - 50])
async def test_versions_go_on_beyond_32_and_64_bits(tmp_path: Path, start: int) -> None:
    async with Rig(tmp_path, grace_ms=300, version=start, window_ms=1) as rig:
        roaming = Roaming(rig, 200)
        for step in range(120):
            if step == 45:
                await rig.writers[1, 0].kill()
            if step == 70:
                await rig.writers[1, 0].start()
            roaming.step(4)
            await asyncio.sleep(0.004)  # the window is over: the next step has another version
        await rig.right(roaming.users)
        sources = [source for each in (await rig.stats()).values() if each.writer for source in each.writer.gateways]
        assert all((source.complete - start) % (1 << 64) >= 50 for source in sources), sources
        await ends_true(rig, roaming.users)


async def test_clocks_that_step_an_hour_in_both_directions_change_nothing(tmp_path: Path) -> None:
    with SteppedClock.made(tmp_path) as clock:
        async with Rig(tmp_path, grace_ms=300, environment=clock.environment) as rig:
            roaming = Roaming(rig, 200)
            async with roaming.on():
                for ahead_s in (0, 3_600, -3_600, 0):
                    clock.set(ahead_s * 1_000)
                    rig.gateways[1].ahead_ms = -ahead_s * 1_000
                    await asyncio.sleep(0.5)
                    await rig.writers[1, 0].kill()
                    await rig.writers[1, 0].start()
            await ends_true(rig, roaming.users)


# ---- Sites cut off ---------------------------------------------------------------------------------------------------


async def test_a_site_that_is_cut_off_refuses_and_agrees_again_when_it_is_healed(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=300, lease_ms=LEASE_MS, cuttable=True) as rig:
        roaming = Roaming(rig, 500)
        rig.gateways[1].online(roaming.users[:250])
        rig.gateways[2].online(roaming.users[250:])
        await rig.right(roaming.users)
        before = rig.truth
        cut = [way for (site, _), way in rig.ways.items() if site == 1]
        for way in cut:
            way.is_cut = True
        async with roaming.on():
            assert await rig.refused(1) == "stale"
            stands = (await rig.stats())[1, 0]
            assert "deaf" in stands.why, stands.why
            assert stands.writer is not None
            assert stands.writer.online == len(before), "nobody was told offline"
            assert await rig.view(roaming.users, 2) is not None, "the other site answers meanwhile"
            for way in cut:
                way.is_cut = False
        await rig.right(roaming.users, 10)
        await ends_true(rig, roaming.users)


# ---- Stores of others ------------------------------------------------------------------------------------------------


def words(folder: Path) -> str:
    """The file with the password of the sentinels' stores."""
    file = folder / "word"
    file.write_text(WORD)
    file.chmod(0o600)
    return str(file)


@contextmanager
def beginning(made: Callable[[Path], Any], folder: Path) -> Iterator[Any]:
    """Servers that end with the block."""
    servers = made(folder)
    try:
        yield servers
    finally:
        servers.end()


async def test_a_site_goes_on_with_the_replica_that_sentinels_name(tmp_path: Path) -> None:
    with beginning(Sentinels, tmp_path / "sentinels") as sentinels:
        await sentinels.start()
        store = [sentinels.url]
        async with Rig(tmp_path, writers=(1,), grace_ms=300, stores=store, password_file=words(tmp_path)) as rig:
            await _loses_a_master(rig, sentinels.redis[0])


async def test_a_site_goes_on_in_a_cluster_that_loses_a_master(tmp_path: Path) -> None:
    with beginning(Cluster, tmp_path / "cluster") as cluster:
        await cluster.start()
        await cluster.replicated()
        async with Rig(tmp_path, writers=(2,), grace_ms=300, stores=[cluster.url]) as rig:
            await rig.right([7])
            await _loses_a_master(rig, cluster.master_of("{muster:presence:presence:1:2.0}:meta"))


LATER = 1_000
"""A user who comes while no master is there; of the first shard, whose master it is."""


async def _loses_a_master(rig: Rig, master: Redis) -> None:
    roaming = Roaming(rig, 500)
    rig.gateways[1].online(roaming.users[:250])
    await rig.right(roaming.users)
    plain = await rig.plain_reader(1)
    try:
        async with asyncio.timeout(PATIENT_S):
            while await view(plain, roaming.users) is None:  # noqa: ASYNC110 - it starts
                await asyncio.sleep(0.02)
        async with roaming.on():
            master.kill()
            assert await rig.refused(1, asking=plain) in {"store", "stale", "late"}
            # A copy answers meanwhile, if that takes less than its fresh time; but only a master knows of this one.
            rig.gateways[1].online([LATER])
            await rig.right([LATER])
        await ends_true(rig, roaming.users, seconds=PATIENT_S)
    finally:
        await plain.close()


# ---- Another number of shards ----------------------------------------------------------------------------------------


async def test_a_site_changes_its_number_of_shards_in_two_steps(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(Rig(tmp_path, grace_ms=300))
        roaming = Roaming(rig, 500)
        rig.gateways[1].online(roaming.users[:250])
        await rig.right(roaming.users)
        await rig.beside(1, 3)
        old, new = rig.reader_of(1), rig.reader_of(1, beside=True)
        stack.push_async_callback(old.close)
        stack.push_async_callback(new.close)
        async with roaming.on(), asyncio.timeout(PATIENT_S):
            while await view(new, roaming.users) is None:
                assert await view(old, roaming.users) is not None, "the old shards answer meanwhile"
            await rig.writers[1, 0].kill()  # the second step: all ask the new reader
            while await view(old, roaming.users) is not None:
                assert await view(new, roaming.users) is not None

        async def right() -> bool:
            return await view(new, roaming.users) == rig.truth

        await until(right)
        await asyncio.sleep(1.0)  # the grace time is over, and its changes are in the log
        for process in rig.writers.values():
            await process.kill()
        told = await changes(tmp_path, 1, 3)
        assert followed(told) == {(user, device) for user, device, _ in rig.truth}
        assert followed(await changes(tmp_path, 1)), "the other log ends where its writer did"


async def view(readers: Readers, users: Sequence[int]) -> set[Place] | None:
    """What these readers say; None: they refuse."""
    try:
        found = await readers.who(users)
    except CallError:
        return None
    return {(user.user, each.device, each.gateway) for user in found.users for each in user.devices}

"""Presence as real processes: writers, readers, Redis; what readers tell is what gateways have, or nothing."""

import asyncio
import itertools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from muster_server.plane.log.place import parse
from tests.documents import ROOT, fenced
from tests.kafka import Kafka
from tests.presence.feed import changes
from tests.presence.rig import Rig
from tests.waiting import PATIENT_S

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")

USERS = range(200)


async def test_every_site_tells_where_users_are(tmp_path: Path) -> None:
    async with Rig(tmp_path, writers=(1, 2)) as rig:
        rig.gateways[1].online([7, 8])
        rig.gateways[2].online([8], "laptop")
        await rig.right([7, 8, 9])
        found = await rig.asking.who([9, 7, 8])
        assert [user.user for user in found.users] == [9, 7, 8], "in the order of the question"
        assert [len(user.devices) for user in found.users] == [0, 1, 2]
        assert found.users[0].last_seen_ms is None
        largest = (1 << 64) - 1
        rig.gateways[1].online([largest])
        rig.gateways[1].offline([7])
        await rig.right([7, 8, 9, largest])
        stats = await rig.stats()
        assert set(stats) == {(1, 0), (2, 0), (2, 1)}
        assert all(not each.why and each.writer and each.writer.fulls == 0 for each in stats.values())
        async with asyncio.timeout(PATIENT_S):  # until the grace time of 7 is over
            while [stats[place].users for place in sorted(stats)] != [2, 1, 1]:
                stats = await rig.stats()


async def test_a_killed_writer_begins_with_its_store_and_asks_for_what_it_missed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.gateways[1].online(USERS)
        await rig.right(USERS)
        writer = rig.writers[1, 0]
        await writer.kill()
        rig.gateways[1].offline(USERS[:50])
        rig.gateways[2].online(USERS[:20], "laptop")
        assert await rig.refused(1) == "stale"
        assert await rig.view(USERS, 2) is not None, "the other site answers meanwhile"
        await writer.start()
        await rig.right(USERS)
        stats = (await rig.stats())[1, 0].writer
        assert stats is not None
        assert stats.fulls_asked == 0, "its store and the gateways' recent packets are enough"


async def test_a_store_that_comes_back_empty_is_refused_and_written_anew(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.gateways[1].online(USERS)
        await rig.right(USERS)
        store = rig.redis[0]
        await store.kill()
        rig.gateways[1].offline(USERS[:50])
        assert await rig.refused(1) == "store"
        await store.serves()
        assert await rig.view(USERS, 1) in (None, rig.truth)
        await rig.right(USERS)


async def test_a_store_that_comes_back_older_is_refused_and_written_anew(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.gateways[1].online(USERS)
        await rig.right(USERS)
        store = rig.redis[0]
        await store.told("SAVE")
        rig.gateways[1].offline(USERS[:50])
        await rig.right(USERS)
        older = {(user, "phone", 1) for user in USERS}
        await store.kill()
        await asyncio.sleep(3.1)  # longer than an answer may be old: what the older store says is a lie by now
        await store.serves()
        seen = [await rig.view(USERS, 1) for _ in range(50)]
        assert older not in seen
        await rig.right(USERS)


async def test_a_store_that_went_back_while_its_writer_was_down_leaves_nobody_online_in_the_log(tmp_path: Path) -> None:
    async with Rig(tmp_path, writers=(1,), grace_ms=300) as rig:
        rig.gateways[1].online([7])
        await rig.right([7])
        store, writer = rig.redis[0], rig.writers[1, 0]
        await store.told("SAVE")
        rig.gateways[1].online([8])
        await rig.right([7, 8])
        await rig.relayed(2)
        await writer.kill()
        await store.kill()
        rig.gateways[1].offline([8])
        await store.serves()
        await writer.start()
        await rig.right([7, 8])
        await rig.relayed(2)  # what the older store had, and that 8 is gone
        await writer.kill()
        assert [(each["user"], each["state"]) for each in await changes(tmp_path, 1)] == [
            ("7", "online"),
            ("8", "online"),
            ("8", "offline"),
        ]


async def test_users_of_a_dead_gateway_go_after_its_lease_once_at_every_site(tmp_path: Path) -> None:
    async with Rig(tmp_path, lease_ms=2_000, grace_ms=0) as rig:
        rig.gateways[1].online([7])
        rig.gateways[2].online([8])
        await rig.right([7, 8])
        told: list[dict[str, object]] = []
        opened = {site: asyncio.Event() for site in (1, 2)}

        async def follow(site: int) -> None:
            nonlocal told
            async for each in rig.asking.watch([7, 8], site):
                opened[site].set()
                told += [{"site": site, **json.loads(each.change)}] if each.change else []

        watching = [asyncio.create_task(follow(site)) for site in (1, 2)]
        async with asyncio.timeout(PATIENT_S):
            await asyncio.gather(*(each.wait() for each in opened.values()))
        await rig.end_gateway(1)
        await rig.right([7, 8])
        rig.gateways[2].offline([8])
        await rig.right([7, 8])
        async with asyncio.timeout(PATIENT_S):
            while len(told) < 4:  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.01)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        said = sorted((each["site"], each["user"], each["state"], each["reason"]) for each in told)
        assert said == [
            (site, user, "offline", why) for site in (1, 2) for user, why in (("7", "lost"), ("8", "closed"))
        ]


async def test_a_gateway_that_starts_again_is_asked_for_its_full_state(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.gateways[1].online(USERS)
        await rig.right(USERS)
        await rig.end_gateway(1)
        rig.begin_gateway(1, version=(1 << 64) - 3)
        rig.gateways[1].online(USERS[100:], "laptop")
        await rig.right(USERS)
        async with asyncio.timeout(PATIENT_S):  # both at the start, and this one again
            while min([rig.fulls(each) for each in (await rig.stats()).values()]) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_of_two_writers_of_a_shard_the_later_one_fences_the_first(tmp_path: Path) -> None:
    async with Rig(tmp_path, writers=(1,)) as rig:
        rig.gateways[1].online([7])
        await rig.right([7])
        writer = rig.writers[1, 0]
        writer.signal(signal.SIGSTOP)
        later = rig.another_writer()
        await later.start()
        async with asyncio.timeout(PATIENT_S):
            while await rig.view([7], 1) != rig.truth or rig.epoch(await rig.stats()) != later.epoch:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        writer.signal(signal.SIGCONT)
        await asyncio.sleep(1.5)  # a keepalive of the first one would come now
        assert rig.epoch(await rig.stats()) == later.epoch
        await later.kill()


async def test_net_changes_are_in_the_log_in_order_once_for_each_id(tmp_path: Path) -> None:
    async with Rig(tmp_path, writers=(1,), grace_ms=400) as rig:
        rig.gateways[1].online([7, 9])
        await rig.right([7, 9])
        rig.gateways[1].offline([7])
        rig.gateways[2].online([7])  # within the grace time: it has moved
        await rig.right([7, 9])
        await rig.writers[1, 0].kill()
        await rig.writers[1, 0].start()
        rig.gateways[2].offline([7])
        await rig.right([7, 9])
        await rig.relayed(3)
        await rig.writers[1, 0].kill()
        found = await changes(tmp_path, 1)
        by_id = {each["id"]: each for each in found}
        told = [(each["user"], each["state"], each["gateway"]) for each in by_id.values()]
        assert sorted(told) == [("7", "offline", 2), ("7", "online", 1), ("9", "online", 1)]
        assert [each[1] for each in told if each[0] == "7"] == ["online", "offline"]


async def test_changes_wait_for_a_kafka_that_is_away(tmp_path: Path, kafka: Kafka) -> None:
    async with Rig(tmp_path, writers=(1,), grace_ms=0, log=kafka.url) as rig:
        rig.gateways[1].online([7])
        await rig.right([7])
        await rig.relayed(1)
        kafka.kill()
        for _ in range(3):
            rig.gateways[1].offline([7])
            await rig.right([7])
            rig.gateways[1].online([7, 9])
            await rig.right([7, 9])
        await rig.writers[1, 0].kill()  # what waits is in the store
        kafka.start()
        await kafka.ready()
        await rig.writers[1, 0].start()
        wanted = ["online", *["offline", "online"] * 3]
        await rig.relayed(len(wanted), 60)
        consumed = await asyncio.wait_for(asyncio.to_thread(_consumed, kafka.url, len(wanted)), PATIENT_S)
        assert consumed == wanted, "the consumer of the page has each once, too, before the writer's end and after"
        await rig.writers[1, 0].kill()  # whose log this test takes over
        told = [each["state"] for each in await changes(tmp_path, 1, url=kafka.url) if each["user"] == "7"]
        assert told == wanted, "each once: the writer's end was not between"


def _consumed(url: str, count: int) -> list[str]:
    """The first changes of user 7, by the consumer that `docs/presence.md` prints."""
    (example,) = [each for each in fenced((ROOT / "docs" / "presence.md").read_text(), "python") if "HEAD" in each]
    names: dict[str, Any] = {}
    exec(example, names)
    servers, prefix = parse(url)
    told = names["follow"](servers, f"{prefix}.presence-site1-of1")
    try:
        return [each["state"] for each in itertools.islice((each for each in told if each["user"] == "7"), count)]
    finally:
        told.close()

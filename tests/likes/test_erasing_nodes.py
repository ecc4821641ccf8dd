"""Erasing a user over several nodes, as real processes, while partitions move and nodes die; with logs here and in Kafka."""

import asyncio
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from muster_server.plane.ownership.errors import Away, Full
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.erasure import Erasure
from muster_server.systems.likes.reach import Reach
from tests.kafka import Kafka
from tests.likes.test_erasing import FORMS, USER, traces
from tests.likes.test_nodes import nodes
from tests.waiting import PATIENT_S

ITEMS = 4_000


async def test_a_user_is_erased_while_partitions_move_and_a_node_dies(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2, write_behind_ms=100) as made:
        items = [b"share:%d" % item for item in range(ITEMS)]
        async with Likes(Reach(made.doors)) as likes:
            await likes.put_all([(item, USER, True) for item in items])
            await likes.put_all([(item, 5, True) for item in items])
            await likes.leaderboards.put(b"game:7", [(str(USER).encode(), 1.0), (b"alice", 2.0)])
            found = [each.item async for each in likes.erasures.export(USER)]
            assert sorted(found) == sorted([*items, b"game:7"])
            await asyncio.sleep(1.0)  # a pass or two of each partition's write-behind
            assert traces(tmp_path / "likes")
            job = await likes.erasures.begin(USER)
        await made.start(3)
        await made.kill(1)
        async with Likes(Reach(made.doors)) as likes:
            shown = await ended(likes, job)
            assert (shown.likes, shown.scores) == ({"share": ITEMS}, 1)
            assert await likes.counts(items) == [1] * ITEMS
            assert [each async for each in likes.erasures.export(USER)] == []
            assert traces(tmp_path / "likes") == []
            assert await likes.put(items[0], USER, True) is False


async def ended(likes: Likes, job: int) -> Erasure:
    """Wait until the job has ended; returns what it did."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                shown = await likes.erasures.show(job)
            except (Full, Away):  # a partition is on its way
                pass
            else:
                if shown.done:
                    return shown
            await asyncio.sleep(0.1)


async def test_no_record_in_kafka_names_an_erased_user(kafka: Kafka, tmp_path: Path) -> None:
    options: dict[str, Any] = {"log": kafka.url, "partitions": 4, "write_behind_ms": 100}
    async with nodes(tmp_path, 1, 2, **options) as made:
        items = [b"share:%d" % item for item in range(400)]
        async with Likes(Reach(made.doors)) as likes:
            await likes.put_all([(item, user, True) for item in items for user in (USER, 5)])
            await likes.leaderboards.put(b"game:7", [(str(USER).encode(), 1.0), (b"alice", 2.0)])
            assert sum(await asyncio.to_thread(named, kafka)) > 0
            job = await likes.erasures.begin(USER)
        await made.kill(1)
        await made.start(3)
        async with Likes(Reach(made.doors)) as likes:
            shown = await ended(likes, job)
            assert (shown.likes, shown.scores, shown.segments) == ({"share": 400}, 1, 0)
            assert await likes.counts(items) == [1] * 400
            assert await asyncio.to_thread(named, kafka) == [0] * 4
            assert traces(tmp_path / "likes") == []
            assert await likes.put(items[0], USER, True) is False
            assert sum(await asyncio.to_thread(named, kafka)) == 1, "a like from now on is new"
        await made.kill(2)
        await made.start(1)
        async with Likes(Reach(made.doors)) as likes:
            assert await likes.counts(items[:2]) == [2, 1]


def named(kafka: Kafka) -> list[int]:
    """The number of messages of each partition of the log, from its first one on, that name the user."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "reads", "enable.auto.commit": False})
    try:
        topics = consumer.list_topics(timeout=PATIENT_S).topics
        (topic,) = (name for name in topics if name.startswith(kafka.prefix) and name.endswith(".likes"))
        found = []
        for number in sorted(topics[topic].partitions):
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENT_S)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            count, at = 0, first
            while at < end:
                (message,) = consumer.consume(1, timeout=PATIENT_S)
                assert message.error() is None
                at = (message.offset() or 0) + 1
                count += any(form in (message.value() or b"") for form in FORMS)
            found.append(count)
        return found
    finally:
        consumer.close()

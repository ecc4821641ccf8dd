"""The log over a real Kafka: broker killed and standing still, unknown fates, strangers in the topic."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from muster_server.plane.log import Batch, Failed, Log
from muster_server.plane.log.kafka import _TOPIC as TOPIC_SETTINGS
from muster_server.plane.log.kafka import KafkaLogs
from muster_server.plane.log.place import parse
from muster_server.plane.log.shared import BATCH, Head
from muster_server.plane.ownership.errors import Fenced
from tests.kafka import Kafka
from tests.plane.log.test_log import read
from tests.waiting import PATIENT_S, until

TOPIC = "likes"


@pytest.fixture
async def make(kafka: Kafka) -> AsyncIterator["Make"]:
    made = Make(kafka)
    yield made
    for log in made.open_ones:
        await log.close()
    for logs in made.logs:
        await logs.close()


class Make:
    """Owners, each as in a process of its own."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.logs: list[KafkaLogs] = []
        self.open_ones: list[Log] = []

    async def owner(self, epoch: int, **options: float) -> Log:
        servers, prefix = parse(self.kafka.url)
        self.logs.append(KafkaLogs(servers, prefix, partitions=1, replicas=1, **options))
        self.open_ones.append(await self.logs[-1].open(TOPIC, 0, epoch))
        return self.open_ones[-1]

    @property
    def topic(self) -> str:
        return f"{self.kafka.prefix}.{TOPIC}"

    def write(self, *messages: bytes) -> None:
        """As a program that keeps no rule."""
        producer = Producer({"bootstrap.servers": self.kafka.servers, "log_level": 0})
        for message in messages:
            producer.produce(self.topic, message, partition=0)
        assert producer.flush(PATIENT_S) == 0

    def make_topic(self, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.servers, "log_level": 0})
        given = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(self.topic, partitions, 1, config=given)])[self.topic].result(PATIENT_S)


async def test_appends_go_on_over_kill_of_the_broker(make: Make, kafka: Kafka) -> None:
    log = await make.owner(1)
    acked: dict[int, bytes] = {}

    async def load() -> None:
        for number in range(1_000):
            (offset,) = await log.append(Batch.of([b"%d" % number]))
            acked[offset] = b"%d" % number

    loading = asyncio.create_task(load())
    await until(lambda: len(acked) > 100)
    kafka.kill()
    kafka.start()
    await loading
    assert list(acked) == list(range(1_000))
    assert await read(await make.owner(2)) == acked


async def test_broker_that_stands_still_only_delays(make: Make, kafka: Kafka) -> None:
    log = await make.owner(1)
    with kafka.standing_still():
        appending = asyncio.create_task(log.append(Batch.of([b"a"])))
        done, _ = await asyncio.wait([appending], timeout=1)
        assert not done
    assert await appending == range(1)


async def test_batch_of_unknown_fate_is_there_once_or_not_and_the_log_refuses(make: Make, kafka: Kafka) -> None:
    log = await make.owner(1, delivery_s=1.0)
    await log.append(Batch.of([b"a"]))
    with kafka.standing_still():
        with pytest.raises(Failed, match="did not acknowledge"):
            await log.append(Batch.of([b"b"]))
        with pytest.raises(Failed, match="did not acknowledge"):
            await log.append(Batch.of([b"b"]))
    again = await make.owner(2)
    end = again.end
    assert await again.append(Batch.of([b"b"])) == range(end, end + 1)
    records = await read(again)
    assert records in ({0: b"a", 1: b"b"}, {0: b"a", 1: b"b", 2: b"b"})
    assert await read(await make.owner(3)) == records


async def test_batch_that_lands_after_a_takeover_is_void(make: Make) -> None:
    stale = await make.owner(1)
    await stale.append(Batch.of([b"a"]))
    owner = await make.owner(2)
    make.write(Head(BATCH, 1, 1, 1).message(Batch.of([b"late"]).payload))
    assert await owner.append(Batch.of([b"b"])) == range(1, 2)
    with pytest.raises(Fenced, match="epoch 2"):
        await stale.append(Batch.of([b"c"]))
    assert await owner.append(Batch.of([b"d"])) == range(2, 3)
    assert await read(await make.owner(3)) == {0: b"a", 1: b"b", 2: b"d"}


async def test_batch_that_is_there_twice_counts_once(make: Make) -> None:
    log = await make.owner(1)
    await log.append(Batch.of([b"a"]))
    make.write(Head(BATCH, 1, 1, 0).message(Batch.of([b"a"]).payload), b"noise", b"")
    assert await log.append(Batch.of([b"b"])) == range(1, 2)
    assert await read(await make.owner(2)) == {0: b"a", 1: b"b"}


class Stock:
    """An administrator of a Kafka that makes each topic that a question names, with its own settings."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> SimpleNamespace:
        if topic is not None:
            self.topics.setdefault(topic, 1)
        found = {
            name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(count)))
            for name, count in self.topics.items()
        }
        return SimpleNamespace(topics=found)

    def create_topics(self, made: list[NewTopic], request_timeout: float) -> dict[str, Future[None]]:
        (one,) = made
        assert one.topic not in self.topics
        self.topics[one.topic] = one.num_partitions
        return {one.topic: done(None)}

    def describe_configs(self, resources: list[ConfigResource], request_timeout: float) -> dict[Any, Future[Any]]:
        return {
            each: done({key: SimpleNamespace(value=value) for key, value in TOPIC_SETTINGS.items()})
            for each in resources
        }


def done(result: Any) -> Future[Any]:
    made: Future[Any] = Future()
    made.set_result(result)
    return made


async def test_a_kafka_that_makes_topics_by_itself_does_not_make_that_of_a_log() -> None:
    """Kafka's default: auto.create.topics.enable=true."""
    logs = KafkaLogs("127.0.0.1:1", "p", partitions=4, replicas=1)
    logs._admin = stock = Stock()  # type: ignore[assignment]
    try:
        await asyncio.to_thread(logs._need_topic, "p.likes")
        assert stock.topics == {"p.likes": 4}
        await asyncio.to_thread(logs._need_topic, "p.likes")
    finally:
        await logs.close()


async def test_topic_that_loses_records_is_refused(make: Make) -> None:
    make.make_topic(retention_ms="1000", max_message_bytes="8000000")
    with pytest.raises(Failed, match=r"retention\.ms=1000, which loses records; set it to -1"):
        await make.owner(1)


async def test_topic_with_other_partitions_is_refused(make: Make) -> None:
    make.make_topic(3)
    with pytest.raises(Failed, match="has 3 partitions, but 1 are configured"):
        await make.owner(1)


async def test_kafka_that_is_away_is_told(make: Make, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.plane.log.kafka.ASK_S", 0.5)
    kafka.kill()
    with pytest.raises(Failed, match=f"topic {make.topic}: "):
        await make.owner(1)


@pytest.mark.parametrize("url", ["kafka://", "kafka://host", "kafka://h:1/a b", "redis://h:1", "kafka://h:1/a/b"])
def test_wrong_url_is_told(url: str) -> None:
    with pytest.raises(ValueError, match="use kafka://HOST:PORT"):
        parse(url)


def test_url_names_servers_and_prefix() -> None:
    assert parse("kafka://a:1,b:2/mine") == ("a:1,b:2", "mine")
    assert parse("kafka://a:1") == ("a:1", "muster")

"""Messages to topics of a real Kafka: acknowledged, with their ids, and refused where no retry helps."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.kafka import KafkaTargets
from muster_server.systems.messages.shapes import Envelope
from muster_server.systems.messages.targets import ALWAYS, Target, TargetError, accepted, parse
from tests.kafka import Kafka
from tests.waiting import PATIENT_S


def made(kafka: Kafka, name: str, **config: str) -> str:
    """A topic."""
    admin = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    topic = f"{kafka.prefix}.{name}"
    admin.create_topics([NewTopic(topic, 3, 1, config=config)])[topic].result(PATIENT_S)
    return topic


@pytest.fixture
def consumer(kafka: Kafka) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": kafka.prefix, "auto.offset.reset": "earliest", "log_level": 0}
    )
    yield consumer
    consumer.close()


async def test_a_message_is_in_its_topic_with_its_id_and_kind(kafka: Kafka, consumer: Consumer) -> None:
    topic = made(kafka, "shipped")
    targets = KafkaTargets(kafka.servers)
    await targets.publish(topic, Envelope("order-7", "", "application/json", 0, b'{"order": 7}'))
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    assert (message.key(), message.value()) == (b"order-7", b'{"order": 7}')
    headers = dict(message.headers() or [])
    assert headers["webhook-id"] == b"order-7"
    assert headers["content-type"] == b"application/json"
    assert int(headers["webhook-timestamp"] or b"0") > 1_700_000_000
    await targets.close()


async def test_a_message_that_is_too_large_for_its_topic_is_not_tried_again(kafka: Kafka) -> None:
    topic = made(kafka, "small", **{"max.message.bytes": "1000"})
    targets = KafkaTargets(kafka.servers)
    with pytest.raises(PublishError, match="too large") as raised:
        await targets.publish(topic, Envelope("a", "", "text/plain", 0, b"x" * 5_000))
    assert raised.value.lasting
    await targets.close()


def test_targets_are_parsed_and_those_that_are_not_reached_refused() -> None:
    assert parse("kafka:orders.shipped") == Target("kafka", "orders.shipped")
    assert parse("user:7") == Target("user", "7")
    assert parse(f"user:{(1 << 64) - 1}").kind == "user"
    for text in (
        "kafka:",
        "kafka:a b",
        "kafka:..",
        "kafka:" + "x" * 250,
        "user:me",
        "user:07",
        "user:-1",
        f"user:{1 << 64}",
    ):
        with pytest.raises(TargetError):
            parse(text)
    with pytest.raises(TargetError, match=r"callbacks\.kafka"):
        accepted("kafka:orders", ALWAYS)
    assert accepted("kafka:orders", ALWAYS | {"kafka"}).name == "orders"
    with pytest.raises(TargetError, match="presence"):
        accepted("user:7", ALWAYS)

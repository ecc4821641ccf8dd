"""Logs in Kafka: one topic for each log, one of its partitions for each partition of the log.

Owns readers and topics. `shared` has the rule of owners, and `producer` writes.
Transactions are not used: they cost two more round trips per batch, and the claims fence as well.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from muster_server.plane.causes import shown
from muster_server.plane.log.producer import DELIVERY_S, KafkaProducer, common, text
from muster_server.plane.log.shared import HEAD, SharedLog
from muster_server.plane.log.words import BATCH_BYTES_MAX, Failed

T = TypeVar("T")

MESSAGE_BYTES_MAX: Final = BATCH_BYTES_MAX + HEAD.size + (64 << 10)
"""Limit of a message: a batch, the head, and Kafka's own bytes around it."""
ASK_S: Final = 10.0
"""Limit of the wait for an answer about topics and positions, in seconds."""
READ_S: Final = 30.0
"""Limit of the wait for the next existing message, in seconds."""
_READ_MESSAGES: Final = 64
_AGAIN_S: Final = 0.05
_NO_LEADER: Final = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
}
_AWAY: Final = {*_NO_LEADER, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
_TOPIC: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}
"""Only the log's owner drops records. Kafka must neither age nor compact them."""


class KafkaLogs:
    """A cluster of Kafka, with one producer for all logs of this process."""

    def __init__(
        self, servers: str, prefix: str, *, partitions: int, replicas: int, delivery_s: float = DELIVERY_S
    ) -> None:
        self._prefix, self._partitions, self._replicas = prefix, partitions, replicas
        self._common = common(servers)
        self._admin = AdminClient(self._common)
        self._producer = KafkaProducer(servers, bytes_max=MESSAGE_BYTES_MAX, delivery_s=delivery_s)
        self._topics = set[str]()
        self._making = asyncio.Lock()

    async def open(self, name: str, partition: int, epoch: int | None = None) -> SharedLog:
        topic = f"{self._prefix}.{name}"
        async with self._making:
            if topic not in self._topics:
                await asyncio.to_thread(self._need_topic, topic)
                self._topics.add(topic)
        if not 0 <= partition < self._partitions:
            raise Failed(f"topic {topic} has no partition {partition} (it has {self._partitions})")
        return await SharedLog.open(KafkaPartition(self, topic, partition), epoch)

    def _need_topic(self, topic: str) -> None:
        """Find or create a topic whose settings lose no record. Raises `Failed`."""
        try:
            # All topics: a question that names a missing one would have Kafka make it, with the broker's own settings.
            known = self._admin.list_topics(timeout=ASK_S).topics
            if topic not in known or known[topic].error is not None:
                made = NewTopic(topic, self._partitions, self._replicas, config=dict(_TOPIC))
                with contextlib.suppress(_Exists):
                    _made(self._admin.create_topics([made], request_timeout=ASK_S)[topic])
            found = self._admin.list_topics(topic, timeout=ASK_S).topics[topic]
            if len(found.partitions) not in {0, self._partitions}:  # 0: the broker does not know the topic yet
                raise Failed(
                    f"topic {topic} has {len(found.partitions)} partitions, but {self._partitions} are configured"
                )
            resource = ConfigResource(ResourceType.TOPIC, topic)
            keys = _asked(
                lambda: self._admin.describe_configs([resource], request_timeout=ASK_S)[resource].result(ASK_S)
            )
        except (KafkaException, TimeoutError) as error:
            raise Failed(f"topic {topic}: {text(error)}") from None
        for key, wanted in _TOPIC.items():
            value = keys[key].value
            if key == "max.message.bytes" and int(value) >= MESSAGE_BYTES_MAX:
                continue
            if value != wanted:
                raise Failed(f"topic {topic} has {key}={value}, which loses records; set it to {wanted}")

    async def close(self) -> None:
        await self._producer.close()

    # --- for partitions ------------------------------------------------------------------------------------------------

    async def produce(self, topic: str, partition: int, message: bytes) -> int | None:
        """As `Partition.append`."""
        return await self._producer.produce(topic, message, partition=partition)

    def consumer(self) -> Consumer:
        """A reader outside any consumer group."""
        return Consumer(
            self._common
            | {
                "group.id": "muster",  # the library requires one; nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
                "fetch.wait.max.ms": 100,
            }
        )

    def drop(self, where: TopicPartition) -> None:
        """Drop messages below an offset. Blocks. Raises `Failed`."""
        try:
            self._admin.delete_records([where], request_timeout=ASK_S)[where].result(ASK_S)
        except (KafkaException, TimeoutError) as error:
            raise Failed(f"Kafka refused to drop messages: {text(error)}") from None


class KafkaPartition:
    """A partition of a topic, as the rule of owners uses it. Positions are Kafka's offsets."""

    def __init__(self, logs: KafkaLogs, topic: str, partition: int) -> None:
        self._logs, self._topic, self._number = logs, topic, partition

    async def append(self, message: bytes) -> int | None:
        return await self._logs.produce(self._topic, self._number, message)

    async def bounds(self) -> tuple[int, int]:
        return await asyncio.to_thread(self._bounds)

    def _bounds(self) -> tuple[int, int]:
        consumer = self._logs.consumer()
        try:
            low, high = _asked(lambda: consumer.get_watermark_offsets(self._at(0), timeout=ASK_S, cached=False))
        except (KafkaException, TypeError) as error:  # None at a timeout
            raise Failed(f"{self}: {text(error)}") from None
        finally:
            consumer.close()
        return int(low), int(high)

    async def read(self, first: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        if first >= end:
            return
        consumer = await asyncio.to_thread(self._logs.consumer)
        try:
            consumer.assign([self._at(first)])
            while first < end:
                messages = await asyncio.to_thread(_some, consumer)
                if not messages:
                    raise Failed(f"{self}: no message within {READ_S:g} s")
                for message in messages:
                    if (error := message.error()) is not None:
                        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                            raise IndexError(f"{self}: {shown(error.str())}")
                        if error.retriable() or error.code() in _AWAY:
                            continue  # the library reconnects
                        raise Failed(f"{self}: {shown(error.str())}")
                    position, value = message.offset(), message.value()
                    assert position is not None
                    if position >= end:
                        return
                    yield position, value or b""
                    first = position + 1
        finally:
            await asyncio.to_thread(consumer.close)

    async def drop(self, below: int) -> None:
        await asyncio.to_thread(self._logs.drop, self._at(below))

    def _at(self, position: int) -> TopicPartition:
        return TopicPartition(self._topic, self._number, position)

    def __str__(self) -> str:
        return f"topic {self._topic}, partition {self._number}"


def _some(consumer: Consumer) -> list[Message]:
    """Wait for the next message; return it and those that have arrived. Blocks."""
    message = consumer.poll(READ_S)
    return [] if message is None else [message, *consumer.consume(_READ_MESSAGES, 0)]


def _asked(ask: Callable[[], T]) -> T:
    """Call `ask` and return the result; retry while the partition has no leader, as just after its creation or its
    broker's end. Blocks."""
    deadline = time.monotonic() + ASK_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            code = error.args[0].code()
            passes = error.args[0].retriable() or code in _NO_LEADER
            if not passes or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_S)


class _Exists(Exception):
    """Another process created the topic meanwhile."""


def _made(making: "Future[None]") -> None:
    try:
        making.result(ASK_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise _Exists from None
        raise

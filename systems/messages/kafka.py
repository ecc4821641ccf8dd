"""Targets in Kafka: a message is written to a Kafka topic, and all its in-sync replicas acknowledge it.

Owns the form of a message there. It must not know topics of messages, retries or claims.
The key is the message's id, so all its attempts are in one partition; the headers that a reader needs are those of a
callback.
"""

import time
from typing import Final

from muster_server.plane.log import TooLarge
from muster_server.plane.log.producer import KafkaProducer
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.shapes import Envelope

MESSAGE_BYTES_MAX: Final = (1 << 20) + (64 << 10)
"""Limit of a Kafka message: the largest body, and what is around it. The topic's own limit may be lower."""
DELIVERY_S: Final = 30.0
"""An attempt that timed out may still be written later: then the message is there twice, with the same id."""


class KafkaTargets:
    """A producer, opened when a message first goes to Kafka."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer: KafkaProducer | None = None

    async def publish(self, topic: str, envelope: Envelope, of: str = "") -> None:
        """Write a message, whichever topic of messages it is of, to a topic of Kafka. Raises `PublishError`."""
        if self._producer is None:
            self._producer = KafkaProducer(self._servers, bytes_max=MESSAGE_BYTES_MAX, delivery_s=DELIVERY_S)
        headers = (
            ("webhook-id", envelope.id.encode()),
            ("webhook-timestamp", str(int(time.time())).encode()),
            ("content-type", envelope.kind.encode()),
        )
        try:
            await self._producer.produce(
                topic, envelope.body, key=(envelope.key or envelope.id).encode(), headers=headers
            )
        except TooLarge as error:
            raise PublishError(f"too large for topic {topic} of Kafka: {error}", lasting=True) from None
        except StoreError as error:
            raise PublishError(str(error)) from None

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.close()

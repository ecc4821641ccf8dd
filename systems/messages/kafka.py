"""Targets in Kafka: a message is written to a topic there, acknowledged by all its in-sync replicas.

Owns how a message looks there. It must not know topics of messages, retries or claims.

The key is the message's id, so all its attempts are in one partition; so are the headers of a callback that a reader needs.
"""

import time
from typing import Final

from muster_server.plane.log import LogError, TooLarge
from muster_server.plane.log.producer import KafkaProducer
from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.shapes import Envelope

MESSAGE_BYTES_MAX: Final = (1 << 20) + (64 << 10)
"""The largest body, and what is around it. The topic's own limit may be lower."""
DELIVERY_S: Final = 30.0
"""An attempt that is over before may still be written after it: the message comes twice then, with the same id."""


class KafkaTargets:
    """A producer, opened when a message first goes to Kafka."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer: KafkaProducer | None = None

    async def publish(self, topic: str, envelope: Envelope) -> None:
        """Write a message. Raises `PublishError`."""
        if self._producer is None:
            self._producer = KafkaProducer(self._servers, bytes_max=MESSAGE_BYTES_MAX, delivery_s=DELIVERY_S)
        headers = (
            ("webhook-id", envelope.id.encode()),
            ("webhook-timestamp", str(int(time.time())).encode()),
            ("content-type", envelope.kind.encode()),
        )
        try:
            await self._producer.produce(topic, envelope.body, key=envelope.id.encode(), headers=headers)
        except TooLarge as error:
            raise PublishError(f"too large for topic {topic} of Kafka: {error}", lasting=True) from None
        except LogError as error:
            raise PublishError(str(error)) from None

    async def close(self) -> None:
        """End the producer."""
        if self._producer is not None:
            await self._producer.close()

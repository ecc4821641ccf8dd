"""The producer of Kafka and its thread, for logs and for any system.

Owns the settings of writing, and the meaning of the library's errors. It must not know logs.
A message is acknowledged once all in-sync replicas have it. The producer is idempotent, so its own retries write no
message twice.
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from muster_server.plane.causes import shown
from muster_server.plane.log.words import Failed, TooLarge

DELIVERY_S: Final = 30.0
"""After this many seconds the fate of an unacknowledged message is unknown; longer than a broker's restart (4 s to 13
s)."""
_POLL_S: Final = 0.5


def common(servers: str) -> dict[str, Any]:
    """Settings of every client of these servers."""
    return {
        "bootstrap.servers": servers,
        "log_level": 0,
        "reconnect.backoff.max.ms": 500,
        "socket.keepalive.enable": True,
    }


class KafkaProducer:
    """A producer for all topics of a process."""

    def __init__(self, servers: str, *, bytes_max: int, delivery_s: float = DELIVERY_S) -> None:
        """`bytes_max`: limit of a message, including the library's own bytes around it."""
        self._settings = common(servers) | {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(delivery_s * 1000),
            "message.max.bytes": bytes_max,
        }
        self._producer = Producer(self._settings)
        self._ended = threading.Event()
        self._polling = threading.Thread(target=self._poll, name="kafka", daemon=True)
        self._polling.start()

    def _poll(self) -> None:
        """Report deliveries as soon as they are known."""
        while not self._ended.is_set():
            self._producer.poll(_POLL_S)

    async def produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int = -1,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> int | None:
        """Make a message durable. Returns its position, or None if Kafka does not tell it.

        `partition` -1: that of the key, or any. Raises `TooLarge`, or `Failed` if its fate is unknown.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int | None] = loop.create_future()

        def tell(error: KafkaError | None, position: int | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(position)
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                done.set_exception(TooLarge(error.str()))
            else:
                done.set_exception(Failed(f"Kafka did not acknowledge a batch: {shown(error.str())}"))

        def delivered(error: KafkaError | None, message: Message) -> None:  # in the producer's thread
            position = message.offset()
            known = position if position is not None and position >= 0 else None
            loop.call_soon_threadsafe(tell, error, known)

        try:
            self._producer.produce(
                topic, value, key=key, partition=partition, headers=list(headers), on_delivery=delivered
            )
        except BufferError as error:
            raise Failed(f"Kafka's queue is full: {shown(str(error))}") from None
        except KafkaException as error:
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise TooLarge(text(error)) from None
            if error.args[0].fatal():  # this producer accepts nothing more
                self._producer = Producer(self._settings)
            raise Failed(text(error)) from None
        return await done

    async def close(self) -> None:
        """End the producer. Messages in transit have an unknown fate."""
        self._ended.set()
        await asyncio.to_thread(self._polling.join)
        await asyncio.to_thread(self._producer.flush, 0)


def text(error: BaseException) -> str:
    """Format an error of the library as one line."""
    kafka = error.args[0] if error.args else error
    return shown(kafka.str() if isinstance(kafka, KafkaError) else str(kafka)) or "no answer in time"

"""Scheduled messages of NATS (ADR-51): the sender, and a consumer that calls back.

`python -m bench.messages_nats PORT HOOK_URL`. Each message has a subject of its own; the server publishes it to the
target when it is due. What the consumer has not acknowledged is sent again after `ACK_S`.
"""

import asyncio
import datetime
import json
import sys
from collections.abc import Sequence
from typing import Any, Final, Self

import nats
import uvloop
from nats.js.api import ConsumerConfig

from muster_server import _engines

STREAM: Final = "delay"
TARGET: Final = "fire.orders"
ACK_S: Final = 5
HELD_MAX: Final = 4_096
SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Sender:
    """A connection that sends messages with their due times. Each is in the stream's files when it was answered."""

    def __init__(self, client: Any) -> None:
        self._client, self._stream = client, client.jetstream(timeout=60)

    @classmethod
    async def connected(cls, port: int) -> Self:
        return cls(await nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 << 20))

    async def make(self) -> None:
        """Make the stream, unless it is there."""
        config = {"name": STREAM, "subjects": ["delay.>", "fire.>"], "storage": "file", "allow_msg_schedules": True}
        answer = await self._client.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode(), timeout=30)
        said = json.loads(answer.data)
        if "error" in said:
            raise OSError(f"nats: {said['error']}")

    async def send(self, messages: Sequence[tuple[str, int, bytes]]) -> None:
        """Ids, due times in ms, bodies."""
        await asyncio.gather(
            *(
                self._stream.publish(
                    f"delay.{id}",
                    body,
                    headers={"Nats-Schedule": f"@at {_time(due_at)}", "Nats-Schedule-Target": TARGET},
                )
                for id, due_at, body in messages
            )
        )

    async def close(self) -> None:
        await self._client.close()

    async def consume(self, url: str) -> None:
        """Call back for what is due, until it is ended."""
        client = _engines.CallbackClient(
            json.dumps({"allowed": ["127.0.0.0/8"], "concurrency": 64, "in_flight_max": HELD_MAX}).encode()
        )
        held: dict[int, Any] = {}
        number = 0

        def answered() -> None:
            for each in client.take():
                asyncio.ensure_future(held.pop(each[0]).ack())  # noqa: RUF006 - it is not waited for

        async def due(message: Any) -> None:
            nonlocal number
            number += 1
            held[number] = message
            client.submit([(number, f"m-{number}", url, "application/json", message.data, [SECRET], 10.0)])

        asyncio.get_running_loop().add_reader(client.fd(), answered)
        config = ConsumerConfig(ack_wait=ACK_S, max_ack_pending=HELD_MAX)
        await self._stream.subscribe(TARGET, durable="pump", cb=due, manual_ack=True, config=config)
        print("ready", flush=True)
        await asyncio.Event().wait()


def _time(ms: int) -> str:
    seconds = datetime.datetime.fromtimestamp(ms // 1_000, datetime.UTC)
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{ms % 1_000:03d}Z"


async def work(port: int, url: str) -> None:
    """Until it is ended."""
    sender = await Sender.connected(port)
    await sender.make()
    await sender.consume(url)


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1]), sys.argv[2]))

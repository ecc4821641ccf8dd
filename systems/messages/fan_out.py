"""A topic with subscribers: its messages, once they are due, become messages of other topics.

Each subscriber has its own retries and dead letters. A message is done once each subscriber has it durably. Another
attempt sends it again to all: a topic takes an id once. It must not know fires or results.
"""

import asyncio

from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.receiver import NoTopic, Receiver, Unreachable, subscribed_id
from muster_server.systems.messages.refusal import PASSING
from muster_server.systems.messages.shapes import Envelope, Refused, Send


class FanOut:
    """`receiver` checks and numbers messages, and has the path to the schedule."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def publish(self, subscribers: str, envelope: Envelope, topic: str) -> None:
        """Send a message of `topic` to these topics, due at once. Raises `PublishError` unless all have it."""
        send = Send(
            id=subscribed_id(topic, envelope.id),
            body=envelope.body,
            kind=envelope.kind,
            key=envelope.key,
            tags=envelope.tags,
        )
        names = subscribers.split(",")
        missed = [why for why in await asyncio.gather(*(self._send(name, send) for name in names)) if why is not None]
        if missed:
            raise PublishError("; ".join(map(str, missed)), lasting=all(why.lasting for why in missed))

    async def _send(self, name: str, send: Send) -> PublishError | None:
        """Why one topic does not have it."""
        try:
            (said,) = await self._receiver.send(name, [send])
        except NoTopic:
            return PublishError(f"no topic {name!r:.80}", lasting=True)
        except Unreachable as error:
            return PublishError(f"topic {name}: {error}")
        if isinstance(said, Refused):
            return PublishError(f"topic {name}: {said.detail}", lasting=said.code not in PASSING)
        return None

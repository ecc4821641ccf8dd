"""Topics with subscribers, over a real schedule in a folder: each subscriber gets each message once, by its own rules."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster_server.systems.messages.fan_out import FanOut
from muster_server.systems.messages.firing import PublishError
from muster_server.systems.messages.receiver import Receiver, Unreachable
from muster_server.systems.messages.schedule import EmbeddedSchedule, NewMessage, Reply
from muster_server.systems.messages.shapes import Envelope, Refused, Send, Sent
from muster_server.systems.messages.targets import ALWAYS
from muster_server.systems.messages.topics import NewTopic, TopicsFile
from tests.messages.test_receiver import Direct

KINDS = ALWAYS | {"user"}


class Cut(Direct):
    """A `Center` that is away for the next requests."""

    away = 0

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        if self.away:
            self.away -= 1
            raise Unreachable("the center does not answer")
        return await super().insert(messages)


class World(NamedTuple):
    topics: TopicsFile
    center: Cut
    receiver: Receiver
    fan_out: FanOut


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    topics = TopicsFile(tmp_path, 10, KINDS)
    topics.open()
    for name in ("mail", "bills"):
        topics.create(NewTopic(name=name, callback="https://shop.example/hook"))
    topics.create(NewTopic(name="paid.v2", callback="topics:mail,bills"))
    schedule = EmbeddedSchedule(tmp_path / "schedule", lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    center = Cut(schedule)
    receiver = Receiver(topics, center, body_bytes_max=100_000, delay_days_max=1, kinds=KINDS)
    yield World(topics, center, receiver, FanOut(receiver))
    await schedule.close()


def message(id: str = "7", body: bytes = b"paid") -> Envelope:
    return Envelope(id, "", "text/plain", 0, body)


async def test_each_subscriber_has_the_message_once_however_often_it_is_sent(world: World) -> None:
    for _ in range(3):
        await world.fan_out.publish("mail,bills", message(), "paid.v2")
    for name in ("mail", "bills"):
        (found,) = await world.receiver.show(name, ["paid-v2:7"])
        assert found is not None
        assert (found.body, found.kind, found.state) == (b"paid", "text/plain", "scheduled")
        assert await world.receiver.show(name, ["7"]) == [None]


async def test_a_subscriber_that_was_not_reached_gets_it_by_the_next_attempt(world: World) -> None:
    world.center.away = 1
    with pytest.raises(PublishError, match="topic mail: the center does not answer") as caught:
        await world.fan_out.publish("mail,bills", message(), "paid.v2")
    assert not caught.value.lasting
    assert await world.receiver.show("mail", ["paid-v2:7"]) == [None]
    await world.fan_out.publish("mail,bills", message(), "paid.v2")
    for name in ("mail", "bills"):
        assert await world.receiver.show(name, ["paid-v2:7"]) != [None], name


async def test_a_subscriber_that_cannot_take_it_is_named_and_the_others_have_it(world: World) -> None:
    await world.receiver.send("bills", [Send(id="paid-v2:7", body=b"other")])
    with pytest.raises(PublishError, match="topic bills has a different message") as caught:
        await world.fan_out.publish("mail,bills,nosuch", message(), "paid.v2")
    assert "no topic 'nosuch'" in str(caught.value)
    assert caught.value.lasting
    (found,) = await world.receiver.show("mail", ["paid-v2:7"])
    assert found is not None


async def test_what_a_subscriber_could_not_take_is_refused_when_it_is_sent(world: World) -> None:
    async def one(**fields: Any) -> Sent | Refused:
        return (await world.receiver.send("paid.v2", [Send(**{"body": b"x"} | fields)]))[0]

    assert isinstance(await one(id="a" * 120), Sent)
    long = await one(id="a" * 121)
    assert isinstance(long, Refused)
    assert (long.code, "limit 120" in long.detail) == ("bad_request", True)
    assert isinstance(await one(body=b"x" * 961), Sent)
    world.topics.create(NewTopic(name="alerts", callback="user:7"))
    assert isinstance(await one(body=b"x" * 962), Sent)
    world.topics.create(NewTopic(name="both", callback="topics:mail,alerts"))
    (short,) = await world.receiver.send("both", [Send(body=b"x" * 961)])
    assert isinstance(short, Refused)
    assert (short.code, "user of topic alerts" in short.detail) == ("too_long", True)
    own = await one(target="topics:mail")
    assert isinstance(own, Refused)
    assert "a topic alone" in own.detail

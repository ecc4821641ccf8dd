"""What clients have the broker keep: it is no sign of life, and goes with its client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.index import Index
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.mqtt import Link
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.presence import Presence
from muster_server.systems.fleet.schema import Beat, Hello
from tests.fleet.mosquitto import PLANE, Mosquitto, needs_mosquitto
from tests.waiting import until

LEASE_MS = 90_000
FORGET_MS = 10 * LEASE_MS
TOPIC = schema.up("c1", "hello")
HELLO = schema.written(Hello(5, 1, {"country": ["CN"]}))


class Node:
    """What an index node clears at the broker."""

    def __init__(self, speaks: bool = True) -> None:
        self.now = 0
        self.cleared: list[str] = []
        self.index = Index()
        self.presence = Presence(
            self.index,
            Leases(lease_ms=LEASE_MS, hint_ms=20_000),
            Picks(self.index, 1),
            beat_ms=30_000,
            forget_ms=FORGET_MS,
            send=lambda topic, payload, quality: None,
            speaks=lambda client: speaks,
            clear=self.cleared.append,
        )

    def pass_ms(self, length: int) -> None:
        self.now += length
        self.presence.tick(self.now)

    def beat(self) -> None:
        self.presence.receive(self.now, schema.up("c1", "beat"), schema.written(Beat(5)))


def test_a_kept_message_is_no_sign_of_life_and_is_cleared_when_nobody_comes() -> None:
    node = Node()
    node.presence.retained(node.now, TOPIC)
    assert node.index.record("c1") is None
    node.pass_ms(LEASE_MS)
    assert node.cleared == []
    node.pass_ms(1)
    assert node.cleared == [TOPIC]


def test_a_kept_message_stays_as_long_as_its_client() -> None:
    node = Node()
    node.presence.retained(node.now, TOPIC)
    node.presence.receive(node.now, TOPIC, HELLO)
    for _ in range(10):
        node.pass_ms(LEASE_MS // 2)
        node.beat()
    assert node.cleared == []
    node.pass_ms(LEASE_MS + 1)
    assert node.cleared == [TOPIC]


def test_with_its_name_all_is_cleared_that_a_client_may_have_left() -> None:
    node = Node()
    node.presence.receive(node.now, TOPIC, HELLO)
    node.pass_ms(LEASE_MS + 1)
    assert node.cleared == []
    node.pass_ms(FORGET_MS + 1)
    assert set(node.cleared) == set(schema.ups("c1"))


def test_one_node_clears_and_strangers_topics_stay() -> None:
    node = Node(speaks=False)
    node.presence.retained(node.now, TOPIC)
    node.presence.retained(node.now, "other/1/c1/up/hello")
    node.presence.retained(node.now, "fleet/1/c 1/up/hello")
    node.pass_ms(LEASE_MS + 1)
    assert node.cleared == []


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    made = Mosquitto(tmp_path / "broker", ["c1"])
    await made.start()
    yield made
    await made.stop()


@needs_mosquitto
async def test_the_broker_keeps_nothing_of_a_topic_that_was_cleared(broker: Mosquitto) -> None:
    place, kept, heard = [(broker.host, broker.port)], list[str](), list[bytes]()

    def link(user: str, filters: tuple[str, ...]) -> Link:
        return Link(
            place,
            user,
            broker.words[user],
            filters,
            lambda _, payload: heard.append(payload),
            on_retained=lambda topic, _: kept.append(topic),
        )

    client = link("c1", (schema.down_filter("c1"),))
    await client.open()
    client._client.publish(TOPIC, json.dumps({"epoch": 5}).encode(), qos=1, retain=True)
    plane = link(PLANE, schema.PRESENCE)
    await plane.open()
    await until(lambda: kept == [TOPIC] or heard != [])
    if heard:  # it subscribed before the message was there
        await plane.close()
        plane = link(PLANE, schema.PRESENCE)
        await plane.open()
        await until(lambda: kept == [TOPIC])
    plane.clear(TOPIC)
    await asyncio.sleep(0)
    client._client.publish(schema.up("c1", "beat"), b"{}", qos=1)
    await until(lambda: b"{}" in heard)
    await plane.close()
    kept.clear()
    again = link(PLANE, schema.PRESENCE)
    await again.open()
    client._client.publish(schema.up("c1", "beat"), b"[]", qos=1)
    await until(lambda: b"[]" in heard)
    assert kept == []
    await again.close()
    await client.close()

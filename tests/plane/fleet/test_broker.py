"""Real mosquitto as a child: foreign clients play agents by the document, and see nothing that is not theirs."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from plane.fleet.broker import PLANE, Broker, BrokerError, access, configuration, password_line
from plane.fleet.dispatcher import Answer, Dispatcher
from plane.fleet.index import Index
from plane.fleet.leases import Leases
from plane.fleet.mqtt import Link, LinkError
from plane.fleet.picks import Picks
from plane.fleet.runs import RunEnd, Runs
from plane.fleet.selector import parse
from tests.waiting import until

MINUTE = 29_700_000
USERS = {PLANE: "plane's word", "a1": "word 1", "a2": "word 2", "shell": "word 3"}

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None or shutil.which("mosquitto_pub") is None,
    reason="mosquitto and mosquitto-clients are not installed",
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path / "broker", USERS)
    await made.start()
    yield made
    await made.stop()
    assert made.pid == 0


class Plane:
    """A dispatcher behind a link, by a clock that the test moves."""

    def __init__(self, broker: Broker) -> None:
        self.index = Index()
        self.answers: list[Answer] = []
        self.ended: list[RunEnd] = []
        self.now = 0
        self.link = Link(broker.host, broker.port, PLANE, USERS[PLANE], self.heard)
        self.dispatcher = Dispatcher(
            self.index,
            Leases(lease_ms=60_000, hint_ms=5_000),
            Picks(self.index, MINUTE),
            Runs(receipt_ms=5_000, result_ms=30_000),
            beat_ms=20_000,
            receipt_ms=5_000,
            result_ms=30_000,
            send=self.link.send,
            answered=self.answers.append,
            ended=self.ended.append,
        )

    def heard(self, topic: str, payload: bytes) -> None:
        self.dispatcher.receive(self.now, topic, payload)


@pytest.fixture
async def plane(broker: Broker) -> AsyncIterator[Plane]:
    made = Plane(broker)
    await made.link.open()
    yield made
    await made.link.close()


class Agent:
    """paho, by `docs/fleet.md` alone."""

    def __init__(self, broker: Broker, name: str, word: str | None = None) -> None:
        self.name = name
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self.client.username_pw_set(name, word or USERS[name])
        self.client.on_connect = self._connected
        self.client.on_message = self._message
        self.client.on_subscribe = self._subscribed
        self.subscribed = 0
        """Answers of the broker: two for each connection."""
        self.code: object = None
        self.client.connect(broker.host, broker.port, keepalive=15)
        self.client.loop_start()

    def _connected(self, client: paho.Client, _data: object, _flags: object, code: Any, _more: object) -> None:
        self.code = code
        if not code.is_failure:
            client.subscribe(f"fleet/1/{self.name}/down/+", qos=1)
            client.subscribe("fleet/#", qos=1)
            attributes = {"country": ["CN"], "carrier": ["1"]}
            self.write("hello", {"epoch": 5, "version": 1, "attributes": attributes})

    def _subscribed(self, *_: object) -> None:
        self.subscribed += 1

    def _message(self, _client: paho.Client, _data: object, message: Any) -> None:
        what = json.loads(message.payload)
        self.seen.append((message.topic, what))
        if message.topic.endswith("/task"):
            self.write("receipt", {"run": what["run"], "epoch": 5})
            self.write("result", {"run": what["run"], "epoch": 5, "ok": True, "value": {"by": self.name}})

    def write(self, kind: str, payload: dict[str, Any]) -> None:
        self.client.publish(f"fleet/1/{self.name}/up/{kind}", json.dumps(payload), qos=1)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def shell(broker: Broker, topic: str, payload: dict[str, Any], user: str = "shell") -> None:
    """mosquitto_pub as a client."""
    subprocess.run(
        [
            *("mosquitto_pub", "-h", broker.host, "-p", str(broker.port), "-u", user, "-P", USERS[user]),
            *("-i", user, "-q", "1", "-t", topic, "-m", json.dumps(payload)),
        ],
        check=True,
        timeout=30,
        capture_output=True,
    )


@needs_mosquitto
async def test_foreign_clients_take_tasks_and_are_counted(broker: Broker, plane: Plane) -> None:
    agents = [Agent(broker, "a1"), Agent(broker, "a2")]
    try:
        await until(lambda: plane.index.online == 2)
        await asyncio.to_thread(
            shell, broker, "fleet/1/shell/up/hello", {"epoch": 5, "version": 1, "attributes": {"country": ["CN"]}}
        )
        await until(lambda: plane.index.online == 3)
        run = ("probe", MINUTE)
        plane.dispatcher.run(0, run, parse("country=CN"), 3, 1, kind="ping", target="example.org")
        await until(lambda: len(plane.answers) == 2)
        await asyncio.to_thread(
            shell, broker, "fleet/1/shell/up/result", {"run": f"probe@{MINUTE}", "epoch": 5, "ok": False, "error": "no"}
        )
        await until(lambda: bool(plane.ended))
        assert sorted(plane.ended[0].done) == ["a1", "a2", "shell"]
        assert {bytes(answer.result.value) for answer in plane.answers} == {
            b'{"by": "a1"}',
            b'{"by": "a2"}',
            b"null",
        }
        for agent in agents:  # both asked for everything
            assert agent.seen
            assert {topic.split("/")[2:4] == [agent.name, "down"] for topic, _ in agent.seen} == {True}
    finally:
        for agent in agents:
            agent.end()


@needs_mosquitto
async def test_a_client_cannot_speak_for_another_nor_give_orders(broker: Broker, plane: Plane) -> None:
    agent = Agent(broker, "a1")
    try:
        await until(lambda: plane.index.online == 1)
        hello = {"epoch": 9, "version": 1, "attributes": {"country": ["CN"]}}
        order = {"run": "x@1", "kind": "ping", "target": "evil", "receipt_ms": 1, "result_ms": 1}
        for topic, payload in [
            ("fleet/1/a1/up/hello", hello),
            ("fleet/1/a1/down/task", order),
            ("fleet/1/+/up/hello", hello),
            ("fleet/1/shell/up/hello/more", hello),
        ]:
            try:
                await asyncio.to_thread(shell, broker, topic, payload)
            except subprocess.CalledProcessError:
                continue  # no valid topic
        await asyncio.to_thread(shell, broker, "fleet/1/shell/up/hello", hello)
        await until(lambda: plane.index.online == 2)
        record = plane.index.record("a1")
        assert record is not None
        assert record.epoch == 5
        assert not any(topic.endswith("/task") for topic, _ in agent.seen)
    finally:
        agent.end()


@needs_mosquitto
async def test_a_message_that_is_too_large_does_not_reach_the_plane(broker: Broker, plane: Plane) -> None:
    sizes: list[int] = []
    heard = plane.link._receive

    def measured(topic: str, payload: bytes) -> None:
        sizes.append(len(payload))
        heard(topic, payload)

    plane.link._receive = measured
    agent = Agent(broker, "a1")
    try:
        await until(lambda: plane.index.online == 1)
        agent.write("result", {"run": "x@1", "epoch": 5, "ok": True, "value": "x" * 100_000})
        await asyncio.to_thread(shell, broker, "fleet/1/shell/up/hello", {"epoch": 1, "version": 1, "attributes": {}})
        await until(lambda: plane.index.online == 2)
        assert max(sizes) < 1000
        assert not plane.dispatcher.dropped
    finally:
        agent.end()


@needs_mosquitto
async def test_wrong_words_and_strangers_do_not_come_in(broker: Broker) -> None:
    for name, word in [("a1", "word 2"), ("stranger", "word 1")]:
        agent = Agent(broker, name, word)
        try:
            await until(lambda agent=agent: agent.code is not None)  # type: ignore[misc]
            assert agent.code.is_failure  # type: ignore[attr-defined]
        finally:
            agent.end()
    with pytest.raises(LinkError, match="broker 127"):
        await Link(broker.host, broker.port, PLANE, "wrong", lambda _topic, _payload: None).open()


@needs_mosquitto
async def test_a_broker_that_dies_and_comes_back_has_its_plane_again(tmp_path: Path) -> None:
    first = Broker(tmp_path / "broker", USERS)
    await first.start()
    plane = Plane(first)
    await plane.link.open()
    agent = Agent(first, "a1")
    second = Broker(tmp_path / "broker", USERS, port=first.port)
    try:
        await until(lambda: plane.index.online == 1)
        await first.stop()
        await until(lambda: not plane.link.connected)
        assert plane.index.online == 1  # its lease lasts
        await second.start()
        await until(lambda: plane.link.connected and agent.subscribed == 4, 30)
        plane.dispatcher.run(0, ("probe", MINUTE), parse(""), 1, 1, kind="ping", target="example.org")
        await until(lambda: bool(plane.ended), 30)
        assert plane.ended[0].done == ["a1"]
    finally:
        agent.end()
        await plane.link.close()
        await first.stop()
        await second.stop()


@needs_mosquitto
async def test_a_user_that_is_added_comes_in_after_a_reload(broker: Broker) -> None:
    broker.write_users({**USERS, "late": "word 4"})
    broker.reload()
    deadline = time.monotonic() + 30
    while True:
        agent = Agent(broker, "late", "word 4")
        try:
            await until(lambda agent=agent: agent.code is not None)  # type: ignore[misc]
            if not agent.code.is_failure:  # type: ignore[attr-defined]
                return
            assert time.monotonic() < deadline
        finally:
            agent.end()


@needs_mosquitto
async def test_a_port_that_is_taken_is_one_clear_line(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:\d+ is in use"):
        await Broker(tmp_path / "second", USERS, port=broker.port).start()


def test_names_that_would_write_another_line_or_topic_are_refused() -> None:
    for name in ("a:b", "a\nb", "", "+", "#", "a/b", "x" * 65):
        with pytest.raises(BrokerError, match="bad client name"):
            password_line(name, "word")


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    made = Broker(tmp_path, USERS)
    made.write_users(USERS)
    assert (tmp_path / "users").stat().st_mode & 0o777 == 0o600
    assert "word 1" not in (tmp_path / "users").read_text()
    assert "allow_anonymous false" in configuration(tmp_path, "127.0.0.1", 1)
    assert "%u" in access()

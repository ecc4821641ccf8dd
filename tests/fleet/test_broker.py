"""Real mosquitto as a child: foreign clients play agents by the document, and see nothing that is not theirs."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from muster_server.plane.kind import Launch
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.broker import BrokerError, access, configuration, enroll, password_line, prepare
from muster_server.systems.fleet.dispatcher import Answer
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.mqtt import Link, LinkError
from muster_server.systems.fleet.runs import RunEnd, Runs
from muster_server.systems.fleet.selector import parse
from tests.fleet.mosquitto import PLANE, Mosquitto, needs_mosquitto
from tests.fleet.whole import Whole
from tests.waiting import PATIENT_S, until

MINUTE = 29_700_000
CLIENTS = ("a1", "a2", "shell")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    made = Mosquitto(tmp_path / "broker", CLIENTS)
    await made.start()
    yield made
    await made.stop()
    assert made.pid == 0


class Plane:
    """A dispatcher behind a link, by a clock that the test moves."""

    def __init__(self, broker: Mosquitto) -> None:
        self.answers: list[Answer] = []
        self.ended: list[RunEnd] = []
        self.now = 0
        filters = (*schema.PRESENCE, *schema.ANSWERS)
        self.link = Link([(broker.host, broker.port)], PLANE, broker.words[PLANE], filters, self.heard)
        self.dispatcher = Whole(
            MINUTE,
            self.link.send,
            self.answers.append,
            self.ended.append,
            leases=Leases(lease_ms=60_000, hint_ms=5_000),
            runs=Runs(receipt_ms=5_000, result_ms=30_000),
            beat_ms=20_000,
            receipt_ms=5_000,
            result_ms=30_000,
        )
        self.index = self.dispatcher.index

    def heard(self, topic: str, payload: bytes) -> None:
        self.dispatcher.receive(self.now, topic, payload)


@pytest.fixture
async def plane(broker: Mosquitto) -> AsyncIterator[Plane]:
    made = Plane(broker)
    await made.link.open()
    yield made
    await made.link.close()


class Agent:
    """paho, by `docs/fleet.md` alone."""

    def __init__(self, broker: Mosquitto, name: str, word: str | None = None) -> None:
        self.name = name
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self.client.username_pw_set(name, word or broker.words[name])
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


def shell(broker: Mosquitto, topic: str, payload: dict[str, Any], user: str = "shell") -> None:
    """mosquitto_pub as a client."""
    subprocess.run(
        [
            *("mosquitto_pub", "-h", broker.host, "-p", str(broker.port), "-u", user, "-P", broker.words[user]),
            *("-i", user, "-q", "1", "-t", topic, "-m", json.dumps(payload)),
        ],
        check=True,
        timeout=PATIENT_S,
        capture_output=True,
    )


@needs_mosquitto
async def test_foreign_clients_take_tasks_and_are_counted(broker: Mosquitto, plane: Plane) -> None:
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
async def test_a_client_cannot_speak_for_another_nor_give_orders(broker: Mosquitto, plane: Plane) -> None:
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
async def test_a_message_that_is_too_large_does_not_reach_the_plane(broker: Mosquitto, plane: Plane) -> None:
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
async def test_wrong_words_and_strangers_do_not_come_in(broker: Mosquitto) -> None:
    for name, word in [("a1", broker.words["a2"]), ("stranger", broker.words["a1"]), (PLANE, broker.words["a1"])]:
        agent = Agent(broker, name, word)
        try:
            await until(lambda agent=agent: agent.code is not None)  # type: ignore[misc]
            assert agent.code.is_failure  # type: ignore[attr-defined]
        finally:
            agent.end()
    with pytest.raises(LinkError, match="broker 127"):
        await Link([(broker.host, broker.port)], PLANE, "wrong", schema.ANSWERS, lambda _topic, _payload: None).open()


@needs_mosquitto
async def test_a_broker_that_is_killed_comes_back_and_has_its_plane_again(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker", CLIENTS)
    await broker.start()
    plane = Plane(broker)
    await plane.link.open()
    agent = Agent(broker, "a1")
    try:
        await until(lambda: plane.index.online == 1)
        broker.kill()
        await until(lambda: not plane.link.connected)
        assert plane.index.online == 1  # its lease lasts
        await until(lambda: plane.link.connected and agent.subscribed == 4)
        assert broker.running.told().restarts == 1
        plane.dispatcher.run(0, ("probe", MINUTE), parse(""), 1, 1, kind="ping", target="example.org")
        await until(lambda: bool(plane.ended))
        assert plane.ended[0].done == ["a1"]
    finally:
        agent.end()
        await plane.link.close()
        await broker.stop()


@needs_mosquitto
async def test_a_broker_dies_with_the_process_that_runs_it(tmp_path: Path) -> None:
    arguments = prepare(Launch(tmp_path, "127.0.0.1", 0, lambda name: None))
    code = (
        "import os, subprocess, sys, time\n"
        "tied = [sys.executable, '-m', 'muster_server.control.cluster.tied', str(os.getpid()), '/bin/sleep', '600']\n"
        "print(subprocess.Popen(tied).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    assert arguments[0] == "-c"
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    await until(lambda: b"sleep" in _command(child))
    parent.kill()
    await parent.wait()
    await until(lambda: not _command(child))
    await parent.stdout.read()  # to its end: the child had it open too


def _command(pid: int) -> bytes:
    """Of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@needs_mosquitto
async def test_a_user_that_is_added_comes_in_after_a_reload(broker: Mosquitto) -> None:
    broker.admit("late")
    deadline = time.monotonic() + PATIENT_S
    while True:
        agent = Agent(broker, "late")
        try:
            await until(lambda agent=agent: agent.code is not None)  # type: ignore[misc]
            if not agent.code.is_failure:  # type: ignore[attr-defined]
                return
            assert time.monotonic() < deadline
        finally:
            agent.end()


@needs_mosquitto
async def test_a_program_that_cannot_start_is_one_clear_line(broker: Mosquitto, tmp_path: Path) -> None:
    second = Mosquitto(tmp_path / "second")
    second.running._launch = Launch(second.folder, "127.0.0.1", 1 << 17, lambda name: None)
    await second.start()
    assert re.search(r"mosquitto ended with \d+: ", second.running.why)
    assert second.pid == 0


def test_names_that_would_write_another_line_or_topic_are_refused() -> None:
    for name in ("a:b", "a\nb", "", "+", "#", "a/b", "x" * 65):
        with pytest.raises(BrokerError, match="invalid client name"):
            password_line(name, "word")


def test_files_are_for_the_owner_alone_and_clients_stay_when_it_starts_again(tmp_path: Path) -> None:
    (word,) = enroll(tmp_path, ["a1"]).values()
    before = (tmp_path / "users").read_text()
    prepare(Launch(tmp_path, "127.0.0.1", 1, lambda name: None))
    after = (tmp_path / "users").read_text()
    for file in ("users", "plane.secret"):
        assert (tmp_path / file).stat().st_mode & 0o777 == 0o600
    assert before in after
    assert word not in after
    assert "allow_anonymous false" in configuration(tmp_path, "127.0.0.1", 1)
    assert "%u" in access()

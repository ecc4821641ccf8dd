"""Several MQTT brokers by a list, and by a name: nodes and clients spread over them, and go on at another one."""

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import muster.fleet
from muster.brokers import Brokers, brokers
from muster.fleet import Agent
from muster_server.plane.files import write_atomically
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.dispatcher import Answer
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.mqtt import Link, LinkError
from muster_server.systems.fleet.presence import MESSAGES_MAX
from muster_server.systems.fleet.runs import RunEnd, Runs
from muster_server.systems.fleet.selector import parse
from tests.certificates import certificates
from tests.fleet.mosquitto import Mosquitto, needs_mosquitto
from tests.fleet.whole import Whole
from tests.waiting import until

MINUTE = 29_700_000
NAMES = tuple(f"c{number}" for number in range(12))


class Pair:
    """Two brokers that pass everything on to each other, as a cluster does."""

    def __init__(self, folder: Path) -> None:
        self.first = Mosquitto(folder / "first", ["plane", "bridge", *NAMES])
        self.second = Mosquitto(folder / "second")
        self.words = self.first.words
        self.first.configure(_alike, ("plane", "bridge"))
        self.second.configure(lambda text: _alike(text) + self._bridge())

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(each.host, each.port) for each in (self.first, self.second)]

    @property
    def url(self) -> str:
        return "mqtt://" + ",".join(f"{host}:{port}" for host, port in self.places)

    async def start(self) -> None:
        write_atomically(self.second.folder / "users", (self.first.folder / "users").read_bytes())
        await self.first.start()
        await self.second.start()

    async def stop(self) -> None:
        await self.first.stop()
        await self.second.stop()

    def _bridge(self) -> str:
        lines = [
            "connection other",
            f"address {self.first.host}:{self.first.port}",
            "topic fleet/# both 1",
            "remote_clientid bridge",
            "remote_username bridge",
            f"remote_password {self.words['bridge']}",
            "notifications false",
            "restart_timeout 1",
        ]
        return "\n".join(lines) + "\n"


def _alike(text: str) -> str:
    """Several connections of one user; a bridge is one more, of one that reads and writes everything."""
    return text.replace("use_username_as_clientid true", "use_username_as_clientid false")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    await made.start()
    yield made
    await made.stop()


class Plane:
    """What index nodes and schedulers do, behind two links: one for what clients say, one for orders."""

    def __init__(self, pair: Pair) -> None:
        self.answers: list[Answer] = []
        self.ended: list[RunEnd] = []
        word = pair.words["plane"]

        def link(filters: Any, first: int) -> Link:
            name = f"muster-{first}"
            return Link(pair.places, "plane", word, filters, self._heard, name=name, first=first)

        self.links = [link(schema.PRESENCE, 0), link(schema.ANSWERS, 1)]
        self.whole = Whole(
            MINUTE,
            self.links[1].send,
            self.answers.append,
            self.ended.append,
            leases=Leases(lease_ms=60_000, hint_ms=5_000),
            runs=Runs(receipt_ms=5_000, result_ms=30_000),
            beat_ms=20_000,
            receipt_ms=5_000,
            result_ms=30_000,
        )

    def _heard(self, topic: str, payload: bytes) -> None:
        self.whole.receive(0, topic, payload)

    async def run(self, minute: int, wanted: int) -> None:
        """One run, to its end."""
        count = len(self.ended)
        self.whole.run(0, ("probe", minute), parse(""), wanted, 1, kind="ping", target="t")
        await until(lambda: len(self.ended) > count)
        assert len(self.ended[-1].done) == wanted


@contextlib.asynccontextmanager
async def agents(pair: Pair) -> AsyncIterator[list[Agent]]:
    made = [Agent(pair.url, name, pair.words[name], {"country": ["CN"]}, spread_s=0.5) for name in NAMES]
    for each in made:
        each.task("*")(_answer)
    running = [asyncio.create_task(each.run()) for each in made]
    try:
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer(target: str, options: dict[str, Any]) -> int:
    return 1


@needs_mosquitto
async def test_nodes_and_clients_spread_over_brokers_and_go_on_at_another_one(pair: Pair) -> None:
    plane = Plane(pair)
    for link in plane.links:
        await link.open()
    try:
        assert [link.broker for link in plane.links] == pair.places
        async with agents(pair) as clients:
            await until(lambda: plane.whole.index.online == len(NAMES))
            assert {agent._places[0] for agent in clients} == set(pair.places)
            await plane.run(1, len(NAMES))
            await pair.first.stop()
            await until(lambda: all(agent.connected and agent._places[0] == pair.places[1] for agent in clients))
            await until(lambda: all(link.connected and link.broker == pair.places[1] for link in plane.links))
            await plane.run(2, len(NAMES))
    finally:
        for link in plane.links:
            await link.close()


@needs_mosquitto
async def test_a_link_begins_at_a_broker_that_answers_and_names_all_that_do_not(pair: Pair) -> None:
    nobody = ("127.0.0.1", 1)
    word = pair.words["plane"]
    link = Link([nobody, pair.places[1]], "plane", word, schema.ANSWERS, lambda _topic, _payload: None)
    await link.open()
    assert link.connected
    assert link.broker == pair.places[1]
    await link.close()
    link = Link([nobody, pair.places[1]], "plane", "wrong", schema.ANSWERS, lambda _topic, _payload: None)
    with pytest.raises(LinkError, match=r"broker 127\.0\.0\.1:1: .*; broker .*not authorised"):
        await link.open()
    await link.close()


@needs_mosquitto
async def test_a_broker_that_stands_still_is_left_for_another_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.systems.fleet.mqtt.KEEPALIVE_SECONDS", 1)
    link = Link(pair.places, "plane", pair.words["plane"], schema.ANSWERS, lambda _topic, _payload: None)
    await link.open()
    os.kill(pair.first.pid, signal.SIGSTOP)
    try:
        await until(lambda: link.connected and link.broker == pair.places[1])
    finally:
        os.kill(pair.first.pid, signal.SIGCONT)
        await link.close()


async def test_a_name_with_several_addresses_spreads_clients_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def known(host: str, port: int) -> list[str]:
        assert host == "fleet.example"
        return ["127.0.0.2", "127.0.0.3"]

    def accepted(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("sockname")[0])
        writer.close()

    monkeypatch.setattr(muster.fleet, "resolved", known)
    servers = [await asyncio.start_server(accepted, "127.0.0.2", 0)]
    port = servers[0].sockets[0].getsockname()[1]
    servers.append(await asyncio.start_server(accepted, "127.0.0.3", port))
    made = [Agent(f"mqtt://fleet.example:{port}", name, "", {}, spread_s=60.0) for name in NAMES]
    running = [asyncio.create_task(each.run()) for each in made]
    try:
        await until(lambda: len(seen) >= len(NAMES))
        assert set(seen) == {"127.0.0.2", "127.0.0.3"}
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for server in servers:
            server.close()
            await server.wait_closed()


@needs_mosquitto
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_a_client_proves_itself_by_its_certificate(tmp_path: Path) -> None:
    certificates(tmp_path, "c1", "stranger")
    broker = Mosquitto(tmp_path / "broker", ["plane"])
    (secure,) = await _free_ports(1)
    files = (f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/server.pem", f"keyfile {tmp_path}/server.key")
    words = (f"listener {secure} 127.0.0.1", *files, "require_certificate true", "use_identity_as_username true")
    broker.configure(lambda text: text + "\n".join(words) + "\n")
    await broker.start()
    heard: list[str] = []
    place, word = [(broker.host, broker.port)], broker.words["plane"]
    link = Link(place, "plane", word, schema.PRESENCE, lambda topic, _payload: heard.append(topic))
    await link.open()
    agent = _with_certificate(tmp_path, secure, "c1", "c1")
    liar = _with_certificate(tmp_path, secure, "c2", "stranger")  # says c2, and proves to be another one
    running = [asyncio.create_task(each.run()) for each in (agent, liar)]
    try:
        await until(lambda: "fleet/1/c1/up/hello" in heard)
        await until(lambda: agent.connected and liar.connected)
        agent.change({"country": ["CN"]})
        await until(lambda: heard.count("fleet/1/c1/up/hello") == 2)
        assert not any("/c2/" in topic or "/stranger/" in topic for topic in heard)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await link.close()
        await broker.stop()


def _with_certificate(folder: Path, port: int, name: str, certificate: str) -> Agent:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    return Agent(f"mqtts://127.0.0.1:{port}", name, "", {}, tls=context, spread_s=0.2)


async def _free_ports(count: int) -> list[int]:
    from muster_server.control.host.ports import Ports

    with Ports() as ports:
        return [ports.tcp("test", "127.0.0.1")[1] for _ in range(count)]


@needs_mosquitto
async def test_a_client_that_comes_back_repeats_only_results_that_are_waited_for(pair: Pair) -> None:
    heard: list[bytes] = []
    word = pair.words["plane"]
    link = Link(pair.places, "plane", word, schema.ANSWERS, lambda _topic, payload: heard.append(payload))
    await link.open()
    agent = Agent(pair.url, "c1", pair.words["c1"], {})
    now = time.monotonic()
    agent._results.update({"old": (now - 31, b'"old"'), "new": (now - 1, b'"new"')})
    running = asyncio.create_task(agent.run())
    try:
        await until(lambda: bool(heard))
        agent._publish("result", b'"last"', 1)
        await until(lambda: b'"last"' in heard)
        assert heard == [b'"new"', b'"last"']
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()


@needs_mosquitto
async def test_a_flood_of_a_client_is_counted_and_costs_nobody_else_a_place(pair: Pair) -> None:
    plane = Plane(pair)
    for link in plane.links:
        await link.open()
    try:
        async with agents(pair) as clients:
            await until(lambda: plane.whole.index.online == len(NAMES))
            began = time.monotonic()
            for _ in range(500):
                clients[0]._send("hello", {"epoch": 1, "version": 1, "attributes": {"country": ["XX"]}}, 0)
                clients[0]._send("result", {"run": "probe@1", "epoch": 1, "ok": True}, 0)

            def taken() -> int:  # each second begins with a place for so many
                return (2 + int(time.monotonic() - began)) * MESSAGES_MAX

            def all_came() -> bool:
                dropped = plane.whole.dropped
                return dropped["stranger"] >= 500 and dropped["flood"] >= 500 - taken()

            await until(all_came)
            assert taken() < 500, "the bound means nothing"
            assert plane.whole.dropped["stranger"] == 500
            await plane.run(2, len(NAMES))
    finally:
        for link in plane.links:
            await link.close()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mqtt://h", Brokers((("h", 1883),), False, "")),
        ("mqtts://u%40x@h/", Brokers((("h", 8883),), True, "u@x")),
        ("mqtt://a:1,b,[::1]:2", Brokers((("a", 1), ("b", 1883), ("::1", 2)), False, "")),
    ],
)
def test_brokers_can_be_said_in_a_url(url: str, found: Brokers) -> None:
    assert brokers(url) == found


@pytest.mark.parametrize(
    "url",
    ["", "h", "http://h", "mqtt://", "mqtt://a,,b", "mqtt://a:x", "mqtt://a/b", "mqtt://u:secret@h", "u:secret@h"],
)
def test_what_is_no_url_of_brokers_is_refused_and_tells_no_password(url: str) -> None:
    with pytest.raises(ValueError, match="mqtt://HOST:PORT") as error:
        brokers(url)
    assert "secret" not in str(error.value)

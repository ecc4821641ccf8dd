"""A second cluster of brokers and proxies beside the first one, at its routers and gateways (ROOM-10)."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import muster
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts
from tests.faults.instance import Instance
from tests.faults.ledger import Ledger
from tests.faults.load import came, under_load
from tests.faults.test_growth import Registry, brokers_doubled, counts, registry
from tests.faults.test_registry import RATE
from tests.waiting import PATIENT_S, until

__all__ = ["registry"]

ROOMS = [f"room-{number}" for number in range(16)]
CHAT = ("--cluster", "chat")
PUBLISHER = 2
"""The one of the second cluster."""


def beside(instance: Instance, url: str, path: Path) -> Hosts:
    """The folder of nodes that use an instance's registry and secrets."""
    path.mkdir()
    hosts, folder = Hosts(path, url), instance.folder
    hosts.write(
        cluster={
            "secret_file": str(folder.cluster_secret),
            "names_file": str(folder.name_key),
            "token_file": str(folder.token),
            "signing_key_file": str(folder.signing_key),
        },
        instance={"dir": str(folder.path)},
    )
    return hosts


@contextlib.asynccontextmanager
async def talking(hosts: Hosts, instance: Instance, ledger: Ledger) -> AsyncIterator[None]:
    """The second cluster's publisher, into the same account; everything has arrived when the block ends."""
    own = replace(ledger, stop=asyncio.Event())
    place = muster.Address((), hosts.address().proxies, instance.folder.token.read_bytes().strip())
    async with muster.connect(place, timeout=PATIENT_S) as client, asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(own.publish_steadily(client, PUBLISHER, 100))
        yield
        own.stop.set()
        await publishing
        await ledger.settle()


def newest(ledger: Ledger) -> int:
    """The last number that the second cluster's publisher has used."""
    numbers = (number for keys in ledger.sent.values() for publisher, number in keys if publisher == PUBLISHER)
    return max(numbers, default=0)


async def heard(ledger: Ledger) -> None:
    """Wait until every member has a message of the second cluster's publisher from after this call."""
    mark = newest(ledger)

    def has(items: list[tuple[muster.Stream, int, tuple[int, int]]]) -> bool:
        return any(publisher == PUBLISHER and number > mark for _, _, (publisher, number) in items[-200:])

    await until(lambda: all(has(seat.items) for seat in ledger.seats), PATIENT_S)


async def test_a_second_cluster_comes_doubles_and_dies_beside_the_first_under_load(
    make: Make, registry: Registry, tmp_path: Path, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"gateways": 2, "brokers": "2x1"}), Ledger(ROOMS, rate=RATE)
    with instance.running("--registry", registry.url):
        hosts = beside(instance, registry.url, tmp_path / "chat")
        mine = {instance.process(name).node for name in instance.names("broker")}
        with hosts.running():
            async with under_load(instance, ledger):
                pids = instance.pids()
                nodes = [hosts.start(f"chat-{role}", role, *CHAT) for role in ("broker", "proxy")]
                await hosts.serve(*nodes)
                async with talking(hosts, instance, ledger):
                    await heard(ledger)
                    out, second = await brokers_doubled(hosts, hosts.path / "said", "chat-broker-b", *CHAT)
                    nodes.append(second)
                    assert out == b"broker/chat has 2 partitions\n"
                    await heard(ledger)
                    code, shown, why = await hosts.asked("cluster", "show", "--json")
                    assert code == 0, why
                    found = {layer["layer"]: len(layer["nodes"]) for layer in json.loads(shown)["layers"]}
                    counted = [node.metrics() for node in nodes if node.role == "proxy"]
                    links = [each["links_up"] - each.get("links_down", 0) for each in counted]
                numbered = {node.name: node.metrics()["messages_published"] for node in nodes if node.role == "broker"}
                own = sum(publisher == PUBLISHER for keys in ledger.sent.values() for publisher, _ in keys)
                again = sum(numbered.values()) - own
                await until(lambda: ledger.repeats() >= again, PATIENT_S)  # the second numbers may be on their way
                assert counts(instance) == {"broker/main": 2, "broker/chat": 2, "router": 1}
                assert set(ledger.gaps()) <= {"ended"}, "nobody lacks anything"
                for node in nodes:
                    node.kill()
                began = time.monotonic()
                async with asyncio.timeout(PATIENT_S), muster.connect(instance.folder.path) as client:
                    for number in range(8):
                        async with client.join(f"new-{number}"):
                            pass
                joined_s = time.monotonic() - began
                await came(ledger)
            assert instance.pids() == pids, "nobody had to start again"
            others = [gap for seat in ledger.seats for gap in seat.gaps if gap[3] != "ended"]
    figures(numbered=numbered, again=again, joined_s=round(joined_s, 2), gaps=dict(ledger.gaps()))
    ledger.check()
    assert found == {"broker/main": 2, "broker/chat": 2, "router": 1, "gateway": 2, "proxy": 1, "proxy/chat": 1}
    assert links == [2.0], "a proxy keeps to the brokers of its cluster"
    assert all(numbered.values()), "each broker of the second cluster numbered some"
    assert again >= 0, "the second cluster's brokers numbered all that it published, some of it again after a move"
    owners = {True: set[int](), False: set[int]()}
    for where in ledger.acknowledged.values():
        for (publisher, _), place in where.items():
            if place is not None:
                owners[publisher == PUBLISHER].add(place[0].node)
    assert owners[False] <= mine
    assert not owners[True] & mine, "each cluster numbers its own publishers' messages"
    assert not {gap[0].node for gap in others} & mine, "nothing of the first cluster's was lost"


async def test_nodes_beside_an_instance_take_no_number_that_it_may_need(make: Make, tmp_path: Path) -> None:
    instance = make()
    with instance.running("--registry", "embedded"):
        hosts = beside(instance, "embedded", tmp_path / "chat")
        with hosts.running():
            nodes = [hosts.start(f"chat-{role}", role, *CHAT) for role in ("broker", "proxy")]
            await hosts.serve(*nodes)
            for words in (
                ("replica", "add", "router", "0"),
                ("replica", "add", "broker", "0"),
                ("grow", "broker", "--to", "2", "--grace", "0.1"),
            ):
                done = await asyncio.to_thread(instance.ran, "cluster", *words, seconds=PATIENT_S)
                assert done.returncode == 0, (words, done.stderr)
            assert counts(instance) == {"broker/main": 2, "broker/chat": 1, "router": 1}
            assert len(instance.names("broker")) == 4
            assert len(instance.names("router")) == 2
            assert all(node.serves() for node in nodes)


async def test_nodes_beside_an_instance_are_shown_with_it_without_being_asked_for(make: Make, tmp_path: Path) -> None:
    instance = make()
    with instance.running("--registry", "embedded"):
        hosts = beside(instance, "embedded", tmp_path / "chat")
        with hosts.running():
            nodes = [hosts.start(f"chat-{role}", role, *CHAT) for role in ("broker", "proxy")]
            await hosts.serve(*nodes)
            code, said, errors = await hosts.asked("cluster", "show", "--json")
            assert (code, errors) == (0, "")
            found = {each["layer"]: [node["name"] for node in each["nodes"]] for each in json.loads(said)["layers"]}
            assert (found["broker/chat"], found["proxy/chat"]) == (["chat-broker"], ["chat-proxy"])
            assert (found["broker/main"], found["proxy"]) == (["broker"], ["proxy"])
            code, said, errors = await hosts.asked("links", "--json")
            assert (code, errors.count("\n")) == (0, 1)
            assert errors.startswith("muster: paths are not probed")
            ways = {(line["sender"], line["receiver"]) for line in json.loads(said)["links"] if line["up"]}
            assert {("chat-proxy", "chat-broker"), ("chat-broker", "gateway"), ("proxy", "broker")} <= ways
            nodes[0].kill()

            async def lacks() -> list[int]:
                _, said, _ = await hosts.asked("cluster", "show", "--json")
                layers = {each["layer"]: each["uncovered"] for each in json.loads(said)["layers"]}
                missing: list[int] = layers["broker/chat"]
                return missing

            async with asyncio.timeout(PATIENT_S):
                while not await lacks():
                    pass


async def test_a_trace_shows_the_way_through_each_cluster_or_the_one_that_is_named(make: Make, tmp_path: Path) -> None:
    instance = make()
    with instance.running("--registry", "embedded"):
        hosts = beside(instance, "embedded", tmp_path / "chat")
        with hosts.running():
            await hosts.serve(*(hosts.start(f"chat-{role}", role, *CHAT) for role in ("broker", "proxy")))

            async def traced(*words: str) -> dict[str, Any]:
                code, said, errors = await hosts.asked("trace", "room-1", "--wait", "60", *words)
                assert code == 0, errors
                answer: dict[str, Any] = json.loads(said)
                return answer

            async with muster.connect(instance.folder.path) as client, client.join("room-1"):
                every = await traced("--json", "--message", "x")
                chat = await traced("--json", *CHAT)
                _, shown, _ = await hosts.asked("trace", "room-1")
                wrong = await hosts.asked("trace", "room-1", "--cluster", "chit")
    (other,) = every["others"]
    assert [(way["cluster"], way["owner"]) for way in (every, other)] == [("main", "broker"), ("chat", "chat-broker")]
    for way, proxy in ((every, "proxy"), (other, "chat-proxy")):
        assert [timed["node"] for timed in (*way["asked"], way["acknowledged"]) if timed["ms"]] == [proxy, proxy]
        assert [timed["node"] for timed in way["delivered"] if timed["ms"]] == ["gateway"]
        assert (proxy, way["owner"]) in {(hop["sender"], hop["receiver"]) for hop in way["hops"]}
    assert (chat["cluster"], chat["owner"], chat["others"], chat["members"]) == ("chat", "chat-broker", [], 1)
    assert "main: numbered by broker of partition 0\nchat: numbered by chat-broker of partition 0\n" in shown
    assert wrong == (1, "", "muster: there is no cluster chit, only chat, main\n")

"""Several nodes of each role: members at all of them get the same, and clients find another node when theirs stops."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, ROLES, Instance, configuration, reach
from tests.faults.ledger import Ledger, content
from tests.faults.test_demo import run
from tests.faults.test_registry import everybody_runs
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until, until_asked

MANY = {"gateways": 2, "brokers": "2x2", "routers": "2x2", "proxies": 2}
ROOMS = [f"room-{number}" for number in range(24)]
"""So many that two partitions both surely have some."""
MEMBERS = 6
RATE = 600.0
AHEAD = 25
"""Messages of a room that a member may be behind, a second of them: a live room skips those older than 5 s."""
ELSEWHERE_S_MAX = 2.5
"""1.5 s, and what a busy machine adds."""

KIND_DATA, KIND_RESET = 0x14, 0x15
"""Version and kind of a datagram."""


@pytest.mark.parametrize(("registry", "loss"), [("none", 0.0), ("embedded", 0.03)])
async def test_members_at_every_gateway_get_what_is_published_through_every_proxy_once_and_in_order(
    make: Make, figures: Callable[..., None], registry: str, loss: float
) -> None:
    instance, ledger = make(up=MANY, faults={"loss": loss}), Ledger(ROOMS, rate=RATE / 2)
    with instance.running("--registry", registry):
        record, path = instance.record(), instance.folder.path
        async with (
            ledger.members(path, MEMBERS, [reach(end) for end in record.gateways]),
            muster.connect(path, gateways=[], proxies=[reach(record.proxies[0])]) as one,
            muster.connect(path, gateways=[], proxies=[reach(record.proxies[1])]) as other,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = [
                tasks.create_task(ledger.publish_steadily(client, number, 100, AHEAD))
                for number, client in enumerate((one, other), 1)
            ]
            await until(lambda: all(len(seat.items) > 40 for seat in ledger.seats), PATIENT_S)
            ledger.stop.set()
            await asyncio.gather(*publishing)
            await ledger.settle()
            numbered = {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}
            sent = sum(map(len, ledger.sent.values()))
            again = sum(numbered.values()) - sent  # by the other broker of the partition, where an owner was bypassed
            await until(lambda: ledger.repeats() >= again)
            passed = {name: instance.metrics(name)["messages_forwarded"] for name in instance.names("proxy")}
            at_each = {len(ROOMS) * MEMBERS / 2}
            gateways = instance.names("gateway")
            await until(lambda: {instance.metrics(name)["members"] for name in gateways} == at_each, PATIENT_S)
            await until(
                instance.interest_agrees, PATIENT_S
            )  # a link that was lost is there again, and told anew (ROOM-16)
    figures(loss=loss, numbered=numbered, again=again, passed=passed, gaps=dict(ledger.gaps()))
    ledger.check()
    assert sum(len(seat.items) for seat in ledger.seats) == sent * MEMBERS
    assert set(ledger.gaps()) <= {"ended"}, "nobody lacks anything"
    assert again >= 0
    for number, name in enumerate(passed, 1):
        mine = sum(publisher == number for keys in ledger.sent.values() for publisher, _ in keys)
        assert passed[name] >= mine > 0


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One for all tests that leave every node as it was."""
    sections: dict[str, dict[str, Any]] = {"database": {"url": "none"}, "probes": {"every_ms": 0}}
    instance = Instance(tmp_path_factory.mktemp("standing"), configuration(up=APART | MANY, **sections))
    with instance.running():
        assert everybody_runs(instance), "once it is ready each node knows that all serve"
        yield instance


def test_once_an_instance_is_ready_each_node_knows_that_all_serve(standing: Instance) -> None:
    assert everybody_runs(standing)


async def test_each_room_is_owned_by_a_broker_of_its_partition(make: Make) -> None:
    instance = make(up=MANY)
    rooms = [f"room-{number}" for number in range(80)]
    with instance.running():
        async with muster.connect(instance.folder.path, gateways=[]) as client:
            for room in rooms:
                await client.publish(room, b"")
        owned = {name: list(instance.pages(name, "rooms")) for name in instance.names("broker")}
        partitions = {name: instance.process(name).partition for name in owned}
    assert sum(map(len, owned.values())) == len(rooms)
    assert all(owned.values()), "every broker has rooms"
    for name, known in owned.items():
        assert {int(room["id"], 16) % 2 for room in known} == {partitions[name]}


@pytest.mark.parametrize("role", ROLES)
async def test_a_node_that_stands_still_is_gone_round(
    standing: Instance, figures: Callable[..., None], role: str
) -> None:
    ledger, path = Ledger(ROOMS, rate=RATE), standing.folder.path
    work = {"broker": "messages_published", "router": "links_up"}.get(role, "sessions")

    def done() -> dict[str, float]:
        return {name: standing.metrics(name)[work] for name in standing.names(role)}

    await until_asked(lambda: everybody_runs(standing), PATIENT_S)  # one of them stood still in the last test
    before = done() if role == "broker" else dict.fromkeys(standing.names(role), 0.0)
    async with (
        ledger.members(path, MEMBERS),
        muster.connect(path, gateways=[], timeout=PATIENT_S) as client,
        muster.connect(path) as other,
        asyncio.TaskGroup() as tasks,
    ):
        publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
        await asyncio.sleep(1.5)
        busy = {name: count - before[name] for name, count in done().items()}
        busiest = max(busy, key=lambda name: busy[name])
        async with standing.stopped(busiest):
            stopped, mark, slow = time.monotonic(), ledger.mark(), Slowness(standing.pids().values())
            for room in [other.join(f"new-{number}") for number in range(8 if role == "router" else 0)]:
                await room
            joined = time.monotonic() - stopped
            await until(lambda: ledger.reached(mark))
            took = max(*ledger.first_after(mark), stopped + joined) - stopped
            told, took_s_max = ledger.gaps(), slow.limit(ELSEWHERE_S_MAX)
        await asyncio.sleep(1.0)
        ledger.stop.set()
        await publishing
        await ledger.settle()
    figures(role=role, busy=busy, elsewhere_s=round(took, 3), joined_s=round(joined, 3), gaps=dict(told))
    ledger.check()
    assert took < took_s_max


@pytest.mark.parametrize("words", [(), ("--loss", "1%")])
def test_the_demo_over_several_nodes_loses_nothing(make: Make, words: tuple[str, ...]) -> None:
    instance = make()
    nodes = ("--gateways", "2", "--brokers", "1x2", "--proxies", "2")
    done = run(instance, "--demo", *nodes, "--for", "1", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "every member got every message" in done.stdout
    assert [line.split()[0] for line in done.stderr.splitlines() if line.endswith("/metrics")] == [
        "router",
        *("broker", "broker-1"),
        *("gateway", "gateway-1"),
        *("proxy", "proxy-1"),
        "console",
    ]
    document = json.loads(run(instance, "--demo", *nodes, "--for", "1", "--json", *words).stdout)
    assert document["whole"] is True
    assert document["delivered"] == document["published"] * document["members"] > 0


def test_a_short_run_of_many_nodes_ends_with_0_and_leaves_no_process(make: Make) -> None:
    instance = make(up=MANY)
    with instance.running("--for", "2") as up:
        pids = instance.pids()
        assert len(pids) == 12
        up.wait(PATIENT_S)
    assert up.returncode == 0, instance.tail()
    assert not [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]


async def test_the_cluster_shows_what_its_nodes_carry(make: Make) -> None:
    instance, ledger = make(up=MANY), Ledger(ROOMS, rate=RATE)
    with instance.running():
        ends = [reach(end) for end in instance.record().gateways]
        async with (
            ledger.members(instance.folder.path, 4, ends),
            muster.connect(instance.folder.path, gateways=[]) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            async with asyncio.timeout(PATIENT_S):
                while not carries_all(layers := await shown(instance)):  # a second in which a busy machine did little
                    pass
            ledger.stop.set()
            await publishing
    assert list(layers) == ["broker/main", "router", "gateway", "proxy"]
    brokers, gateways = layers["broker/main"]["nodes"], layers["gateway"]["nodes"]
    assert [(node["partition"], node["state"]) for node in brokers] == [(at, "ready") for at in (0, 0, 1, 1)]
    assert sum(node["rooms"] for node in brokers) == len(ROOMS)
    assert [node["members"] for node in gateways] == [2 * len(ROOMS)] * 2
    assert all(node["memberships"] for node in brokers)
    routers = layers["router"]["nodes"]
    assert [node["partition"] for node in routers] == [0, 0, 1, 1]
    assert sum(node["memberships"] for node in routers) == 2 * 2 * len(ROOMS), "each replica knows its partition's"


async def shown(instance: Instance) -> dict[str, Any]:
    """The cluster's load, by layer."""
    document = await asyncio.to_thread(told, instance, "cluster", "show", "--json")
    return {each["layer"]: each for each in document["layers"]}


def carries_all(layers: dict[str, Any]) -> bool:
    """Whether each layer that carries the test's load shows it."""
    rates: dict[str, list[float]] = {
        name: [node["per_s"] or 0.0 for node in layer["nodes"]] for name, layer in layers.items()
    }
    return sum(rates["broker/main"]) > RATE / 2 < sum(rates["proxy"]) and min(rates["gateway"]) > RATE


async def test_rooms_are_counted_over_all_gateways(make: Make) -> None:
    instance, ledger = make(up=MANY), Ledger(ROOMS)
    with instance.running():
        ends = [reach(end) for end in instance.record().gateways]
        async with ledger.members(instance.folder.path, 3, [ends[0], ends[1], ends[1]]):
            alone = await asyncio.to_thread(told, instance, "rooms", "ls", "--json")
            async with muster.connect(instance.folder.path, gateways=[]) as client:
                streams = {room: await stream(client, room) for room in ROOMS}
            await until(lambda: all(seat.items for seat in ledger.seats))
            rooms = await asyncio.to_thread(told, instance, "rooms", "ls", "--json")
        names = {process.node: process.name for process in instance.record().processes}
    assert [room["name"] for room in rooms] == sorted(f"default:{name}" for name in ROOMS)
    assert [room["members"] for room in alone] == [room["members"] for room in rooms] == [3] * len(ROOMS)
    for room in rooms:
        assert room["gateways"] == ["gateway", "gateway-1"]
        assert room["owner"] == names[streams[room["name"].removeprefix("default:")].node]


async def stream(client: muster.Client, room: str) -> muster.Stream:
    position = await client.publish(room, content(1, 1, 100))
    assert position is not None
    return position.stream


def told(instance: Instance, *words: str) -> Any:
    return json.loads(instance.ran(*words).stdout)


class Relay(asyncio.DatagramProtocol):
    """Stands between one client and its gateway, and sees what each sends."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server, self.client = server, ("", 0)
        self.sent: list[bytes] = []
        self.others: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        if source == self.server:
            self.transport.sendto(data, self.client)
        elif data[1] == KIND_RESET:
            self.others.append(data)
        else:
            self.client = source
            self.sent.append(data)
            self.transport.sendto(data, self.server)


async def test_a_server_does_not_tell_what_resets_the_session_at_another(make: Make) -> None:
    instance = make(up={"gateways": 2})
    with instance.running():
        mine, *others = instance.record().gateways + instance.record().proxies
        loop = asyncio.get_running_loop()
        transport, relay = await loop.create_datagram_endpoint(
            lambda: Relay((mine.host, mine.port)), local_addr=("127.0.0.1", 0)
        )
        here: tuple[str, int] = transport.get_extra_info("sockname")
        with contextlib.closing(transport):
            async with (
                muster.connect(instance.folder.path, gateways=[(*here, mine.public_key)], proxies=[]) as client,
                client.join("room"),
            ):
                datagram = relay.sent[-1]
                assert datagram[1] == KIND_DATA
                for other in others:
                    transport.sendto(datagram, (other.host, other.port))
                await until(lambda: len(relay.others) == len(others))
                for reset in relay.others:
                    transport.sendto(reset, relay.client)
                async with client.join("another"):  # what it heard before the answer, it has taken
                    assert client.stats()["sessions_lost"] == 0
                assert client.stats()["datagrams_dropped"] >= len(others)

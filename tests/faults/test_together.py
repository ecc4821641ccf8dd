"""Nodes that share a process: they do all that they do apart, and what one sends another goes through memory."""

import asyncio
import json
from collections.abc import Callable

import pytest

import muster
from muster_server.control.host.addresses import address_text
from muster_server.control.host.ports import Ports
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts, Node
from tests.faults.instance import ROLES, Instance
from tests.faults.ledger import Ledger
from tests.faults.load import came, loaded, nothing_lost
from tests.faults.test_nodes import MANY
from tests.faults.test_serve import states
from tests.strikes import standing_still
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(12)]
MEMBERS = 4
RATE = 600.0


def pids(instance: Instance, *roles: str) -> set[int]:
    """The processes of these roles' nodes."""
    return {instance.process(name).pid for name in instance.names(*roles)}


@pytest.mark.parametrize(
    ("processes", "shared"),
    [("together", [ROLES]), ("gateway+proxy,broker+router", [("gateway", "proxy"), ("broker", "router")])],
)
async def test_all_that_is_published_is_read_once_and_in_order(
    make: Make, figures: Callable[..., None], processes: str, shared: list[tuple[str, ...]]
) -> None:
    instance = make(up={**MANY, "processes": processes}, faults={"loss": 0.02})
    ledger = Ledger(ROOMS, rate=RATE)
    with instance.running():
        groups = [pids(instance, *roles) for roles in shared]
        assert [len(group) for group in groups] == [1] * len(shared)
        assert len(set.union(*groups)) == len(shared)
        async with (
            ledger.members(instance.folder.path, MEMBERS),
            muster.connect(instance.folder.path, gateways=[]) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            await until(lambda: all(len(seat.items) > 40 for seat in ledger.seats), PATIENT_S)
            ledger.stop.set()
            await publishing
            await ledger.settle()
            metrics = {name: instance.metrics(name) for name in instance.names(*ROLES)}
            await until(instance.interest_agrees, PATIENT_S)
    near = {name: each["memory_sent"] for name, each in metrics.items()}
    figures(near=near, gaps=dict(ledger.gaps()))
    ledger.check()
    assert not ledger.gaps()
    apart = (
        {"gateway", "proxy"} if len(shared) > 1 else set[str]()
    )  # gateways and proxies have nothing to send each other
    assert {name for name, sent in near.items() if not sent} == {name for name in near if name.split("-")[0] in apart}
    assert not any(each["memory_lost_full"] for each in metrics.values())


async def test_a_process_that_dies_takes_its_nodes_along_and_all_are_back(make: Make) -> None:
    instance, ledger = make(up={"processes": "together"}), Ledger(ROOMS, rate=RATE)
    with instance.running():
        dead = instance.process("broker").pid
        async with (
            ledger.members(instance.folder.path, 2),
            muster.connect(instance.folder.path, gateways=[]) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            await until(lambda: all(len(seat.items) > 20 for seat in ledger.seats), PATIENT_S)
            instance.kill("broker")
            for name in ROLES:
                await instance.back(name, dead)
            await came(ledger)
            ledger.stop.set()
            await publishing
            await ledger.settle()
        assert len(pids(instance, *ROLES)) == 1
    ledger.check()


async def test_one_node_comes_and_goes_and_the_others_of_its_process_stay(make: Make) -> None:
    instance = make(up={"processes": "together"})
    with instance.running():
        (before,) = pids(instance, *ROLES)
        assert instance.ran("cluster", "add", "gateway").returncode == 0
        assert pids(instance, *ROLES) == {before}
        assert len(instance.names("gateway")) == 2
        assert instance.ran("cluster", "remove", "gateway-1").returncode == 0
        assert instance.names("gateway") == ["gateway"]
        async with muster.connect(instance.folder.path) as client, client.join("r") as room:
            await client.publish("r", b"x")
            item = await anext(room)
            assert isinstance(item, muster.Message)
        assert pids(instance, *ROLES) == {before}


EDGE, CORE = ("gateway", "proxy"), ("broker", "router")


def address(hosts: Hosts, edges: list[Node]) -> muster.Address:
    """The servers of these processes, for clients."""
    ends: dict[str, list[muster.instance.Endpoint]] = {role: [] for role in EDGE}
    for node in edges:
        for told in node.lines("serving clients"):
            ends[told["role"]].append((*told["address"], told["public_key"]))
    return muster.Address(tuple(ends["gateway"]), tuple(ends["proxy"]), (hosts.path / "token").read_bytes())


async def test_edges_and_cores_on_hosts_restart_in_turn_and_lose_no_message(
    hosts: Hosts, figures: Callable[..., None]
) -> None:
    ledger = Ledger(ROOMS, rate=RATE)
    roles = {"edge-a": EDGE, "edge-b": EDGE, "core-a": CORE, "core-b": CORE}
    with Ports() as ports:
        fixed = {  # clients know gateways and proxies by their addresses
            name: {f"MUSTER_{role.upper()}__BIND": address_text(*ports.udp(role, "127.0.0.1", 0)) for role in EDGE}
            for name in ("edge-a", "edge-b")
        }

    def begin(name: str) -> Node:
        return hosts.start(name, ",".join(roles[name]), **fixed.get(name, {}))

    def serves(node: Node) -> bool:
        assert node.process.poll() is None, node.said()
        return {line["role"] for line in node.lines("ready")} == set(roles[node.name])

    def everybody_runs() -> bool:
        return all(sorted(states(node).values()) == ["running"] * 8 for node in nodes.values())

    def broker(name: str) -> dict[str, float]:
        return nodes[name].metrics("broker")

    async def stands_still(name: str, for_it: str) -> None:
        """`for_it` has its rooms until it goes on, and still has them when this returns."""
        with standing_still(nodes[name].process.pid):
            await until(lambda: broker(for_it)["rooms_made"] == len(ROOMS), PATIENT_S)
            await came(ledger)
        before = broker(name)["messages_published"]
        await until(lambda: broker(name)["messages_published"] > before, PATIENT_S)

    nodes = {name: begin(name) for name in roles}
    await until(lambda: all(map(serves, nodes.values())), PATIENT_S)

    async def status() -> list[dict[str, object]]:
        code, said, errors = await hosts.asked("status", "--json", "--registry", "embedded")
        assert code == 0, errors
        told: list[dict[str, object]] = json.loads(said)["nodes"]
        return told

    told = await status()
    assert {each["name"] for each in told} == {f"{name}-{role}" for name in roles for role in roles[name]}
    for name, node in nodes.items():
        assert {each["pid"] for each in told if str(each["name"]).startswith(name)} == {node.process.pid}
    async with loaded(address(hosts, [nodes["edge-a"], nodes["edge-b"]]), ledger):
        for name in roles:
            if name == "core-a":
                await stands_still("core-b", for_it=name)  # Found: what it had of those rooms was told as lost
            assert await nodes[name].end() == 0
            assert not nodes[name].lines("not drained in time")
            nodes[name] = begin(name)
            await until(lambda node=nodes[name]: serves(node), PATIENT_S)  # type: ignore[misc]
            await until(everybody_runs, PATIENT_S)
            await came(ledger)
    after = {each["name"]: each for each in await status()}
    assert {each["name"]: each["node"] for each in told} == {name: each["node"] for name, each in after.items()}
    figures(gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


async def test_roles_that_share_no_process_are_named(hosts: Hosts) -> None:
    for roles, wrong in {
        "gateway,nobody": "invalid role 'nobody' (expected one of router, broker, gateway, proxy",
        "gateway,gateway": "gateway is named twice; run a second node of a role in a process of its own",
        "gateway,prober": "a prober needs a process of its own; these roles may share one: router, broker, gateway, proxy",
    }.items():
        code, said = await hosts.said(roles)
        assert code == 2
        assert wrong in said
    hosts.write(serve=hosts.sections["serve"] | {"certificate_file": "/etc/muster/one.json"})
    code, said = await hosts.said("gateway,proxy")
    assert code == 78
    assert "serve.certificate_file: certifies one server only; for gateway and proxy" in said

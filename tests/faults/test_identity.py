"""Nodes that prove their identity on links: how it is introduced, and how a stolen gateway is shut out."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, cast

import muster
from muster_server.control.cluster.instance import make_key
from muster_server.plane.keys import public_key
from tests.faults.hosts import Hosts, Node
from tests.faults.ledger import Ledger
from tests.faults.load import came, loaded, nothing_lost
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(24)]
RATE = 300.0
REFUSED = "handshake refused: the peer proved no key listed in nodes_file"
STAYS = "not reloaded, the old configuration stays"
SILENT = "a node refused the handshake of this node: it has another cluster secret, or does not list this node's key"


def links(*nodes: Node) -> list[dict[str, Any]]:
    return [link for node in nodes for link in node.get("/api/v1/status")[1]["links"]]


def linked(node: Node) -> set[int]:
    return {link["node"] for link in links(node)}


def number(node: Node) -> int:
    return int(node.get("/api/v1/status")[1]["node"])


def line(hosts: Hosts, node: Node) -> str:
    """Of the list, with a key that is made for it."""
    key = hosts.path / "nodes" / node.name / "node.key"
    assert not key.exists(), "nobody had asked for one"
    make_key(key)
    return f"{number(node)} {node.role} {public_key(str(key))} {node.name}\n"


async def longer(node: Node, event: str, before: int) -> None:
    """Wait until its log has more than this many lines of an event."""
    await until(lambda: len(node.lines(event)) > before, PATIENT_S)


async def refuses(node: Node) -> None:
    """Make it read a configuration that it must refuse."""
    before = len(node.lines(STAYS))
    node.process.send_signal(signal.SIGHUP)
    await longer(node, STAYS, before)


async def all_proved(nodes: list[Node], proved: bool, count: int) -> None:
    await until(lambda: [link["identity"] for link in links(*nodes)] == [proved] * count, PATIENT_S)


async def told(nodes: list[Node], why: str) -> None:
    """Wait until each of these logs, from here on, why it refused somebody."""
    known = [len(node.lines(REFUSED)) for node in nodes]

    def all_say() -> bool:
        pairs = zip(nodes, known, strict=True)
        return all(why in {each["detail"] for each in node.lines(REFUSED)[before:]} for node, before in pairs)

    await until(all_say, PATIENT_S)


async def take(*nodes: Node) -> None:
    """Make them read the configuration again, one after the other."""
    for node in nodes:
        before = len(node.lines("reloaded"))
        node.process.send_signal(signal.SIGHUP)
        await longer(node, "reloaded", before)
        assert node.lines("reloaded")[-1]["in_force"]


async def test_identities_come_in_under_load_and_a_stolen_gateway_is_shut_out_alone(
    hosts: Hosts, figures: Callable[..., None]
) -> None:
    ledger, cluster = Ledger(ROOMS, rate=RATE), hosts.sections["cluster"]
    roles = ("router", "router", "broker", "broker", "gateway", "gateway", "proxy")
    kept = [hosts.start(f"{role}-{place}", role) for place, role in enumerate(roles)]
    held, listing = hosts.path / "held", hosts.path / "nodes.list"
    stolen = hosts.start("stolen", "gateway", MUSTER_CLUSTER__NODES_FILE=str(held), MUSTER_REGISTRY__CUT_OFF_MS="500")
    nodes = [*kept, stolen]
    await hosts.serve(*nodes)
    servers = kept[:4]
    await until(lambda: all(linked(node) >= {number(stolen)} for node in servers), PATIENT_S)
    hosts.write(cluster=cluster | {"identity": "accepted", "nodes_file": str(listing)})
    await refuses(kept[0])
    missing = hosts.path / "nodes" / kept[0].name / "node.key"
    made = f"{missing}: is missing; muster cluster node-key {missing} makes it"
    assert kept[0].lines(STAYS)[-1]["error"] == made
    lines = {node.name: line(hosts, node) for node in nodes}
    for file in (listing, held):
        file.write_text("# number role key name\n" + "".join(lines.values()))
    address = hosts.address()
    robbed = address.gateways[-1:]
    address = muster.Address(address.gateways[:-1], address.proxies, address.token)
    async with loaded(address, ledger):
        count = len(links(*nodes))
        assert not any(link["identity"] for link in links(*nodes))
        for step in ("accepted", "offered", "required"):
            hosts.write(cluster=cluster | {"identity": step, "nodes_file": str(listing)})
            await take(*nodes)
            await came(ledger)
            await all_proved(nodes, step != "accepted", count)
        ended = [each["detail"] for node in nodes for each in node.lines("link_down")]
        assert set(ended) == {"renewed"}
        assert len(ended) == count
        before = {node.name: len(node.lines("link_down")) for node in kept}

        async with (
            muster.connect(address) as friend,
            muster.connect(gateways=robbed, proxies=(), token=address.token) as thief,
            thief.join("theirs") as theirs,
        ):
            heard = aiter(theirs)
            await friend.publish("theirs", b"here")
            assert cast(muster.Message, await anext(heard)).data == b"here"
            began = asyncio.get_running_loop().time()
            listing.write_text("".join(lines[node.name] for node in kept))
            await take(*kept)
            await until(lambda: not links(stolen), PATIENT_S)
            out_s = asyncio.get_running_loop().time() - began
            await until(lambda: stolen.lines("cut off, sending clients to other servers"), PATIENT_S)
            await until(lambda: stolen.get("/api/v1/status")[1]["gauges"]["sessions"] == 0, PATIENT_S)
            await friend.publish("theirs", b"back")
            assert cast(muster.Message, await anext(heard)).data == b"back"  # at another gateway
        gone = number(stolen)
        for node in kept:
            fresh = node.lines("link_down")[before[node.name] :]
            assert [(each["peer"], each["detail"]) for each in fresh] == [(gone, "shut out")] * (node in servers)
            assert node.metrics()["links_shut_out"] == (node in servers)
        await until(lambda: len(stolen.lines(SILENT)) == 4, PATIENT_S)
        await until(lambda: all(node.lines(REFUSED) for node in servers), PATIENT_S)
        assert {(each["says"], each["detail"]) for node in servers for each in node.lines(REFUSED)} == {
            (gone, "not listed")
        }
        await came(ledger)

        # It starts again with all that it had: its key, the cluster's secret, the former list; then with less.
        for identity, why in (("required", "not listed"), ("off", "no identity")):
            await stolen.end()
            stolen = hosts.start(
                "stolen", "gateway", MUSTER_CLUSTER__NODES_FILE=str(held), MUSTER_CLUSTER__IDENTITY=identity
            )
            await told(servers, why)
            await longer(stolen, SILENT, 3)
            assert links(stolen) == []
            assert not stolen.serves()
        assert all(node.metrics()["link_dropped_identity"] > 0 for node in servers)
        assert not any(gone in linked(node) for node in kept)
        await came(ledger)
    figures(links=count, out_s=round(out_s, 3), gaps=dict(ledger.gaps()))
    assert not ledger.gaps()
    nothing_lost(ledger)


async def test_a_node_takes_its_number_from_the_list_and_without_a_line_there_says_which_one_it_needs(
    hosts: Hosts,
) -> None:
    listing, key = hosts.path / "nodes.list", hosts.path / "nodes" / "router" / "node.key"
    hosts.write(cluster=hosts.sections["cluster"] | {"identity": "required", "nodes_file": str(listing)})
    listing.write_text("")
    code, said = await hosts.said("router", "--name", "router")
    assert (code, said) == (
        78,
        f"muster: {listing}: this node is not listed; add the line: NUMBER router {public_key(str(key))}\n",
    )
    listing.write_text(f"40 gateway {public_key(str(key))}\n")
    code, said = await hosts.said("router", "--name", "router")
    assert code == 78
    assert "of this router is listed as that of a gateway" in said
    listing.write_text(f"40 router {public_key(str(key))}\n")
    node = hosts.start("router", "router")
    await until(lambda: node.lines("registered"), PATIENT_S)
    assert number(node) == 40

    for content, wrong in (
        ("", "this node is not listed"),
        (f"41 router {public_key(str(key))}", "this node has the number 40, but the file lists its key with 41"),
    ):
        listing.write_text(content)
        await refuses(node)
        assert wrong in node.lines(STAYS)[-1]["error"]
    key.chmod(0o600)
    key.write_text("5e" * 32)
    listing.write_text(f"40 router {public_key(str(key))}")
    await refuses(node)
    assert node.lines(STAYS)[-1]["error"] == "cluster.node_key_file: the key has changed, which needs a restart"
    assert await node.end() == 0


async def test_a_number_that_the_registry_has_given_to_another_name_is_said(hosts: Hosts) -> None:
    first = hosts.start("first", "router")
    await until(lambda: first.lines("registered"), PATIENT_S)
    listing, key = hosts.path / "nodes.list", hosts.path / "second.key"
    make_key(key)
    listing.write_text(f"{number(first)} router {public_key(str(key))}\n")
    code, said = await hosts.said(
        "router",
        "--name",
        "second",
        MUSTER_CLUSTER__IDENTITY="required",
        MUSTER_CLUSTER__NODES_FILE=str(listing),
        MUSTER_CLUSTER__NODE_KEY_FILE=str(key),
    )
    assert code == 1
    assert f"node {number(first)} is first" in said

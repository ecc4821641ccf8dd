"""`muster cluster show` from nodes' answers: their layers and partitions, their work per second, and the due growth."""

from typing import Any

import msgspec
import pytest

from muster_server.control.cli.cluster import Load, arranged, due, growing
from muster_server.control.errors import UserError
from muster_server.control.registry.places import Count, Growth
from muster_server.control.registry.steps import STANDS_S
from muster_server.control.terminal.readings import CPU, Reading, releases
from muster_server.plane.kinds import kind, kinds
from tests.control.nodes import processes
from tests.documents import ROOT, spans


def load(name: str, partition: int = 0, **what: Any) -> Load:
    return Load(name=name, node=1, partition=partition, state="ready", epoch=1, restarts=0, **what)


def test_layers_come_with_their_nodes_by_partition_and_rates_by_role() -> None:
    nodes = processes(gateways=2, brokers="2x2")
    before = {each.node: Reading(10.0, "ready", {kind(each.role).carried: 100.0, CPU: 1.0}) for each in nodes}
    said = {"muster_rooms": 3.0, "muster_interest": 4.0, "muster_members": 5.0}
    now = {each.node: Reading(12.0, "ready", {**said, kind(each.role).carried: 500.0, CPU: 1.5}) for each in nodes}
    layers = arranged(nodes, before, now)
    assert [(each.layer, each.partitions) for each in layers] == [
        ("broker/main", 2),
        ("router", 1),
        ("gateway", 1),
        ("proxy", 1),
    ]
    assert [(node.name, node.partition) for node in layers[0].nodes] == [
        ("broker", 0),
        ("broker-1", 0),
        ("broker-2", 1),
        ("broker-3", 1),
    ]
    for node in (node for each in layers for node in each.nodes):
        assert (node.per_s, node.cpu, node.state, node.epoch, node.restarts) == (200.0, 0.25, "ready", 7, 2)
        assert (node.rooms, node.memberships, node.members) == (3, 4, 5)
    assert not any(each.due for each in layers)


def test_a_node_that_does_not_answer_or_began_anew_has_no_rates() -> None:
    nodes = processes(gateways=2)
    before = {each.node: Reading(10.0, "ready", {CPU: 5.0}) for each in nodes}
    now = {each.node: Reading(11.0, "ready", {CPU: 0.1}) for each in nodes}
    now[3] = Reading(11.0, "no answer", {}, UserError("gone"))
    gateways = arranged(nodes, before, now)[2].nodes
    assert [(node.state, node.cpu, node.rooms) for node in gateways] == [
        ("no answer", None, None),
        ("ready", None, None),
    ]


def test_the_map_of_a_node_that_is_connected_says_who_is_registered() -> None:
    nodes = processes()
    states = {"1": "running", "2": "draining", "3": "running"}
    old = {"registry": {"session": "suspended", "nodes": {"4": "running"}}}
    new = {"registry": {"session": "connected", "nodes": states, "weights": {"3": 0}}}
    now = {each.node: Reading(1.0, "ready", {}, status=old if each.node == 1 else new) for each in nodes}
    now[2] = Reading(1.0, "no answer", {}, UserError("gone"))
    found = {node.node: node.registered for each in arranged(nodes, {}, now) for node in each.nodes}
    assert found == {1: "running", 2: "draining", 3: "running", 4: "absent"}
    weights = {node.node: node.weight for each in arranged(nodes, {}, now) for node in each.nodes}
    assert {node: weight for node, weight in weights.items() if weight is not msgspec.UNSET} == {3: 0}
    alone = {each.node: Reading(1.0, "ready", {}) for each in nodes}
    assert not any(node.registered for each in arranged(nodes, {}, alone) for node in each.nodes)


def test_a_growth_that_nobody_goes_on_with_is_said_to_stand_and_how_it_goes_on() -> None:
    growth = Growth(to=2, step="prepare", goal=4, coordinator="somebody", started=0.0)
    for step_s, said in (
        (STANDS_S - 1, ["grows: ", "for 599 s", "if it makes no progress: "]),
        (1_234.0, ["stands: ", "1,234 s"]),
    ):
        line = growing("broker/main", 1, growth, step_s)
        assert all(word in line for word in (*said, "muster cluster grow broker --resume"))
    assert line.endswith("or muster cluster grow broker --abort")
    switched = msgspec.structs.replace(growth, step="switched")
    assert growing("router", 1, switched, 1_234.0).endswith(
        "no command continues it: muster cluster grow router --resume"
    )


def test_a_growth_is_at_its_step_for_as_long_as_the_node_that_has_known_it_for_longest_says() -> None:
    nodes, count = processes(), msgspec.to_builtins(Count(1, 3, Growth(2, "prepare", 2, "somebody")))
    now = {
        each.node: Reading(
            1.0,
            "ready",
            {},
            status={
                "registry": {
                    "session": "connected",
                    "nodes": {},
                    "partitions": {"router": count},
                    "growth_step_s": {"router": float(each.node)},
                }
            },
        )
        for each in nodes
    }
    now[4] = Reading(1.0, "no answer", {}, UserError("gone"))
    found = {each.layer: each.step_s for each in arranged(nodes, {}, now)}
    assert (found["router"], found["broker/main"]) == (3.0, msgspec.UNSET)


@pytest.mark.parametrize(
    ("name", "partitions", "nodes", "lines"),
    [
        ("broker/main", 1, [load("broker", memberships=2 << 20, memberships_max=4 << 20, cpu=0.5)], []),
        (
            "broker/main",
            2,
            [
                load("broker", 0, memberships=3_000_000, memberships_max=16 << 20),
                load("broker-1", 1, memberships=3_000_000, memberships_max=4 << 20),
            ],
            ["broker/main: broker-1 has 3,000,000 of 4,194,304 memberships: double to 4 partitions"],
        ),
        (
            "router",
            256,
            [load("router", 0, memberships=4 << 20, memberships_max=4 << 20)],
            ["router: router has 4,194,304 of 4,194,304 memberships: no more partitions are possible"],
        ),
        (
            "broker/main",
            2,
            [load("broker", 0, cpu=0.2), load("broker-1", 1, cpu=0.7), load("broker-2", 1, cpu=0.9)],
            ["broker/main: broker-2 takes 90% of a core: another replica of partition 1"],
        ),
        ("gateway", 1, [load("gateway", cpu=0.95)], ["gateway: gateway takes 95% of a core: another gateway"]),
        ("proxy", 1, [load("proxy", cpu=None), load("proxy-1", cpu=0.1)], []),
    ],
)
def test_growth_is_due_before_a_bound_is_reached(
    name: str, partitions: int, nodes: list[Load], lines: list[str]
) -> None:
    assert due(name, partitions, nodes) == lines


def test_a_partition_without_a_replica_is_shown_and_a_first_one_is_due() -> None:
    nodes = processes()
    now = {each.node: Reading(1.0, "ready", {}) for each in nodes}
    chat, *others = arranged(nodes, {}, now, {"broker/main": [1], "broker/chat": [0], "router": []})[::-1][2:]
    found = {each.layer: (each.partitions, each.uncovered) for each in (chat, *others)}
    assert found == {"router": (1, []), "broker/chat": (1, [0]), "broker/main": (2, [1])}
    assert {each.layer: each.due for each in (chat, *others)} == {
        "router": [],
        "broker/chat": ["broker/chat: partition 0 has no running replica: add one"],
        "broker/main": ["broker/main: partition 1 has no running replica: add one"],
    }


def test_the_metrics_are_those_of_the_roles() -> None:
    known = spans((ROOT / "docs" / "metrics.md").read_text())
    assert {
        CPU,
        *(of.carried for of in kinds().values() if of.carried),
        "muster_rooms",
        "muster_interest",
        "muster_interest_max",
        "muster_members",
    } <= known


def test_the_nodes_of_each_release_are_named_while_there_are_two() -> None:
    now, next_ = {"version": "0.2.0", "protocol": [1, 1]}, {"version": "0.3.0", "protocol": [1, 2]}
    assert releases({"broker": now, "gateway": now}) == []
    assert releases({"broker": now, "proxy": next_, "gateway": next_, "router": {}, "old": {"version": "0.1.0"}}) == [
        "0.1.0, protocol 1: old",
        "0.2.0, protocol 1: broker",
        "0.3.0, protocol 1 to 2: gateway, proxy",
    ]

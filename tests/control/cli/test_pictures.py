"""Pictures of a cluster, of a room's way and of the fairness of a fleet, from what their commands know."""

from typing import Any

import msgspec

from muster_server.control.cli.cluster import Layer, Load
from muster_server.control.cli.cluster_picture import NODES_MAX
from muster_server.control.cli.cluster_picture import picture as cluster
from muster_server.control.registry.places import Growth
from muster_server.systems.fleet.cli.fairness_picture import BARS_MAX
from muster_server.systems.fleet.cli.fairness_picture import picture as fairness
from muster_server.systems.fleet.questions import Spread
from muster_server.systems.rooms.cli.trace import Hop, NodeAnswer, Trace, Way
from muster_server.systems.rooms.cli.trace_picture import picture as way
from tests.control.terminal.test_svg import texts


def load(name: str, **what: Any) -> Load:
    usual = Load(name=name, node=1, partition=0, state="ready", epoch=1, restarts=0, per_s=1_500.0, cpu=0.25)
    return msgspec.structs.replace(usual, **what)


def test_a_cluster_shows_its_nodes_its_holes_and_its_growth() -> None:
    broker = Layer(
        layer="broker/main",
        partitions=2,
        uncovered=[1],
        nodes=[load("broker-1"), load("broker-2", state="no answer", cpu=None)],
        due=["another broker"],
        growth=Growth(4, "prepare", 4, "coordinator"),
        step_s=3.0,
    )
    gateways = Layer(layer="gateway", partitions=1, uncovered=[], nodes=[load(f"g-{n}") for n in range(200)], due=[])
    said = texts(cluster([broker, gateways]))
    for words in (
        "broker/main",
        "2 partitions",
        "broker-1 · 0",
        "1,500/s, 25% CPU",
        "no answer",
        "due: another broker",
    ):
        assert words in said
    assert "partition 1 has no running node" in said
    assert any(each.startswith("grows: broker/main") for each in said)
    assert sum(each.startswith("g-") for each in said) == NODES_MAX
    assert f"and {200 - NODES_MAX} more nodes" in said


def answer(proxy: str, ms: float | None) -> NodeAnswer:
    hops = [Hop(asked_by=proxy, node="broker", ms=0.5), Hop(asked_by="broker", node="gateway-1", ms=0.25)]
    return NodeAnswer(node=proxy, ms=ms, hops=hops if ms is not None else [])


def test_a_rooms_way_has_the_time_of_each_hop_and_names_a_node_that_does_not_answer() -> None:
    asked = [answer("proxy-1", 2.0), answer("proxy-2", None)]
    found: dict[str, Any] = {
        "cluster": "main",
        "owner": "broker",
        "partition": 1,
        "asked": asked,
        "acknowledged": None,
        "delivered": [],
        "hops": [],
    }
    main = Way(**found)
    trace = Trace(room="<b>", gateways=["gateway-1", "gateway-2"], members=3, others=[], **found)
    said = texts(way(trace, [main]))
    assert said[0] == "<b>, 3 members"
    for words in ("client", "proxy-1", "proxy-2", "broker · 1", "gateway-1", "2.0 ms", "0.5 ms", "0.2 ms", "no answer"):
        assert words in said
    two = texts(way(trace, [main, msgspec.structs.replace(main, cluster="other", owner=None, partition=None)]))
    assert {"main", "other", "no owner yet"} <= set(two)


def test_the_fairness_of_a_fleet_is_a_distribution_of_bounded_length() -> None:
    spread = Spread(1_000, 7, 12, {3: 400, 4: 600}, 0.9, 1.0, 0.1, 100.0, 10.0)
    said = texts(fairness(spread, "province=1"))
    assert said[0] == "1,000 clients of province=1, round 7"
    assert [each for each in said if each in {"3", "4", "400", "600"}] == ["3", "400", "4", "600"]
    wide = texts(fairness(msgspec.structs.replace(spread, picked=dict.fromkeys(range(1_000), 2)), ""))
    assert sum(" to " in each for each in wide) <= BARS_MAX
    assert texts(fairness(msgspec.structs.replace(spread, picked={}), ""))[0] == "1,000 clients, round 7"

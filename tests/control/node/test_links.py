"""`muster links` from nodes' answers: worst first, broken limits are marked, and the metrics of each link."""

from typing import Any

import pytest

from muster_server.control.config.options import Links as Limits
from muster_server.control.errors import UserError
from muster_server.control.node.links import Links, links
from muster_server.control.terminal.lines import seen
from muster_server.control.terminal.readings import NO_ANSWER, Reading
from muster_server.systems.probes.cli.links import Wanted, aged
from muster_server.systems.probes.cli.report import Probed, name_unknown
from tests.control.nodes import processes


def link(node: int, role: str = "broker", **changed: Any) -> dict[str, Any]:
    known = {"lasts_s": 60.0, "observed_s": 60.0, "availability": 1.0, "failures": 0}
    return {"node": node, "role": role, **known, "rtt_us": 400, "loss": 0.0, "in_flight": 0, **changed}


def lost(node: int, role: str = "broker", **changed: Any) -> dict[str, Any]:
    return {
        "node": node,
        "role": role,
        "lasts_s": 6.0,
        "observed_s": 60.0,
        "availability": 0.9,
        "failures": 1,
        **changed,
    }


def reading(links: list[dict[str, Any]], gone: list[dict[str, Any]] | None = None) -> Reading:
    return Reading(1.0, "ready", {}, status={"links": links, "links_lost": gone or []})


NODES = processes(gateways=2)
BY_NAME = {process.name: process.node for process in NODES}
SILENT = {process.node: Reading(1.0, NO_ANSWER, {}, UserError("gone")) for process in NODES}
BROKER, ROUTER, GATEWAY = BY_NAME["broker"], BY_NAME["router"], BY_NAME["gateway"]


def test_the_worst_link_comes_first_and_says_which_limit_it_does_not_keep() -> None:
    told = reading([link(BROKER), link(ROUTER, "router", rtt_us=150_000, loss=0.02)], [lost(GATEWAY, "gateway")])
    lines = seen(NODES, {**SILENT, BY_NAME["proxy"]: told}, Limits())
    assert [(line.sender, line.receiver, line.beyond) for line in lines] == [
        ("proxy", "gateway", ["down", "availability"]),
        ("proxy", "router", ["latency", "loss"]),
        ("proxy", "broker", []),
    ]


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (Wanted(), ["gateway", "router", "broker"]),
        (Wanted(worst=2), ["gateway", "router"]),
        (Wanted(role="router"), ["router"]),
        (Wanted(role="proxy"), ["gateway", "router", "broker"]),
        (Wanted(node="broker"), ["broker"]),
        (Wanted(node=str(BROKER)), ["broker"]),
        (Wanted(role="gateway", node="broker"), []),
    ],
)
def test_links_are_chosen_by_role_by_node_and_by_badness(wanted: Wanted, shown: list[str]) -> None:
    told = reading([link(BROKER), link(ROUTER, "router", rtt_us=150_000, loss=0.02)], [lost(GATEWAY, "gateway")])
    lines = seen(NODES, {**SILENT, BY_NAME["proxy"]: told}, Limits())
    assert [line.receiver for line in wanted.of(lines, NODES)] == shown


def test_a_node_that_is_not_there_is_told() -> None:
    with pytest.raises(UserError, match="--of: there is no node nobody; muster status lists all"):
        Wanted(node="nobody").of([], NODES)


def test_a_broker_that_is_left_out_is_told_with_the_reason() -> None:
    now = {**SILENT, BY_NAME["proxy"]: reading([link(BROKER, ejected="delay"), link(ROUTER, "router")])}
    lines = seen(NODES, now, Limits())
    assert {line.receiver: line.ejected for line in lines} == {"broker": "delay", "router": None}


def test_limits_are_those_of_the_configuration() -> None:
    now = {**SILENT, BROKER: reading([link(ROUTER, "router", rtt_us=3_000, loss=0.02, availability=0.8)])}
    assert seen(NODES, now, Limits(latency_ms=3, loss=0.02, availability=0.8))[0].beyond == []
    assert seen(NODES, now, Limits(latency_ms=2, loss=0.0, availability=0.9))[0].beyond == [
        "latency",
        "loss",
        "availability",
    ]


def test_a_link_that_never_was_is_down_and_one_to_a_node_that_left_is_none() -> None:
    never = lost(BROKER, lasts_s=None, observed_s=0.0, availability=0.0, failures=0)
    lines = seen(NODES, {**SILENT, GATEWAY: reading([], [never, lost(99)])}, Limits())
    assert [(line.receiver, line.up, line.lasts_s, line.availability) for line in lines] == [
        ("broker", False, None, 0.0)
    ]


def test_the_metrics_of_a_lost_link_go_with_the_node_that_left_the_map() -> None:
    told = {"links": [link(BROKER), link(98)], "links_lost": [lost(GATEWAY, "gateway"), lost(99, "gateway")]}
    for known, down in ((None, [GATEWAY, 99]), (frozenset({BROKER, GATEWAY}), [GATEWAY])):
        gauges = {name: value for name, _, value in Links(told, known).gauges()}
        found = [node for node in (GATEWAY, 99) if gauges.get(f'link_up{{peer="{node}",peer_role="gateway"}}') == 0]
        assert found == down, "whoever has no map goes by what it was told at its start"
        assert gauges['link_up{peer="98",peer_role="broker"}'] == 1, "a link that is there is told of"


def ages(node: int, count: int, p99_us: int | None) -> dict[str, Any]:
    buckets = [(0.001, count), (0.5, count), (None, count)]
    return {"node": node, "buckets": buckets, "sum_s": 0.25, "p50_us": p99_us, "p99_us": p99_us}


def test_real_messages_are_told_by_the_way_that_they_came_the_oldest_first() -> None:
    told = {"links": [], "links_lost": [], "ages": [ages(BROKER, 7, 900), ages(99, 3, 5)]}
    empty = {"links": [], "links_lost": [], "ages": [ages(BY_NAME["proxy"], 0, None)]}
    now = {
        **SILENT,
        GATEWAY: Reading(1.0, "ready", {}, status=told),
        BROKER: Reading(1.0, "ready", {}, status=empty),
    }
    lines = aged(NODES, now)
    assert [(line.sender, line.receiver, line.seen, line.p99_ms) for line in lines] == [
        ("broker", "gateway", 7, 0.9),
        ("proxy", "broker", 0, None),
    ]


def test_real_messages_are_a_histogram_by_peer() -> None:
    told = Links({"links": [], "links_lost": [], "ages": [ages(4, 7, 900)]}, name_of=lambda node: f"proxy-{node}")
    assert [(name, buckets, total) for name, _, buckets, total in told.histograms()] == [
        ('message_age_seconds{peer="4",peer_name="proxy-4"}', [("0.001", 7), ("0.5", 7), ("+Inf", 7)], 0.25)
    ]


def test_metrics_of_a_link_that_is_down_have_no_round_trip() -> None:
    told = Links({"links": [link(1, rtt_us=None)], "links_lost": [lost(2)]})
    peer, other = '{peer="1",peer_role="broker"}', '{peer="2",peer_role="broker"}'
    assert {name: value for name, _, value in told.gauges()} == {
        f"link_up{peer}": 1.0,
        f"link_availability_ratio{peer}": 1.0,
        f"link_rtt_seconds{peer}": 0.0,
        f"link_loss_ratio{peer}": 0.0,
        f"link_up{other}": 0.0,
        f"link_availability_ratio{other}": 0.9,
    }
    assert {name: value for name, _, value in told.counters()} == {
        f"link_failures{peer}": 0,
        f"link_failures{other}": 1,
    }


def test_a_prober_that_has_just_begun_is_said_and_fails_nobody_but_who_checks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = Probed((), paths=4, left_out=0)
    assert name_unknown(begun, check=False) == 0
    assert "no results yet for 4 paths" in capsys.readouterr().err
    assert name_unknown(begun, check=True) == 75
    assert name_unknown(None, check=True) == 0
    assert name_unknown(Probed((), paths=0, left_out=2), check=False) == 75


def test_a_role_without_links_has_none() -> None:
    assert list(links({"role": "prober"})) == []

"""`muster links` over real processes: loss in its direction, and a stopped node's links as down."""

import asyncio
import json
from typing import Any

from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S, until


async def run(instance: Instance, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """`muster links` with these words: its exit code, and what it says."""
    done = await asyncio.to_thread(instance.ran, "links", "--json", *words, seconds=PATIENT_S)
    assert done.returncode in {0, 1, 75}, done.stderr
    return done.returncode, json.loads(done.stdout)["links"]


def beyond(lines: list[dict[str, Any]], what: str) -> set[tuple[str, str]]:
    return {(line["sender"], line["receiver"]) for line in lines if what in line["beyond"]}


async def test_links_are_told_of_by_both_ends_and_loss_in_the_direction_that_has_it(make: Make) -> None:
    limits = {"latency_ms": 60_000, "loss": 0.1, "availability": 0.0, "failures": 2}
    instance = make(**{'faults__links__"proxy->broker"': {"loss": 0.4}, "links": limits})
    with instance.running():
        async with asyncio.timeout(PATIENT_S):
            code, lines = 0, list[dict[str, Any]]()
            while code != 1 or beyond(lines, "loss") != {("proxy", "broker")} or beyond(lines, "down"):
                code, lines = await run(instance, "--check")  # with so much loss it may also be down for a moment
        worst, *rest = lines
        assert (worst["sender"], worst["receiver"]) == ("proxy", "broker")
        assert 0.1 < worst["loss"] < 0.8
        assert ("broker", "proxy") in {(line["sender"], line["receiver"]) for line in rest}
        assert all(line["up"] and line["rtt_ms"] > 0 and line["beyond"] == [] for line in rest)


async def test_a_node_that_stands_still_is_down_for_all_others_until_it_goes_on(make: Make) -> None:
    limits = {"latency_ms": 60_000, "loss": 1.0, "availability": 0.0, "failures": 1}
    instance = make(up=APART | {"gateways": 2}, links=limits)
    with instance.running():
        await until(lambda: not any(_gone(instance, name) for name in instance.names()))
        assert (await run(instance, "--check"))[0] == 0
        async with instance.stopped("gateway-1"):
            node = instance.process("gateway-1").node
            await until(lambda: all(node in _gone(instance, name) for name in ("broker", "router")))
            code, lines = await run(instance)
            assert code == 75
            assert beyond(lines, "down") == {("broker", "gateway-1"), ("router", "gateway-1")}
            assert (await run(instance, "--check"))[0] == 1
        await until(lambda: not any(node in _gone(instance, name) for name in ("broker", "router", "gateway-1")))
        code, lines = await run(instance, "--check")
        assert code == 0
        again = [line for line in lines if line["receiver"] == "gateway-1"]
        assert all(line["up"] and line["failures"] >= 1 and line["availability"] < 1 for line in again)


def _gone(instance: Instance, name: str) -> set[int]:
    """Nodes that this one should have links with, but has not."""
    return {link["node"] for link in instance.status(name)["links_lost"]}

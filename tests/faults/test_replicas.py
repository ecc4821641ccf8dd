"""Replicas come and go while messages flow: nothing is lost, new ones own rooms, old ones' rooms go on."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.instance import Instance, configuration
from tests.faults.ledger import Ledger
from tests.faults.load import came, nothing_lost, under_load
from tests.faults.test_registry import RATE, everybody_runs, told
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(60)]
"""Each instance has owners of its own for them: so many that any broker surely has some."""


async def done(instance: Instance, *words: str) -> dict[str, Any]:
    """The output of a command that succeeds."""
    said = await asyncio.to_thread(told, instance, "cluster", *words, "--json")
    assert said.returncode == 0, said.stderr
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


async def changed(instance: Instance, ledger: Ledger) -> dict[str, float]:
    """Replicas come and go. Returns how many messages each broker numbered in the end."""
    before = instance.names()
    pids = instance.pids()
    async with under_load(instance, ledger):
        broker = await done(instance, "replica", "add", "broker", "1")
        router = await done(instance, "replica", "add", "router", "0")
        gateway = await done(instance, "add", "gateway")
        assert [each["name"] for each in (broker, router, gateway)] == ["broker-2", "router-1", "gateway-1"]
        await until(lambda: everybody_runs(instance), PATIENT_S)
        await until(lambda: instance.metrics("broker-2")["messages_published"], PATIENT_S)
        await came(ledger)
        assert {name: instance.pids()[name] for name in before} == pids, "nobody had to start again"

        assert (await done(instance, "replica", "remove", "broker", "1", "6"))["name"] == "broker-1"
        assert (await done(instance, "replica", "remove", "router", "0", "router"))["name"] == "router"
        assert (await done(instance, "remove", "gateway-1"))["name"] == "gateway-1"
        assert set(instance.names()) == {"broker", "broker-2", "router-1", "gateway", "proxy"}
        await until(lambda: everybody_runs(instance), PATIENT_S)
        mine = instance.metrics("broker-2")["messages_published"]
        await until(lambda: instance.metrics("broker-2")["messages_published"] > mine, PATIENT_S)
        await came(ledger)
        refused = await asyncio.to_thread(told, instance, "cluster", "replica", "remove", "broker", "1", "broker-2")
        assert refused.returncode == 75
        assert "muster: broker-2 is the last running node of partition 1 of broker" in refused.stderr
        await until(instance.interest_agrees, PATIENT_S)
        return {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}


async def test_replicas_come_and_go_in_a_plain_instance_and_lose_no_message(
    make: Make, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"brokers": "2x1"}), Ledger(ROOMS, rate=RATE)
    with instance.running():
        owned = await changed(instance, ledger)
    figures(owned=owned, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)
    with instance.running():
        assert set(instance.names()) == {"broker", "broker-1", "router", "gateway", "proxy"}, "as it is configured"


async def test_replicas_come_and_go_in_zookeeper_and_lose_no_message(
    make: Make, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"brokers": "2x1"}), Ledger(ROOMS, rate=RATE)
    with instance.running("--registry", f"{zookeeper.url}/here"):
        owned = await changed(instance, ledger)
    figures(owned=owned, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("replica", "add", "broker", "0"), 1, "muster up --registry embedded"),
        (("replica", "remove", "broker", "0", "2"), 1, "muster up --registry embedded"),
        (("replica", "remove", "broker", "0", "99"), 1, "the instance has no node 99"),
        (("replica", "remove", "router", "0", "2"), 1, "2 is not a replica of partition 0 of router, but broker"),
        (("remove", "broker"), 1, "broker is a replica; use muster cluster replica remove broker 0 broker"),
    ],
)
async def test_who_asks_for_what_cannot_be_is_told_in_a_line(
    standing: Instance, words: tuple[str, ...], code: int, text: str
) -> None:
    said = await asyncio.to_thread(told, standing, "cluster", *words)
    assert (said.returncode, len(said.stderr.splitlines())) == (code, 1)
    assert text in said.stderr


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An instance without a registry."""
    instance = Instance(tmp_path_factory.mktemp("standing"), configuration(probes={"every_ms": 0}))
    with instance.running("--registry", "none"):
        yield instance

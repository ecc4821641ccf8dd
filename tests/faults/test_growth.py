"""Partitions that double while messages flow: nothing is lost, each publisher's order is kept, the new brokers own rooms."""

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts
from tests.faults.instance import MUSTER, ROOT, Instance
from tests.faults.ledger import Ledger
from tests.faults.load import PATIENT_S, came, loaded, nothing_lost, under_load
from tests.faults.test_registry import RATE, everybody_runs, steal
from tests.faults.test_serve import states
from tests.waiting import until

ROOMS: Final = [f"room-{number}" for number in range(64)]
"""So many that none of four partitions is without one."""
MANY_ROOMS: Final = [f"room-{number}" for number in range(96)]
"""The same of eight."""
GROW_S: Final = 120.0
SEEDS: Final = int(os.environ.get("MUSTERTEST_SEEDS", "3"))
FRESH: Final = int(os.environ.get("MUSTERTEST_FRESH", "20"))
FULL_RATE: Final = 10_000.0
STEPS: Final = ("prepare", "switched", "of grace", "final")


@pytest.fixture(params=["embedded", "zookeeper"])
async def registry(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The address of each."""
    if request.param == "embedded":
        yield "embedded"
        return
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    await zookeeper.start()
    try:
        yield f"zk://{zookeeper.hosts}/here"
    finally:
        await zookeeper.stop()


async def grow(instance: Instance, *words: str) -> int:
    """Grow to the end. Gives the number of partitions."""
    with instance.command(
        "cluster", "grow", *words, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        out, err = await asyncio.to_thread(command.communicate, None, GROW_S)
        assert command.returncode == 0, err.decode()
    partitions: int = json.loads(out)["partitions"]
    return partitions


async def killed(instance: Instance, step: str, *words: str) -> bool:
    """kill -9 of the command when it says this; whether that came before its end."""
    with instance.command("cluster", "grow", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as command:
        assert command.stderr is not None
        stderr = command.stderr

        def read() -> bool:
            return any(step in line.decode() for line in stderr)

        if await asyncio.to_thread(read):
            command.kill()
        return await asyncio.to_thread(command.wait) == -signal.SIGKILL


def counts(instance: Instance) -> dict[str, int]:
    """The numbers of partitions that the proxy goes by."""
    found: dict[str, int] = json.loads(instance.get("proxy", "/api/v1/placement"))["partitions"]
    return found


async def owning(instance: Instance) -> dict[str, float]:
    """Wait until every broker numbers messages. Gives how many each did so far."""

    def published() -> dict[str, float]:
        return {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}

    before = published()
    await until(lambda: all(now > before[name] for name, now in published().items()), PATIENT_S)
    return published()


async def test_brokers_and_routers_double_under_load_and_lose_no_message(
    make: Make, registry: str, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"gateways": 2}, database={}), Ledger(ROOMS, rate=RATE)
    with instance.running("--registry", registry):
        pids = instance.pids()
        async with under_load(instance, ledger):
            assert await grow(instance, "broker", "--to", "2", "--grace", "1") == 2
            await came(ledger)
            assert await grow(instance, "router", "--to", "2", "--grace", "1") == 2
            await came(ledger)
            assert await grow(instance, "broker", "--to", "4", "--grace", "1") == 4
            await until(lambda: everybody_runs(instance), PATIENT_S)
            assert counts(instance) == {"broker/main": 4, "router": 2}
            assert set(instance.names()) == {*pids, "broker-1", "broker-2", "broker-3", "router-1"}
            owned = await owning(instance)
            await came(ledger)
            await until(instance.interest_agrees, PATIENT_S)
            assert pids.items() <= instance.pids().items(), "nobody had to start again"
            kept = [instance.status(name)["database"] for name in instance.names("router")]
            assert [each["url"] for each in kept] == [f"sqlite:///{instance.folder.memberships}"] * 2
            await until(lambda: instance.metrics("router-1")["database_written"], PATIENT_S)
        for killed_one in ("broker-3", "broker"):  # they come back into partitions that the configuration does not know
            await instance.back(killed_one, instance.kill(killed_one))
        await until(lambda: everybody_runs(instance), PATIENT_S)
    figures(owned=owned, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


async def test_a_doubling_whose_command_is_killed_at_every_step_is_gone_on_with_and_loses_no_message(
    make: Make, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"brokers": "1x2"}), Ledger(ROOMS, rate=RATE)
    with instance.running():
        async with under_load(instance, ledger):
            died = [
                await killed(instance, "prepare", "broker", "--to", "4"),
                await killed(instance, "prepare", "broker", "--resume"),
                await killed(instance, "to 2 partitions: switched", "broker", "--resume", "--grace", "1"),
                await killed(instance, "of grace", "broker", "--resume", "--grace", "1"),
                await killed(instance, "to 2 partitions: final", "broker", "--resume", "--grace", "0"),
            ]
            await came(ledger)
            assert await grow(instance, "broker", "--resume", "--grace", "1") in {2, 4}
            assert await grow(instance, "broker", "--to", "4", "--grace", "1") == 4
            await until(lambda: everybody_runs(instance), PATIENT_S)
            assert len(instance.names("broker")) == 8
            await came(ledger)
    figures(died=died, gaps=dict(ledger.gaps()))
    assert died[:4] == [True] * 4
    nothing_lost(ledger)


async def test_a_doubling_that_is_undone_leaves_everything_as_it_was(make: Make, figures: Callable[..., None]) -> None:
    instance, ledger = make(), Ledger(ROOMS, rate=RATE)
    with instance.running():
        before = instance.pids()
        async with under_load(instance, ledger):
            for role in ("broker", "router"):
                assert await killed(instance, "prepare", role, "--to", "2")
                assert await grow(instance, role, "--abort") == 1
            assert instance.pids() == before
            await until(lambda: everybody_runs(instance), PATIENT_S)
            await came(ledger)
            assert await grow(instance, "broker", "--to", "2", "--grace", "1") == 2
            await came(ledger)
    figures(gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_doublings_while_nodes_and_the_command_die_and_stand_still_are_finished_and_all_is_accounted_for(
    make: Make, figures: Callable[..., None], seed: int
) -> None:
    up = {"brokers": "1x2", "routers": "1x2", "gateways": 2, "proxies": 2}
    instance, ledger, dice = make(up=up), Ledger(ROOMS, rate=RATE), random.Random(seed)
    done: list[str] = []
    with instance.running():
        async with under_load(instance, ledger):
            for role, to in (("broker", 2), ("router", 2), ("broker", 4), ("router", 4)):
                step, name = dice.choice(STEPS), dice.choice(instance.names())
                how = dice.choice(("kill", "stop", "steal"))
                done.append(f"{role} to {to}, the command at {step}, {how} {name}")
                await killed(instance, step, role, "--to", str(to), "--grace", "1")
                growing = asyncio.create_task(grow(instance, role, "--resume", "--grace", "1"))
                if how == "kill":
                    await instance.back(name, instance.kill(name))
                elif how == "steal":
                    await steal(instance.folder.path, instance.process(name).node)
                else:
                    async with instance.stopped(name):
                        await asyncio.sleep(dice.uniform(0.2, 4.0))
                assert await growing == to
                await came(ledger)
            await until(lambda: everybody_runs(instance), PATIENT_S)
            assert counts(instance) == {"broker/main": 4, "router": 4}
            await came(ledger)
            await until(instance.interest_agrees, PATIENT_S)
    figures(done=done, gaps=dict(ledger.gaps()))
    ledger.check()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fresh", range(FRESH))
async def test_a_fresh_cluster_that_doubles_thrice_at_full_load_beside_three_zookeepers_loses_no_message(
    make: Make, tmp_path: Path, figures: Callable[..., None], fresh: int
) -> None:
    zookeeper = ZooKeeper(tmp_path / "zookeeper", 3)
    instance, ledger = make(up={"gateways": 2, "proxies": 2}), Ledger(MANY_ROOMS, rate=FULL_RATE)
    await zookeeper.start()
    took = {}
    try:
        with instance.running("--registry", f"zk://{zookeeper.hosts}/{fresh}"):
            async with under_load(instance, ledger, members=2):
                for to in (2, 4, 8):
                    began = time.monotonic()
                    assert await grow(instance, "broker", "--to", str(to), "--grace", "1") == to
                    await came(ledger)
                    took[to] = round(time.monotonic() - began, 1)
                await until(lambda: everybody_runs(instance), PATIENT_S)
                owned = await owning(instance)
                assert counts(instance) == {"broker/main": 8, "router": 1}
    finally:
        await zookeeper.stop()
    figures(took=took, owned=owned, gaps=dict(ledger.gaps()), messages=sum(map(len, ledger.sent.values())))
    ledger.check()
    assert set(ledger.gaps()) <= {"ended"}


def begun(hosts: Hosts, said: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command on a host without an instance; what it says to people goes into a file."""
    command = [*MUSTER, "cluster", "grow", *words, "--config", str(hosts.config)]
    with said.open("wb") as stderr:
        return subprocess.Popen(command, cwd=ROOT, env=hosts.environment, stdout=subprocess.PIPE, stderr=stderr)


async def test_on_hosts_of_their_own_the_command_waits_for_the_nodes_that_are_started_there(
    tmp_path: Path, figures: Callable[..., None]
) -> None:
    zookeeper, ledger = ZooKeeper(tmp_path / "zookeeper"), Ledger(ROOMS, rate=RATE)
    await zookeeper.start()
    hosts = Hosts(tmp_path, f"zk://{zookeeper.hosts}/production")
    try:
        with hosts.running():
            nodes = [hosts.start(name, name) for name in ("broker", "router", "gateway", "proxy")]
            await hosts.serve(*nodes)
            await until(lambda: sorted(states(nodes[3]).values()) == ["running"] * 4, PATIENT_S)
            async with loaded(hosts.address(), ledger):
                said = tmp_path / "said"
                growing = begun(hosts, said, "broker", "--to", "2", "--grace", "1")
                try:
                    await until(lambda: "waits for a replica of partition 1" in said.read_text(), PATIENT_S)
                    await hosts.serve(hosts.start("broker-b", "broker", "--partition", "1"))
                    out, _ = await asyncio.to_thread(growing.communicate, None, GROW_S)
                finally:
                    growing.kill()
                    growing.wait()
                assert (growing.returncode, out) == (0, b"broker/main has 2 partitions\n"), said.read_text()
                await came(ledger)
    finally:
        await zookeeper.stop()
    figures(gaps=dict(ledger.gaps()))
    nothing_lost(ledger)

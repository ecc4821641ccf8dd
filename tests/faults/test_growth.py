"""Partitions that double while messages flow: nothing is lost, each publisher's order is kept, the new brokers own rooms."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests import forked, strikes
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts, Node
from tests.faults.instance import COMMAND, Instance
from tests.faults.ledger import Ledger
from tests.faults.load import came, loaded, nothing_lost, under_load
from tests.faults.test_registry import FULL_RATE, RATE, everybody_runs, steal
from tests.faults.test_serve import states
from tests.waiting import PATIENT_S, until, until_asked

ROOMS: Final = [f"room-{number}" for number in range(64)]
"""So many that each of four partitions has one."""
MANY_ROOMS: Final = [f"room-{number}" for number in range(96)]
"""The same for eight."""
SEEDS: Final = int(os.environ.get("MUSTERTEST_SEEDS", "6"))
FRESH: Final = int(os.environ.get("MUSTERTEST_FRESH", "20"))


@dataclass(frozen=True, slots=True)
class Registry:
    """An instance's registry, and its servers if they are processes of their own."""

    url: str
    zookeeper: ZooKeeper | None = None

    async def end_session(self, instance: Instance, name: str) -> None:
        """As if the server had given this node up."""
        number = instance.process(name).node
        if self.zookeeper is None:
            await steal(instance.folder.path, number)
        else:
            await self.zookeeper.expire_node(self.url.removeprefix(f"zk://{self.zookeeper.hosts}"), number)


@pytest.fixture(params=["embedded", "zookeeper"])
async def registry(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Registry]:
    """Each of them."""
    if request.param == "embedded":
        yield Registry("embedded")
    elif request.param == "zookeeper":
        zookeeper: ZooKeeper = request.getfixturevalue("zookeeper_of_the_run")
        await zookeeper.serve_another_test()
        yield Registry(f"{zookeeper.url}/here", zookeeper)
    else:
        async with ZooKeeper(tmp_path / "zookeeper", 3).running() as ensemble:
            yield Registry(f"{ensemble.url}/here", ensemble)


async def grow(instance: Instance, *words: str) -> int:
    """Grow to the end. Gives the number of partitions."""
    done = await asyncio.to_thread(instance.ran, "cluster", "grow", *words, "--json", seconds=PATIENT_S)
    assert done.returncode == 0, done.stderr.decode()
    partitions: int = json.loads(done.stdout)["partitions"]
    return partitions


@contextlib.asynccontextmanager
async def growing(instance: Instance, step: str, *words: str) -> AsyncIterator[forked.Process]:
    """The command once it has printed this, or has ended, until its end."""
    said = instance.config.with_name("grow.log")
    with said.open("wb") as stderr:
        command = instance.command("cluster", "grow", *words, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        await until(lambda: step in said.read_text() or command.poll() is not None, PATIENT_S)
        yield command
        await asyncio.to_thread(command.wait, PATIENT_S)
    finally:
        command.kill()
        command.wait()


async def killed(instance: Instance, step: str, *words: str) -> bool:
    """kill -9 of the command when it prints this; returns whether that came before its end."""
    async with growing(instance, step, *words) as command:
        command.kill()
    return command.returncode == -signal.SIGKILL


def counts(instance: Instance) -> dict[str, int]:
    """The numbers of partitions that the proxy uses."""
    found: dict[str, int] = json.loads(instance.get("proxy", "/api/v1/placement"))["partitions"]
    return found


async def owning(instance: Instance) -> dict[str, float]:
    """Wait until every broker numbers messages. Returns each one's number so far."""

    def published() -> dict[str, float]:
        return {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}

    before = published()
    await until(lambda: all(now > before[name] for name, now in published().items()), PATIENT_S)
    return published()


async def test_brokers_and_routers_double_under_load_and_lose_no_message(
    make: Make, registry: Registry, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up={"gateways": 2}, database={}), Ledger(ROOMS, rate=RATE)
    with instance.running("--registry", registry.url):
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
            await until(  # it has loaded what the first router wrote, or what it was told before that is news to it
                lambda: (
                    instance.status("router-1")["database"]["loaded"]
                    or instance.metrics("router-1")["database_written"]
                ),
                PATIENT_S,
            )
        for killed_one in ("broker-3", "broker"):  # they come back into partitions that the configuration does not know
            await instance.renew(killed_one)
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


@dataclass(frozen=True, slots=True)
class Interruption:
    """The target of a fault, the step of a doubling, and the length."""

    role: str
    to: int
    step: str
    target: str
    how: str
    lasts_s: float

    async def who(self, instance: Instance, dice: random.Random) -> str:
        """One of the targeted nodes, or a target that is no node."""
        if self.target in {"command", "leader", "follower", "all"}:
            return self.target
        role = self.role if self.target == "new" else self.target
        found: list[str] = []

        def meant() -> list[str]:
            split = self.to // 2 if role == self.role else 0
            parts = {process.name: process.partition for process in instance.record().processes if process.role == role}
            found[:] = [name for name, at in parts.items() if not split or (at >= split) is (self.target == "new")]
            return found

        await until(meant, PATIENT_S)  # a new node may not have started yet
        return dice.choice(found)

    async def happens(self, command: forked.Process, instance: Instance, registry: Registry, who: str) -> None:
        """Until the target is back."""
        if self.target == "command":
            if self.how == "stop":
                with strikes.standing_still(command.pid):
                    await asyncio.sleep(self.lasts_s)
            else:
                strikes.kill(command.pid)
                await asyncio.sleep(self.lasts_s)
        elif self.target in {"leader", "follower", "all"}:
            assert registry.zookeeper is not None
            await self._to_servers(registry.zookeeper)
        elif self.how == "end":
            await registry.end_session(instance, who)
        else:
            await until(lambda: instance.process(who).pid, PATIENT_S)
            if self.how == "kill":
                await instance.renew(who)
            else:
                async with instance.stopped(who):
                    await asyncio.sleep(self.lasts_s)

    async def _to_servers(self, zookeeper: ZooKeeper) -> None:
        leader = await zookeeper.leader()
        followers = [server for server in zookeeper.servers if server is not leader]
        hit = {"leader": [leader], "follower": followers[:1], "all": zookeeper.servers}[self.target]
        if self.how == "stop":
            with zookeeper.standing_still(*hit):
                await asyncio.sleep(self.lasts_s)
        else:
            for server in hit:
                server.kill()
            await asyncio.sleep(self.lasts_s)
            for server in hit:
                server.start()
        await zookeeper.ready()

    def fails(self, instance: Instance, who: str) -> set[str]:
        """The nodes that it makes stand still or die."""
        return instance.fellows(who) if who in instance.names() and self.how != "end" else set()


async def stalls(instance: Instance) -> dict[str, float]:
    """How often each node stood still, also by itself for want of CPU."""

    def counted() -> dict[str, float]:
        return {name: instance.metrics(name)["stalls"] for name in instance.names()}

    return await asyncio.to_thread(counted)


def explained(owner_failed: bool, gateway_failed: bool) -> set[str]:
    """Reasons of gaps that members at a gateway may get."""
    reasons = {"ended"}
    if owner_failed:
        reasons |= {"owner_lost", "unrepaired"}
    if gateway_failed:
        reasons |= {"unrepaired", "expired", "restarted"}
    return reasons


STEPS: Final = ("prepare", "switched", "of grace", "final")
DOUBLINGS: Final = (("broker", 2), ("router", 2), ("broker", 4), ("broker", 8))
NODES: Final = ("broker", "router", "gateway", "proxy", "new")
HITS: Final = {
    "embedded": [*itertools.product(NODES, ("kill", "stop", "end")), ("command", "kill"), ("command", "stop")],
    "ensemble": [
        *itertools.product(("command", *NODES, "leader", "follower", "all"), ("kill", "stop")),
        *itertools.product(("broker", "new", "gateway"), ("kill", "stop")),
    ],
}
"""The targets and their faults. The 24 of an ensemble are those of six seeds."""


def interruptions(hits: Sequence[tuple[str, str]], seed: int) -> list[Interruption]:
    """One for each doubling of a cluster: as many as there are faults have each of them once, and each step as
    often."""
    dealt, dice, first = list(hits), random.Random(seed), seed * len(DOUBLINGS)
    random.Random(0).shuffle(dealt)
    found: list[Interruption] = []
    for turn, (role, to) in enumerate(DOUBLINGS):
        target, how = dealt[(first + turn) % len(dealt)]
        step = STEPS[(seed + turn) % len(STEPS)]
        found.append(Interruption(role, to, step, target, how, round(dice.uniform(0.2, 5.0), 1)))
    return found


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("registry", "rate", "members"), [("embedded", RATE, 4), ("ensemble", FULL_RATE, 2)], indirect=["registry"]
)
async def test_doublings_while_nodes_registry_and_command_die_and_stand_still_are_finished_and_all_is_accounted_for(
    make: Make, registry: Registry, figures: Callable[..., None], rate: float, members: int, seed: int
) -> None:
    up = {"brokers": "1x2", "routers": "1x2", "gateways": 2, "proxies": 2}
    instance, ledger, dice = make(up=up), Ledger(MANY_ROOMS, rate=rate), random.Random(seed)
    done: list[str] = []
    wrong: list[str] = []
    with instance.running("--registry", registry.url):
        async with under_load(instance, ledger, members, pinned=True):
            for each in interruptions(HITS["ensemble" if registry.zookeeper else "embedded"], seed):
                began, told, stood = time.monotonic_ns(), [ledger.gaps(at) for at in range(2)], await stalls(instance)
                async with growing(instance, each.step, each.role, "--to", str(each.to), "--grace", "1") as command:
                    missed = command.poll() is not None
                    who = await each.who(instance, dice)
                    await each.happens(command, instance, registry, who)
                if command.returncode:
                    assert await grow(instance, each.role, "--resume", "--grace", "1") == each.to
                await until_asked(lambda: everybody_runs(instance), PATIENT_S)
                await came(ledger)
                starved = {name for name, times in (await stalls(instance)).items() if times > stood.get(name, 0)}
                failed = starved | each.fails(instance, who)
                if owner_failed := not failed.isdisjoint(instance.names("broker")):
                    ledger.failed_ns.append((began, time.monotonic_ns()))
                new = {name: dict(ledger.gaps(at) - told[at]) for at, name in enumerate(instance.names("gateway"))}
                done.append(f"{each}, {who}: ended with {command.returncode}, failed {sorted(failed)}, gaps {new}")
                for name, gaps in new.items():
                    if not set(gaps) <= explained(owner_failed, name in failed):
                        wrong.append(f"at {name}: {done[-1]}")
                if missed:
                    wrong.append(f"the step had passed: {done[-1]}")
            assert counts(instance) == {"broker/main": 8, "router": 2}
            await until_asked(instance.interest_agrees, PATIENT_S)
    figures(done=done, gaps=dict(ledger.gaps()), load=ledger.load())
    ledger.check()
    ledger.check_rate()
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
@pytest.mark.parametrize("fresh", range(FRESH))
async def test_a_fresh_cluster_that_doubles_thrice_at_full_load_beside_three_zookeepers_loses_no_message(
    make: Make, tmp_path: Path, figures: Callable[..., None], fresh: int
) -> None:
    took = {}
    instance = make(up={"gateways": 2, "proxies": 2}, namespaces__paced={"flow": "paced"})
    ledger = Ledger([f"paced:{room}" for room in MANY_ROOMS], rate=FULL_RATE)
    async with ZooKeeper(tmp_path / "zookeeper", 3).running() as zookeeper:
        with instance.running("--registry", f"{zookeeper.url}/{fresh}"):
            async with under_load(instance, ledger, members=2):
                for to in (2, 4, 8):
                    began = time.monotonic()
                    assert await grow(instance, "broker", "--to", str(to), "--grace", "1") == to
                    await came(ledger)
                    took[to] = round(time.monotonic() - began, 1)
                await until_asked(lambda: everybody_runs(instance), PATIENT_S)
                owned = await owning(instance)
                assert counts(instance) == {"broker/main": 8, "router": 1}
    figures(took=took, owned=owned, gaps=dict(ledger.gaps()), load=ledger.load())
    nothing_lost(ledger)


def begun(hosts: Hosts, said: Path, *words: str) -> forked.Process:
    """The command on a host without an instance; its lines for people go into a file."""
    asked = ["cluster", "grow", *words, "--config", str(hosts.config)]
    with said.open("wb") as stderr:
        return forked.server(COMMAND).start(asked, hosts.environment, stdout=subprocess.PIPE, stderr=stderr)


async def brokers_doubled(hosts: Hosts, said: Path, name: str, *cluster: str) -> tuple[bytes, Node]:
    """From 1 to 2 partitions by the command, which waits until a new node is started: its last words, and that node."""
    growing = begun(hosts, said, "broker", *cluster, "--to", "2", "--grace", "1")
    try:
        await until(lambda: "waits for a replica of partition 1" in said.read_text(), PATIENT_S)
        node = hosts.start(name, "broker", *cluster, "--partition", "1")
        await hosts.serve(node)
        out, _ = await asyncio.to_thread(growing.communicate, PATIENT_S)
    finally:
        growing.kill()
        growing.wait()
    assert growing.returncode == 0, await asyncio.to_thread(said.read_text)
    return out, node


async def test_on_hosts_of_their_own_the_command_waits_for_the_nodes_that_are_started_there(
    tmp_path: Path, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    hosts, ledger = Hosts(tmp_path, f"{zookeeper.url}/production"), Ledger(ROOMS, rate=RATE)
    with hosts.running():
        nodes = [hosts.start(name, name) for name in ("broker", "router", "gateway", "proxy")]
        await hosts.serve(*nodes)
        await until(lambda: sorted(states(nodes[3]).values()) == ["running"] * 4, PATIENT_S)
        async with loaded(hosts.address(), ledger):
            out, _ = await brokers_doubled(hosts, tmp_path / "said", "broker-b")
            assert out == b"broker/main has 2 partitions\n"
            await came(ledger)
    figures(gaps=dict(ledger.gaps()))
    nothing_lost(ledger)

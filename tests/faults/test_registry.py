"""Roles that use the registry's map: nodes and the registry itself come and go, and no message is lost."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import muster
from muster_server.control.registry import questions
from muster_server.control.registry.embedded import EmbeddedTree
from muster_server.control.registry.server import STATE
from muster_server.control.registry.tree import Refused
from tests.control.registry.services import connected
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.instance import APART, ROLES, Instance
from tests.faults.ledger import Ledger
from tests.faults.load import MEMBERS, came, nothing_lost, under_load
from tests.waiting import PATIENT_S, until, until_asked

SEVERAL = {"brokers": "1x2", "routers": "1x2"}
TWO_OF_EACH = SEVERAL | {"gateways": 2, "proxies": 2}
ROOMS = [f"room-{number}" for number in range(24)]
"""Owners are chosen by chance, anew in each instance: so many rooms that both brokers surely own some."""
SESSION_MS = 2_000
RATE = 400.0
FULL_RATE = float(os.environ.get("MUSTERTEST_RATE", "10000"))
AWAY_S = 60.0
"""Time for which an ensemble is away."""
SOAK_S = float(os.environ.get("MUSTERTEST_SOAK_S", "120"))


def told(instance: Instance, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command says."""
    done = instance.ran(*words)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def placement(instance: Instance, node: str) -> dict[int, str]:
    """The map of a node: the states by node."""
    found = json.loads(instance.get(node, "/api/v1/placement"))
    return {each["node"]: each.get("state", "running") for each in found["nodes"]}


def registered(instance: Instance, node: str, seen_by: str = "proxy") -> int:
    """The epoch of a node's registration; 0 if it has none or does not serve."""
    number = instance.process(node).node
    found = json.loads(instance.get(seen_by, "/api/v1/placement"))["nodes"]
    return next(
        (each["epoch"] for each in found if each["node"] == number and each.get("state", "running") == "running"), 0
    )


def everybody_runs(instance: Instance) -> bool:
    """Whether every node knows that all of them run."""
    nodes = {process.node: "running" for process in instance.record().processes}
    return all(placement(instance, name) == nodes for name in instance.names())


def line(instance: Instance, event: str, **fields: Any) -> dict[str, Any] | None:
    """The first line of the log with this event and these fields."""
    for text in instance.log.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found: dict[str, Any] = json.loads(text)
            if found.get("event") == event and fields.items() <= found.items():
                return found
    return None


async def steal(folder: Path, number: int) -> None:
    """End the session of a node of the embedded registry, as if the server had given it up."""

    def read() -> tuple[list[tuple[int, bytes, int]], bytes]:
        _, sessions, store = msgspec.msgpack.decode((folder / STATE).read_bytes())
        return sessions, store

    _, store = read()
    entries = [(data, owner) for path, data, _, owner, _ in msgspec.msgpack.decode(store) if "/r" in path]
    (mine,) = {owner for data, owner in entries if owner and msgspec.json.decode(data)["node"] == number}
    # Its owner takes it back at once, and may be quicker than the thief.
    while known := [each for each in read()[0] if each[0] == mine]:
        thief = EmbeddedTree(folder)
        thief._known = questions.Begin(*known[0])
        await connected(thief)
        await thief.close()


# --- what comes and goes ------------------------------------------------------------------------------------------------


async def test_a_replica_that_drains_and_one_that_loses_its_session_lose_no_message(
    make: Make, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up=APART | SEVERAL), Ledger(ROOMS, rate=RATE)
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        async with under_load(instance, ledger):
            owned = {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}
            assert min(owned.values()) > 0, "both own rooms"
            before, dead = registered(instance, "broker"), instance.terminate("broker")
            other = {name: pid for name, pid in instance.pids().items() if name != "broker"}
            await until(lambda: placement(instance, "gateway").get(2) == "draining", PATIENT_S)
            await instance.back("broker", dead)
            await until(lambda: registered(instance, "broker") > before, PATIENT_S)
            await came(ledger)
            moved = line(instance, "not drained in time")
            assert {name: pid for name, pid in instance.pids().items() if name != "broker"} == other

            before = registered(instance, "broker-1")
            await steal(instance.folder.path, instance.process("broker-1").node)
            await until(lambda: registered(instance, "broker-1") > before, PATIENT_S)
            lost = instance.metrics("broker-1")["registry_sessions_lost"]
            await came(ledger)
    figures(owned=owned, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)
    assert moved is None
    assert lost == 1


async def test_a_killed_broker_is_gone_round_and_comes_back_with_a_higher_epoch(
    make: Make, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up=APART | SEVERAL), Ledger(ROOMS, rate=RATE)
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        before, life = registered(instance, "broker"), instance.process("broker").epoch
        async with under_load(instance, ledger):
            dead = instance.kill("broker")
            await came(ledger)
            await instance.back("broker", dead)
            await until(lambda: registered(instance, "broker") > before, PATIENT_S)
            await until(lambda: everybody_runs(instance), PATIENT_S)
            detoured = instance.metrics("proxy")["messages_detoured"]
            mine = instance.metrics("broker")["messages_published"]
            await until(lambda: instance.metrics("broker")["messages_published"] > mine)
        assert instance.process("broker").epoch == instance.status("broker")["epoch"] > life
    figures(gaps=dict(ledger.gaps()), detoured=detoured)
    ledger.check()
    assert set(ledger.gaps()) <= {"ended", "owner_lost"}


async def test_what_is_forged_in_the_registry_is_refused_in_a_line_and_changes_no_route(make: Make) -> None:
    instance, ledger = make(up=SEVERAL), Ledger(ROOMS, rate=RATE)
    partition = "/pubsub/broker/main/partition0"
    forged = {
        "/pubsub/router/partition0/r-nonsense": b"\xff{",
        f"{partition}/r-elsewhere": msgspec.json.encode(
            {"node": 50, "role": "broker", "host": "evil.example", "link_port": 1}
        ),
        f"{partition}/r-other-partition": msgspec.json.encode(
            {"node": 51, "role": "broker", "host": "127.0.0.1", "link_port": 1, "partition": 3}
        ),
        "/pubsub/gateway/r-other-role": msgspec.json.encode(
            {"node": 52, "role": "broker", "host": "127.0.0.1", "link_port": 1}
        ),
    }
    counts = [b'{"partitions":3}', b'{"partitions":-1}', b'{"partitions":512}', b"[]", b"nonsense"]
    counts += [b'{"partitions":256}', b'{"partitions":1,"serial":4294967295}']
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        before = placement(instance, "proxy")
        async with under_load(instance, ledger):
            tree = EmbeddedTree(instance.folder.path)
            await connected(tree)
            rival = next(
                each for each in json.loads(instance.get("proxy", "/api/v1/placement"))["nodes"] if each["node"] == 2
            )
            for path, data in forged.items():
                await tree.create(path, data)
            await tree.create(f"{partition}/r-rival", msgspec.json.encode(rival | {"link_port": 9}))
            cause = ""
            for data in counts:
                await tree.set("/pubsub/broker/main/partition_num", data)
                cause = await _refused(instance, "broker/main/partition_num", cause)
            for path in forged:
                await _refused(instance, path.removeprefix("/pubsub/"))

            async with asyncio.timeout(PATIENT_S):
                # The node with that number and epoch removes it, once it has read it.
                while "r-rival" in await tree.children(partition):  # noqa: ASYNC110 - as in `until`
                    await asyncio.sleep(0.05)
            assert placement(instance, "proxy") == before
            assert everybody_runs(instance)
            await came(ledger)
            assert instance.metrics("proxy")["registry_refused"] >= len(forged) + len(counts)
            await tree.close()
    assert line(instance, "registry: refused", path="gateway/r-other-role", cause="has the role broker")
    nothing_lost(ledger)


async def _refused(instance: Instance, path: str, before: str = "") -> str:
    """Wait until every node refuses the value there, for a new cause, and return the cause."""
    causes: list[str] = []

    def all_refuse() -> bool:
        causes[:] = [instance.status(name)["registry"]["refused"].get(path, "") for name in instance.names()]
        return causes[0] not in {"", before} and len(set(causes)) == 1

    await until(all_refuse, PATIENT_S)
    return causes[0]


@pytest.mark.soak
@pytest.mark.timeout(10 * SOAK_S)
@pytest.mark.parametrize("loss", [0.0, 0.02])
async def test_brokers_that_drain_and_lose_their_sessions_for_minutes_lose_no_message(
    make: Make, figures: Callable[..., None], loss: float
) -> None:
    up = APART | {"brokers": "2x2", "routers": "1x2", "gateways": 2}
    instance, ledger = make(up=up, faults={"loss": loss}), Ledger(ROOMS, rate=3 * RATE)
    dice, counted = random.Random(7), Counter[str]()
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        async with under_load(instance, ledger):
            ends = asyncio.get_running_loop().time() + SOAK_S
            while asyncio.get_running_loop().time() < ends:
                name, what = dice.choice(instance.names("broker")), dice.choice(["drain", "steal", "router"])
                if what == "router":
                    name = dice.choice(instance.names("router"))
                before = registered(instance, name)
                if what == "steal":
                    await steal(instance.folder.path, instance.process(name).node)
                else:
                    await instance.back(name, instance.terminate(name))
                await until(lambda: registered(instance, name) > before, PATIENT_S)  # noqa: B023 - awaited here
                await until(lambda: everybody_runs(instance), PATIENT_S)
                await came(ledger)
                counted[what] += 1
    figures(loss=loss, counted=dict(counted), gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


# --- the registry itself ------------------------------------------------------------------------------------------------


@pytest.fixture
async def zookeeper(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper_of_the_run: ZooKeeper
) -> AsyncIterator[ZooKeeper]:
    """The run's ZooKeeper, or as many servers as the test asks for."""
    servers = getattr(request, "param", 1)
    if servers == 1:
        await zookeeper_of_the_run.serve_another_test()
        yield zookeeper_of_the_run
    else:
        async with ZooKeeper(tmp_path / "zookeeper", servers).running() as ensemble:
            yield ensemble


class WithZooKeeper:
    """An instance under load, and its ZooKeeper."""

    def __init__(self, instance: Instance, zookeeper: ZooKeeper, ledger: Ledger) -> None:
        self.instance, self.zookeeper, self.ledger = instance, zookeeper, ledger
        self.root, self.url = f"{zookeeper.root}/one/cluster", f"{zookeeper.url}/one/cluster"
        self._joins = 0

    def sessions(self) -> set[str]:
        """The nodes' states with it."""
        return {self.instance.status(name)["registry"]["session"] for name in self.instance.names()}

    def epochs(self) -> dict[str, int]:
        """Of the registrations, by node, as a gateway knows them."""
        gateway = self.instance.names("gateway")[-1]  # the first one may be gone
        return {name: registered(self.instance, name, gateway) for name in self.instance.names()}

    async def whole(self) -> None:
        """Wait until all are connected and know of all."""
        await until_asked(lambda: self.sessions() == {"connected"}, PATIENT_S)
        await until_asked(lambda: everybody_runs(self.instance), PATIENT_S)
        await came(self.ledger)

    async def registered_again(self, before: dict[str, int]) -> None:
        """Wait until every node has a higher epoch than then."""
        await until_asked(lambda: all(epoch > before[name] for name, epoch in self.epochs().items()), PATIENT_S)

    async def join(self) -> None:
        """New members get the existing messages of a used room, and all new messages in unused rooms."""
        self._joins += 1
        new = Ledger([f"new-{self._joins}-{number}" for number in range(4)], rate=40.0)
        async with (
            under_load(self.instance, new, members=2),
            muster.connect(self.instance.folder.path, proxies=[]) as client,
            client.join(self.ledger.rooms[0]) as room,
            asyncio.timeout(PATIENT_S),
        ):
            await anext(room)
        nothing_lost(new)

    async def without(self, away_s: float) -> None:
        """Members get new messages, and new members join, until this time and every session is over."""
        began = time.monotonic()
        await until_asked(lambda: "connected" not in self.sessions(), PATIENT_S)
        await until_asked(lambda: self.sessions() == {"expired"}, PATIENT_S)
        while True:
            await self.join()
            await came(self.ledger)
            if time.monotonic() - began >= away_s:
                return


@pytest.mark.parametrize(
    ("zookeeper", "rate", "away_s"),
    [
        (1, RATE, 0.0),
        pytest.param(3, FULL_RATE, AWAY_S, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)]),
    ],
    indirect=["zookeeper"],
)
async def test_zookeeper_that_stands_still_dies_or_loses_its_data_costs_no_message(
    make: Make, zookeeper: ZooKeeper, figures: Callable[..., None], rate: float, away_s: float
) -> None:
    instance, ledger = make(up=SEVERAL, registry={"session_ms": SESSION_MS}), Ledger(ROOMS, rate=rate)
    beside = WithZooKeeper(instance, zookeeper, ledger)
    with instance.running("--registry", beside.url):
        await until_asked(lambda: everybody_runs(instance), PATIENT_S)
        pids, members = instance.pids(), 2 if rate == FULL_RATE else MEMBERS
        async with under_load(instance, ledger, members):
            # It stands still, for longer than a session.
            with zookeeper.standing_still():
                await until_asked(lambda: "connected" not in beside.sessions(), PATIENT_S)
                away = await asyncio.to_thread(told, instance, "status")
                await beside.without(away_s)
            await beside.whole()
            # It dies, and forgets everything.
            before = beside.epochs()
            await zookeeper.stop()
            await beside.without(away_s)
            await zookeeper.wipe()
            await beside.registered_again(before)
            await beside.whole()
            assert instance.pids() == pids, "no process had to start again"
        shown, status = told(instance, "cluster", "show"), told(instance, "status")
        watching = zookeeper.tree()
        await connected(watching)
        kept = set(await watching.children("/one/cluster/pubsub"))
        await watching.close()
    figures(gaps=dict(ledger.gaps()), load=ledger.load())
    nothing_lost(ledger)
    assert f"registry {beside.url}: not connected: router, router-1, broker" in away.stdout
    assert f"registry {beside.url}: all are connected" in status.stdout
    assert shown.stdout.count(" running ") == len(pids)
    assert kept == {"ids", "numbers", "proxy", "broker", "router", "gateway"}


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("zookeeper", [3], indirect=True)
async def test_an_ensemble_whose_servers_die_and_whose_sessions_end_costs_no_message(
    make: Make, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up=TWO_OF_EACH), Ledger(ROOMS, rate=FULL_RATE)
    beside = WithZooKeeper(instance, zookeeper, ledger)
    with instance.running("--registry", beside.url):
        await until_asked(lambda: everybody_runs(instance), PATIENT_S)
        pids = instance.pids()
        async with under_load(instance, ledger, members=2):
            # The leader dies, and a follower with the next one, so that none leads; written values stay.
            before = beside.epochs()
            first = await zookeeper.leader()
            first.kill()
            await zookeeper.ready(2)
            await beside.whole()
            assert beside.epochs() == before, "sessions outlive a leader"
            (await zookeeper.leader()).kill()
            await beside.without(AWAY_S)
            await zookeeper.stop()
            await zookeeper.start()
            await beside.whole()
            # Each node's session ends.
            for name in instance.names():
                epoch = beside.epochs()[name]
                await zookeeper.expire_node(beside.root, instance.process(name).node)
                await until_asked(lambda: beside.epochs()[name] > epoch, PATIENT_S)  # noqa: B023
                await beside.whole()
            lost = {name: instance.metrics(name)["registry_sessions_lost"] for name in instance.names()}
            assert instance.pids() == pids, "no process had to start again"
    figures(lost=lost, gaps=dict(ledger.gaps()), load=ledger.load())
    nothing_lost(ledger)


@pytest.mark.soak
@pytest.mark.parametrize("zookeeper", [3], indirect=True)
async def test_nodes_that_are_killed_while_the_ensemble_is_away_are_gone_round_until_it_is_back(
    make: Make, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up=APART | TWO_OF_EACH, registry={"session_ms": SESSION_MS}), Ledger(ROOMS, rate=FULL_RATE)
    beside, told_gaps = WithZooKeeper(instance, zookeeper, ledger), {}
    with instance.running("--registry", beside.url):
        await until_asked(lambda: everybody_runs(instance), PATIENT_S)
        before = beside.epochs()
        async with under_load(instance, ledger, members=2):
            await zookeeper.stop()
            await until_asked(lambda: beside.sessions() == {"expired"}, PATIENT_S)
            for role in ROLES:
                instance.kill(role)
                await came(ledger)
                told_gaps[role] = dict(ledger.gaps())
            waits = f"waits for the registry {beside.url}"
            await until_asked(lambda: told(instance, "status").stdout.count(waits) == len(ROLES), PATIENT_S)
            for _ in range(3):
                await beside.join()
            still = await asyncio.to_thread(told, instance, "status")
            assert still.stdout.count(waits) == len(ROLES)
            await zookeeper.start()
            await beside.registered_again(before)
            await beside.whole()
            await beside.join()
    figures(gaps=told_gaps, load=ledger.load())
    ledger.check()
    assert set(ledger.gaps()) <= {"ended", "owner_lost"}


async def test_a_start_waits_for_the_registry_and_says_so(make: Make, zookeeper: ZooKeeper) -> None:
    await zookeeper.stop()
    url = zookeeper.url
    instance = make()
    with instance.log.open("ab") as log:
        up = instance.command("up", "--registry", url, "--for", "600", stdout=subprocess.DEVNULL, stderr=log)
    try:
        await until(lambda: line(instance, f"waits for the registry {url}", role="broker"), PATIENT_S)
        await until(lambda: told(instance, "status").stdout.count(f"waits for the registry {url}") == 4, PATIENT_S)
        await zookeeper.start()
        await until(instance.is_ready, PATIENT_S)
        assert told(instance, "status").returncode == 0
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENT_S) == 0


async def test_a_start_that_the_registry_answers_late_has_the_partitions_that_grew(
    make: Make, zookeeper: ZooKeeper
) -> None:
    url = zookeeper.url
    instance = make()
    with instance.running("--registry", url):
        grown = await asyncio.to_thread(told, instance, "cluster", "grow", "broker", "--to", "2", "--grace", "0")
        assert grown.returncode == 0, grown.stderr
    await zookeeper.stop()
    with instance.log.open("ab") as log:
        up = instance.command("up", "--registry", url, "--for", "600", stdout=subprocess.DEVNULL, stderr=log)
    try:
        await until(lambda: told(instance, "status").stdout.count(f"waits for the registry {url}") == 4, PATIENT_S)
        await zookeeper.start()
        await until(lambda: up.poll() is not None or (instance.is_ready() and len(instance.pids()) == 5), PATIENT_S)
        assert up.poll() is None, instance.tail()
        assert line(instance, f"waits for the registry {url}", role="supervisor")
        assert instance.process("broker-1").partition == 1
        await until(lambda: everybody_runs(instance), PATIENT_S)
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENT_S) == 0


async def test_who_may_not_write_there_and_who_has_other_partitions_is_told_in_one_line(
    make: Make, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    url, password = f"{zookeeper.url}/mine", tmp_path / "password"
    instance = make(registry={"url": url, "auth": "digest", "user": "muster", "password_file": str(password)})
    password.write_text("right\n")
    with instance.running("--brokers", "2"):
        stranger = zookeeper.tree()
        await connected(stranger)
        with pytest.raises(Refused):
            await stranger.children("/mine/pubsub")
        await stranger.close()

    def refused_start(*words: str) -> str:
        done = told(instance, "up", *words)
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    assert refused_start("--brokers", "4").endswith(
        f" cannot start: registry {url}: broker/main has 2 partitions, but up.brokers asks for 4; "
        "start it with 2, and run muster cluster grow broker --to 4 while it runs"
    )
    password.write_text("wrong\n")
    said = refused_start("--brokers", "2")
    assert f"cannot start: registry {url}: /pubsub/ids/muster-" in said
    assert said.endswith(": NoAuthError; check registry.auth, registry.user and registry.password_file")

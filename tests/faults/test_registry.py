"""Roles that register and go by the registry's map: what comes and goes there, and the registry itself, loses no message."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control.registry import frames
from control.registry.embedded import EmbeddedTree
from control.registry.server import STATE
from control.registry.tree import Refused
from tests.control.registry.services import connected
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.ledger import Ledger
from tests.faults.load import PATIENT_S, came, nothing_lost, under_load
from tests.waiting import until

SEVERAL = {"brokers": "1x2", "routers": "1x2"}
ROOMS = [f"room-{number}" for number in range(24)]
"""Which of two brokers owns one is chance, and another one in each instance: so many that both surely own some."""
RATE = 400.0
SOAK_S = float(os.environ.get("MUSTERTEST_SOAK_S", "120"))


def told(instance: Instance, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command says."""
    with instance.command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        out, err = command.communicate(timeout=20)
    return subprocess.CompletedProcess(words, command.returncode, out.decode(), err.decode())


def placement(instance: Instance, node: str) -> dict[int, str]:
    """The map that a node goes by: the states by node."""
    found = json.loads(instance.get(node, "/api/v1/placement"))
    return {each["node"]: each.get("state", "running") for each in found["nodes"]}


def registered(instance: Instance, node: str, seen_by: str = "proxy") -> int:
    """The epoch of a node's registration; 0 where it has none or does not serve."""
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
    # Its owner comes back for it at once, and may be quicker than what ends it.
    while known := [each for each in read()[0] if each[0] == mine]:
        thief = EmbeddedTree(folder)
        thief._known = frames.Hello(*known[0])
        await connected(thief)
        await thief.close()


# --- what comes and goes ------------------------------------------------------------------------------------------------


async def test_a_replica_that_drains_and_one_that_loses_its_session_lose_no_message(
    make: Make, figures: Callable[..., None]
) -> None:
    instance, ledger = make(up=SEVERAL), Ledger(ROOMS, rate=RATE)
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        async with under_load(instance, ledger):
            owned = {name: instance.metrics(name)["messages_published"] for name in instance.names("broker")}
            assert min(owned.values()) > 0, "both own rooms"
            before, dead = registered(instance, "broker"), instance.process("broker").pid
            os.kill(dead, signal.SIGTERM)
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
    instance, ledger = make(up=SEVERAL), Ledger(ROOMS, rate=RATE)
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
    forged = {
        "/pubsub/router/partition0/r-nonsense": b"\xff{",
        "/pubsub/broker/main/partition0/r-elsewhere": msgspec.json.encode(
            {"node": 50, "role": "broker", "host": "evil.example", "link_port": 1}
        ),
        "/pubsub/broker/main/partition0/r-other-partition": msgspec.json.encode(
            {"node": 51, "role": "broker", "host": "127.0.0.1", "link_port": 1, "partition": 3}
        ),
        "/pubsub/broker/main/partition0/r-rival": b"",
        "/pubsub/gateway/r-other-role": msgspec.json.encode(
            {"node": 52, "role": "broker", "host": "127.0.0.1", "link_port": 1}
        ),
    }
    counts = [b'{"partitions":3}', b'{"partitions":-1}', b'{"partitions":512}', b"[]", b"nonsense"]
    with instance.running():
        await until(lambda: everybody_runs(instance), PATIENT_S)
        before = placement(instance, "proxy")
        async with under_load(instance, ledger):
            tree = EmbeddedTree(instance.folder.path)
            await connected(tree)
            rival = next(
                each for each in json.loads(instance.get("proxy", "/api/v1/placement"))["nodes"] if each["node"] == 2
            )
            forged["/pubsub/broker/main/partition0/r-rival"] = msgspec.json.encode(rival | {"link_port": 9})
            for path, data in forged.items():
                await tree.create(path, data)
            cause = ""
            for data in counts:
                await tree.set("/pubsub/broker/main/partition_num", data)
                cause = await _refused(instance, "broker/main/partition_num", cause)
            for path in forged:
                await _refused(instance, path.removeprefix("/pubsub/"))
            assert placement(instance, "proxy") == before
            assert everybody_runs(instance)
            await came(ledger)
            assert instance.metrics("proxy")["registry_refused"] >= len(forged) + len(counts)
            await tree.close()
    assert line(instance, "registry: refused", path="gateway/r-other-role", cause="says that it is a broker")
    nothing_lost(ledger)


async def _refused(instance: Instance, path: str, before: str = "") -> str:
    """Wait until every node refuses what stands there, for another cause than before, and give the cause."""
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
    up = {"brokers": "2x2", "routers": "1x2", "gateways": 2}
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
                before, dead = registered(instance, name), instance.process(name).pid
                if what == "steal":
                    await steal(instance.folder.path, instance.process(name).node)
                else:
                    os.kill(dead, signal.SIGTERM)
                    await instance.back(name, dead)
                await until(lambda: registered(instance, name) > before, PATIENT_S)  # noqa: B023 - awaited here
                await until(lambda: everybody_runs(instance), PATIENT_S)
                await came(ledger)
                counted[what] += 1
    figures(loss=loss, counted=dict(counted), gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


# --- the registry itself ------------------------------------------------------------------------------------------------


@pytest.fixture
async def zookeeper(tmp_path: Path) -> AsyncIterator[ZooKeeper]:
    """One that serves."""
    made = ZooKeeper(tmp_path / "zookeeper")
    await made.start()
    yield made
    await made.stop()


async def test_zookeeper_that_stands_still_dies_or_loses_its_data_costs_no_message(
    make: Make, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    session_s = 2.0
    instance = make(up=SEVERAL, registry={"session_ms": int(session_s * 1000)})
    ledger = Ledger(ROOMS, rate=RATE)
    url = f"zk://{zookeeper.hosts}/one/cluster"

    def sessions() -> set[str]:
        return {instance.status(name)["registry"]["session"] for name in instance.names()}

    def epochs() -> dict[str, int]:
        return {name: registered(instance, name, seen_by="gateway") for name in instance.names()}

    with instance.running("--registry", url):
        await until(lambda: everybody_runs(instance), PATIENT_S)
        pids = instance.pids()
        async with under_load(instance, ledger):
            # It stands still, for longer than a session.
            zookeeper.servers[0].signal(signal.SIGSTOP)
            await until(lambda: "connected" not in sessions(), PATIENT_S)
            away = told(instance, "status")
            await until(lambda: sessions() == {"expired"}, PATIENT_S)
            await came(ledger)
            zookeeper.servers[0].signal(signal.SIGCONT)
            await until(lambda: sessions() == {"connected"}, PATIENT_S)
            await until(lambda: everybody_runs(instance), PATIENT_S)
            # It dies, and forgets everything.
            before = epochs()
            await zookeeper.stop()
            await until(lambda: "connected" not in sessions(), PATIENT_S)
            await came(ledger)
            await zookeeper.wipe()
            await until(lambda: all(epoch > before[name] for name, epoch in epochs().items()), PATIENT_S)
            await until(lambda: everybody_runs(instance), PATIENT_S)
            await came(ledger)
            assert instance.pids() == pids, "no process had to start again"
        shown, status = told(instance, "cluster", "show"), told(instance, "status")
        watching = zookeeper.tree()
        await connected(watching)
        kept = set(await watching.children("/one/cluster/pubsub"))
        await watching.close()
    figures(gaps=dict(ledger.gaps()))
    nothing_lost(ledger)
    assert f"registry {url}: not connected: router, router-1, broker" in away.stdout
    assert f"registry {url}: all are connected" in status.stdout
    assert shown.stdout.count(" running ") == len(pids)
    assert kept == {"ids", "proxy", "broker", "router", "gateway"}


async def test_a_start_waits_for_the_registry_and_says_so(make: Make, zookeeper: ZooKeeper) -> None:
    await zookeeper.stop()
    url = f"zk://{zookeeper.hosts}"
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


async def test_who_may_not_write_there_and_who_has_other_partitions_is_told_in_one_line(
    make: Make, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    url, password = f"zk://{zookeeper.hosts}/mine", tmp_path / "password"
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
        f" cannot start: registry {url}: broker/main has 2 partitions, not 4 as up.brokers says"
    )
    password.write_text("wrong\n")
    said = refused_start("--brokers", "2")
    assert f"cannot start: registry {url}: /pubsub/ids/muster-" in said
    assert said.endswith(": NoAuthError")

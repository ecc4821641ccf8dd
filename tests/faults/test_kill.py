"""kill -9 under load, of each node and of all with their supervisor: nothing is lost in silence."""

import asyncio
import contextlib
import functools
import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import muster
from muster_server.control.host.addresses import address_text
from muster_server.control.host.ports import Ports
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.faults.ledger import Ledger
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(6)]
MEMBERS = 4
RATE = 600.0
BACK_S_MAX = 2.0
INTEREST_S_MAX = 3.0
BETWEEN_S = 0.5
ONE: dict[str, Any] = {}
MANY: dict[str, Any] = {"gateways": 2, "brokers": "2x2", "routers": "1x2", "proxies": 2}


async def come_and_go(instance: Instance, stop: asyncio.Event, may_go: asyncio.Event) -> None:
    """A client that joins and leaves other rooms as fast as it may: interest changes while roles die."""
    async with muster.connect(instance.folder.path, proxies=[], timeout=PATIENT_S) as client:
        for number in itertools.count():
            await may_go.wait()
            if stop.is_set():
                return
            async with client.join(f"passing-{number % 7}"):
                await asyncio.sleep(0.3)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    ("rounds", "loss", "nodes"),
    [
        (3, 0.05, ONE),
        (3, 0.05, APART),
        (1, 0.05, MANY),
        pytest.param(100, 0.0, ONE, marks=pytest.mark.soak),
        pytest.param(100, 0.05, ONE, marks=pytest.mark.soak),
        pytest.param(40, 0.0, MANY, marks=pytest.mark.soak),
        pytest.param(40, 0.05, MANY, marks=pytest.mark.soak),
    ],
)
async def test_a_node_that_is_killed_comes_back_and_nothing_is_missing_in_silence(
    make: Make, figures: Callable[..., None], rounds: int, loss: float, nodes: dict[str, Any]
) -> None:
    instance, ledger = make(up=nodes, faults={"loss": loss}), Ledger(ROOMS, rate=RATE)
    since_back: dict[str, list[float]] = defaultdict(list)
    since_kill: dict[str, list[float]] = defaultdict(list)
    agreed: dict[str, list[float]] = defaultdict(list)
    gaps: dict[str, Counter[str]] = defaultdict(Counter)
    late: list[str] = []
    (may_go := asyncio.Event()).set()
    with instance.running():
        async with (
            ledger.members(instance.folder.path, MEMBERS),
            muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            tasks.create_task(come_and_go(instance, ledger.stop, may_go))
            memory = tasks.create_task(instance.watch_memory(0.5))
            await asyncio.sleep(BETWEEN_S)
            for turn, node in itertools.product(range(rounds), instance.one_of_each_process()):
                pids, told, killed = instance.pids(), ledger.gaps(), time.monotonic()
                fellows = await instance.renew(node)
                back, slow = time.monotonic(), Slowness(instance.pids().values())
                others = {name: pid for name, pid in pids.items() if name not in fellows}
                mark = ledger.mark()
                what = f"{node}, round {turn}"
                try:
                    await until(functools.partial(ledger.reached, mark))
                except TimeoutError:
                    silent = sum(mark not in seat.firsts for seat in ledger.seats)
                    late.append(f"{what}: {silent} of {len(ledger.seats)} members received nothing for {PATIENT_S:g} s")
                    break
                first = max(ledger.first_after(mark))
                since_back[node].append(first - back)
                since_kill[node].append(first - killed)
                if first - back > slow.limit(BACK_S_MAX):
                    late.append(f"{what}: {first - back:.2f} s until all members received again")
                began = time.monotonic()
                may_go.clear()  # values that change between the questions differ
                try:
                    await until(instance.interest_agrees, INTEREST_S_MAX)
                except TimeoutError:
                    known = {name: instance.interest(name) for name in instance.names("gateway", "router", "broker")}
                    late.append(f"{what}: interest differs: {known}")
                may_go.set()
                agreed[node].append(time.monotonic() - began)
                gaps["+".join(sorted(fellows))] += ledger.gaps() - told
                still = instance.pids()
                assert {name: still[name] for name in others} == others, f"{what}: another node died with it"
                await asyncio.sleep(BETWEEN_S)
            ledger.stop.set()
            await publishing
            await ledger.settle()
            memory.cancel()

        def spread(times: list[float]) -> list[float]:
            ordered = sorted(times)
            return [round(ordered[len(ordered) * share // 100], 3) for share in (50, 99)] + [round(max(times), 3)]

        figures(
            since_back_p50_p99_max={node: spread(times) for node, times in since_back.items()},
            since_kill_p50_p99_max={node: spread(times) for node, times in since_kill.items()},
            interest_p50_p99_max={node: spread(times) for node, times in agreed.items()},
            acknowledged=sum(len(room) for room in ledger.acknowledged.values()),
            received=sum(len(seat.items) for seat in ledger.seats),
            gaps={node: dict(count) for node, count in gaps.items()},
            rss_mib=instance.peak.mib(),
            late=late,
        )
    ledger.check()
    # Nothing goes through a router; what a proxy had is repeated through the next.
    if any(count for nodes, count in gaps.items() if nodes.startswith(("router", "proxy"))):
        late.append(f"members were told of gaps although no ring died: {gaps}")
    assert not late, "\n".join(late)


@pytest.mark.parametrize("lost", ["ports", "token"])
async def test_clients_find_the_instance_that_took_the_place_of_a_killed_one(
    make: Make, figures: Callable[..., None], lost: str
) -> None:
    sections: dict[str, dict[str, Any]] = {}
    if lost == "token":  # at the same addresses the old one is refused
        with Ports() as ports:
            sections = {role: {"bind": address_text(*ports.udp(role, "127.0.0.1", 0))} for role in ("gateway", "proxy")}
    instance, ledger = make(**sections), Ledger(ROOMS, rate=RATE)
    with instance.running() as up:
        async with (
            ledger.members(instance.folder.path, MEMBERS),
            muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            await asyncio.sleep(BETWEEN_S)
            pids = instance.pids().values()
            strikes.kill(up.pid)
            up.communicate()
            await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
            if lost == "token":
                instance.folder.token.unlink()
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, instance.running())  # clients go on meanwhile
                back, mark, slow = time.monotonic(), ledger.mark(), Slowness(instance.pids().values())
                await until(functools.partial(ledger.reached, mark))
                first, first_s_max = max(ledger.first_after(mark)) - back, slow.limit(BACK_S_MAX)
                figures(since_back_s=round(first, 3), gaps=dict(ledger.gaps()))
                ledger.stop.set()
                await publishing
                await ledger.settle()
    ledger.check()
    assert first < first_s_max

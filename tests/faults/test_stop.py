"""A role that stands still for seconds (SIGSTOP): no flood of old messages, no unbounded queue, and recovery."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import ROLES
from tests.faults.ledger import Ledger
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(4)]
MEMBERS = 3
RATE = 800.0
SIZE = 700
BACK_S_MAX = 2.0
MAX_AGE_S = 5.0
GROWTH_MIB_MAX = 40
"""Over what the role had before: 9 s of this load are 5 MB; its rings, sockets and held messages stay within 64 MiB."""


@pytest.mark.parametrize("seconds", [5.0, pytest.param(12.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("role", ROLES)
async def test_a_role_that_stood_still_recovers_without_a_stale_flood(
    make: Make, figures: Callable[..., None], role: str, seconds: float
) -> None:
    instance, ledger = make(), Ledger(ROOMS, rate=RATE)
    with instance.running():
        async with (
            ledger.members(instance.folder.path, MEMBERS),
            muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, SIZE))
            await asyncio.sleep(1.0)
            instance.sample_memory()
            before = instance.peak.mib()
            memory = tasks.create_task(instance.watch_memory())
            pids = instance.pids()
            async with instance.stopped(role):
                await asyncio.sleep(seconds)
            resumed, mark, slow = time.monotonic(), ledger.mark(), Slowness(pids.values())
            await until(lambda: ledger.reached(mark))
            back = max(ledger.first_after(mark)) - resumed
            back_s_max = slow.limit(BACK_S_MAX)
            await until(instance.interest_agrees, 3)
            await asyncio.sleep(1.0)
            ledger.stop.set()
            await publishing
            await ledger.settle()
            memory.cancel()
            growth = {name: instance.peak.mib()[name] - before[name] for name in ROLES}
            stalls = instance.metrics(role)["stalls"]
            figures(
                role=role,
                since_resumed_s=round(back, 3),
                oldest_s=max(seat.late_ns for seat in ledger.seats) / 1e9,
                oldest_since_numbered_s=max(ledger.age_s(seat) for seat in ledger.seats),
                gaps=sum(len(seat.gaps) for seat in ledger.seats),
                growth_mib=growth,
                rss_mib=instance.peak.mib(),
            )
            assert instance.pids() == pids, "a role died of the standstill"
    ledger.check()
    assert stalls >= 1, f"{role} did not notice that it stood still"
    assert back < back_s_max
    # Old means numbered long ago: a message that its publisher held while a proxy stood still is new when it comes.
    assert max(ledger.age_s(seat) for seat in ledger.seats) < MAX_AGE_S + 1.0
    assert max(growth.values()) < GROWTH_MIB_MAX, growth


@pytest.mark.soak
@pytest.mark.parametrize("roles", [("gateway",), ("proxy",), ROLES], ids="-".join)
async def test_who_looked_for_a_role_for_long_finds_it_as_soon_as_it_goes_on(
    make: Make, figures: Callable[..., None], roles: tuple[str, ...]
) -> None:
    instance, ledger = make(), Ledger(ROOMS, rate=100.0)
    with instance.running():
        async with (
            ledger.members(instance.folder.path, MEMBERS),
            muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, SIZE))
            await asyncio.sleep(1.0)
            async with contextlib.AsyncExitStack() as stack:
                for role in roles:
                    await stack.enter_async_context(instance.stopped(role))
                await asyncio.sleep(40.0)
            resumed, mark, slow = time.monotonic(), ledger.mark(), Slowness(instance.pids().values())
            await until(lambda: ledger.reached(mark))
            back = max(ledger.first_after(mark)) - resumed
            back_s_max = slow.limit(BACK_S_MAX)
            figures(roles=roles, since_resumed_s=round(back, 3))
            ledger.stop.set()
            await publishing
            await ledger.settle()
    ledger.check()
    assert back < back_s_max

"""Loss, duplicates, reordering and jitter on every link, both directions: exactly once, in order, by content."""

import asyncio
import time
from collections.abc import Callable

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import ROLES
from tests.faults.ledger import Ledger, Membership
from tests.waiting import PATIENT_S, until

FAULTS = {"loss": 0.02, "duplicate": 0.01, "reorder": 0.02, "jitter_ms": 5}
ROOMS = [*(f"room-{number}" for number in range(5)), *(f"paced:room-{number}" for number in range(5))]
LATE_S = 0.02
"""A busy machine kept a node from its work for so long: a live room's 200 ms may then be too short for a repair."""
MEMBERS = 20
DELIVERIES_PER_CPU_S_MIN = 15_000
"""In a second of processor time of all nodes."""
RSS_MIB_MAX = 200


@pytest.mark.parametrize("messages", [20_000, pytest.param(200_000, marks=pytest.mark.soak)])
async def test_every_member_gets_every_message_once_and_in_order(
    make: Make, figures: Callable[..., None], messages: int
) -> None:
    instance = make(faults=FAULTS, namespaces__paced={"flow": "paced"})
    ledger, per_room = Ledger(ROOMS), messages // len(ROOMS)

    def ended(seat: Membership) -> bool:
        """It has all, or was told that it will not."""
        return len(seat.items) >= per_room or bool(seat.gaps)

    with instance.running():
        memory, before = asyncio.create_task(instance.watch_memory()), await asyncio.to_thread(instance.cpu_s)
        async with ledger.members(instance.folder.path, MEMBERS, policy="block"):
            began = time.monotonic()
            async with muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S) as client:
                await ledger.publish_all(client, 1, per_room, 200)
                acknowledged = time.monotonic() - began
                await until(lambda: ledger.errors or all(map(ended, ledger.seats)))
            took = time.monotonic() - began
        cpu_s = await asyncio.to_thread(instance.cpu_s) - before
        memory.cancel()
        late_s = {role: instance.metrics(role)["loop_lag_seconds"] for role in ROLES}
        ledger.check_whole(per_room, but=[] if max(late_s.values()) < LATE_S else ROOMS[:5])
        rate = messages * MEMBERS / cpu_s
        figures(
            seconds=took,
            acknowledged_s=acknowledged,
            deliveries_per_s=messages * MEMBERS / took,
            deliveries_per_cpu_s=rate,
            late_s=late_s,
            rss_mib=instance.peak.mib(),
        )
        # A router sends few datagrams a second: now and then the faults miss it until here.
        await until(lambda: all(instance.metrics(role)["faults_lost"] for role in ROLES), PATIENT_S)
    assert rate >= DELIVERIES_PER_CPU_S_MIN
    assert max(instance.peak.mib().values()) < RSS_MIB_MAX

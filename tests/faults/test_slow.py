"""One member of a hundred reads at a tenth of its room's rate: the others lack nothing, and it is told what it lacks.

`test_pipes.py` has members that stand still; `muster bench isolation` measures the others' latency.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import muster
from tests.faults.conftest import Make
from tests.faults.ledger import Ledger, Membership, content
from tests.waiting import PATIENT_S, until, until_asked

QUICK = 99
RATE = 80.0
TENTH = 10
SIZE = 400
ELSEWHERE = [f"elsewhere-{number}" for number in range(8)]
UNREAD_BYTES = 4_096
"""Unread bytes at which the slow program's client takes nothing more."""
GROWTH_MIB_MAX = 16
"""Of a role: all that is published here is less than a megabyte."""

PACED: dict[str, dict[str, Any]] = {"namespaces__paced": {"flow": "paced"}, "broker": {"arena_mib": 8}}
PACED_QUICK = 4
PACED_MESSAGES = 10_000
PACED_RATE = 2_500.0
"""Of the slow member. A publisher may be half a ring ahead: of 8 MiB for all rooms, 512 KiB, some 1,100 messages."""


class Slow:
    """A member that reads a fixed number of messages a second, until it is told to catch up. It has a client of its
    own."""

    def __init__(self, ledger: Ledger, room: str, rate: float) -> None:
        self.seat = Membership("slow", room)
        self.catches_up = asyncio.Event()
        self._rate, self._ledger = rate, ledger

    @contextlib.asynccontextmanager
    async def reading(self, where: Any, unread_bytes: int = UNREAD_BYTES) -> AsyncIterator[None]:
        """While the block lasts. What it is given is in the ledger's account as that of others."""
        self._ledger.seats.append(self.seat)
        opened = muster.connect(where, proxies=[], timeout=PATIENT_S, buffer_bytes=unread_bytes, receive_buffer_bytes=0)
        async with opened as client, client.join(self.seat.room, policy="block") as room:
            task = asyncio.create_task(self._read(room))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _read(self, room: muster.Room) -> None:
        try:
            async for batch in room.batches():
                self.seat.take(batch)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.catches_up.wait(), len(batch) / self._rate)
        except Exception as error:
            self._ledger.errors.append(error)


async def test_in_a_live_room_the_others_have_all_and_it_is_told_what_it_was_too_slow_for(
    make: Make, figures: Callable[..., None]
) -> None:
    instance = make()
    hot, elsewhere = Ledger(["hot"], rate=RATE), Ledger(ELSEWHERE, rate=RATE)
    slow = Slow(hot, "hot", RATE / TENTH)
    with instance.running():
        where = instance.folder.path
        async with (
            hot.members(where, QUICK),
            elsewhere.members(where, 1),
            slow.reading(where),
            muster.connect(where, gateways=[], timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            quick = [seat for seat in hot.seats if seat is not slow.seat]
            publishing = [
                tasks.create_task(hot.publish_steadily(client, 1, SIZE)),
                tasks.create_task(elsewhere.publish_steadily(client, 2, SIZE)),
            ]
            await until(lambda: all(seat.items for seat in (*hot.seats, *elsewhere.seats)), PATIENT_S)
            instance.sample_memory()
            before = instance.peak.mib()
            memory = tasks.create_task(instance.watch_memory())
            await until_asked(lambda: instance.metrics("gateway")["cursors_moved"], PATIENT_S)
            had = len(slow.seat.items)
            # All others have the new messages, while it is far behind.
            marks = [(ledger, ledger.mark()) for ledger in (hot, elsewhere)]
            await until(
                lambda: all(marks[0][1] in seat.firsts for seat in quick) and elsewhere.reached(marks[1][1]), PATIENT_S
            )
            behind = min(len(seat.items) for seat in quick) / had
            for ledger in (hot, elsewhere):
                ledger.stop.set()
            await asyncio.gather(*publishing)
            slow.catches_up.set()
            await hot.settle()
            await elsewhere.settle()
            memory.cancel()
    growth = {name: peak - before[name] for name, peak in instance.peak.mib().items()}
    late = max(seat.late_ns for seat in quick) / 1e9
    figures(sent=len(hot.sent["hot"]), slow_had=len(slow.seat.items), gaps=slow.seat.gaps, growth=growth, late_s=late)
    hot.check()
    elsewhere.check()
    assert not elsewhere.gaps()
    assert not any(seat.gaps for seat in quick)
    assert {reason for *_, reason in slow.seat.gaps} == {"slow"}
    assert behind > 2, "it was as quick as the others"
    assert max(growth.values()) < GROWTH_MIB_MAX, growth


async def test_in_a_paced_room_its_publisher_waits_for_it_and_everyone_has_all(
    make: Make, figures: Callable[..., None]
) -> None:
    instance = make(**PACED)
    paced, elsewhere = Ledger(["paced:hot"]), Ledger(ELSEWHERE, rate=RATE)
    paced.sent["paced:hot"] = {(1, number) for number in range(PACED_MESSAGES)}
    slow = Slow(paced, "paced:hot", PACED_RATE)
    with instance.running():
        where = instance.folder.path
        async with (
            paced.members(where, PACED_QUICK),
            elsewhere.members(where, 1),
            slow.reading(where, 1 << 18),
            muster.connect(where, gateways=[], timeout=PATIENT_S) as client,
            muster.connect(where, gateways=[], timeout=PATIENT_S) as other,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(elsewhere.publish_steadily(other, 2, SIZE))
            instance.sample_memory()
            before = instance.peak.mib()
            memory = tasks.create_task(instance.watch_memory())
            async with asyncio.timeout(PATIENT_S):
                for number in range(PACED_MESSAGES):
                    while not client.publish_nowait("paced:hot", content(1, number, SIZE)):
                        await client.writable("paced:hot")
                await client.flush(PATIENT_S)
            held = len(slow.seat.items)
            await until(lambda: all(len(seat.items) == PACED_MESSAGES for seat in paced.seats), PATIENT_S)
            elsewhere.stop.set()
            await publishing
            await elsewhere.settle()
            memory.cancel()
    growth = {name: peak - before[name] for name, peak in instance.peak.mib().items()}
    figures(held=held, growth=growth)
    paced.check_whole(PACED_MESSAGES)
    elsewhere.check()
    assert not elsewhere.gaps()
    assert held > PACED_MESSAGES / 2, "its publisher did not wait"

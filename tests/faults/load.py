"""A steady load during a fault of an instance, and the checks afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import muster
from tests.faults.instance import Instance, reach
from tests.faults.ledger import Ledger
from tests.waiting import PATIENT_S, until

MEMBERS: Final = 4


@contextlib.asynccontextmanager
async def under_load(
    instance: Instance, ledger: Ledger, members: int = MEMBERS, *, pinned: bool = False
) -> AsyncIterator[None]:
    """Members and a publisher while the block lasts; then every message has arrived, or was announced as missing.

    Pinned members stay at their first gateway, each at the next one.
    """
    gateways = [reach(end) for end in instance.record().gateways] if pinned else None
    async with loaded(instance.folder.path, ledger, members, gateways):
        yield


@contextlib.asynccontextmanager
async def loaded(
    where: Path | muster.Address, ledger: Ledger, members: int = MEMBERS, gateways: Sequence[Any] | None = None
) -> AsyncIterator[None]:
    """The same, of what is there."""
    async with (
        ledger.members(where, members, gateways),
        muster.connect(where, gateways=[], timeout=PATIENT_S) as client,
        asyncio.TaskGroup() as tasks,
    ):
        publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
        await until(lambda: all(seat.items for seat in ledger.seats), PATIENT_S)
        yield
        await came(ledger)
        ledger.stop.set()
        await publishing
        await ledger.settle()


async def came(ledger: Ledger) -> None:
    """Wait until every member has a message that was published after this call."""
    mark = ledger.mark()
    await until(lambda: ledger.reached(mark), PATIENT_S)


def nothing_lost(ledger: Ledger) -> None:
    """Every member has every message, once, each publisher's in order, and as many as requested.

    A stream may have ended for another. A member that was too slow for a message has lost it.
    """
    ledger.check()
    ledger.check_rate()
    told = {(seat.room, *gap) for seat in ledger.seats for gap in seat.gaps if gap[-1] != "ended"}
    assert not told, f"members were told of gaps: {sorted(told, key=str)}"

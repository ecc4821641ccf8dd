"""The account itself, with a client that takes what it is given: its publisher keeps its rate, or says that it has not."""

import asyncio
import time
from typing import Any

import pytest

import muster
from tests.faults.ledger import LATE_S, Ledger, Membership
from tests.faults.load import nothing_lost
from tests.waiting import until

RATE = 1_000.0
HELD_UP_S = 0.7


class Client:
    """Acknowledges at once, without a place; or so many only."""

    def __init__(self, most: int | None = None) -> None:
        self.most, self.asked = most, 0
        self.ended = asyncio.Event()

    async def publish(self, room: str, data: bytes, timeout: float) -> None:
        self.asked += 1
        if self.most is not None and self.asked > self.most:
            await self.ended.wait()


async def test_a_publisher_that_is_held_up_makes_up_for_it() -> None:
    ledger, client = Ledger(["room"], rate=RATE), Client()
    made: Any = client
    began = time.monotonic()
    publishing = asyncio.create_task(ledger.publish_steadily(made, 1, 100))
    await until(lambda: client.asked > 0)
    time.sleep(HELD_UP_S)  # noqa: ASYNC251 - it is what holds it up
    await until(lambda: client.asked >= RATE * (time.monotonic() - began) - RATE / 10)
    ledger.stop.set()
    await publishing
    assert client.asked == ledger.asked >= RATE * HELD_UP_S
    nothing_lost(ledger)


async def test_a_load_that_is_less_than_asked_for_fails_and_says_by_how_much() -> None:
    ledger, client = Ledger(["room"], rate=RATE), Client(most=1)
    made: Any = client
    publishing = asyncio.create_task(ledger.publish_steadily(made, 1, 100))
    await until(lambda: client.asked >= 1_000)  # so 0.1 % at most: too few on the slowest machine
    ledger.stop.set()
    await until(lambda: ledger.asked and time.monotonic_ns() > ledger.ended_ns + LATE_S * 1e9)
    client.ended.set()
    await publishing
    with pytest.raises(
        AssertionError, match=r"1,000 a second are [\d,]+ messages, and 1 \(\d+\.\d%\) were acknowledged"
    ):
        nothing_lost(ledger)


def test_a_member_that_was_too_slow_has_lost_what_it_was_told_of() -> None:
    ledger = Ledger(["room"], seats=[Membership("member", "room")])
    ledger.seats[0].gaps.append((muster.Stream(2, 1, 1), 3, 4, "slow"))
    with pytest.raises(AssertionError, match=r"told of gaps: \[\('room', .*, 3, 4, 'slow'\)\]$"):
        nothing_lost(ledger)

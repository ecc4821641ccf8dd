"""What a message costs the library: turns of its engine and timers of the loop. Time is measured by `muster bench sdk`."""

import asyncio
import time
from typing import Any

import pytest

import muster
import muster.testing
from muster._core import ClientEngine

MESSAGES = 200
ON_ITS_OWN_S = 0.02
"""Without any message an engine makes a turn now and then, as for a status: at most one in such a time."""


class Counted:
    """An engine whose turns are counted."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.turns = engine, 0

    def turn(self) -> int:
        self.turns += 1
        bits: int = self._engine.turn()
        return bits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have engines whose turns are counted."""
    monkeypatch.setattr("muster.client.ClientEngine", lambda **settings: Counted(ClientEngine(**settings)))


async def test_a_message_that_comes_alone_takes_a_reader_one_turn(
    counted: None, address: muster.testing.Instance
) -> None:
    async with (
        muster.connect(address, gateways=[]) as publisher,
        muster.connect(address, proxies=[]) as reader,
        reader.join("r") as room,
    ):
        await publisher.publish("r", b"first")
        await anext(room)
        engine: Any = reader.engine
        turns, began = engine.turns, time.monotonic()
        for number in range(MESSAGES):
            publisher.publish_nowait("r", b"%d" % number)
            item = await anext(room)
            assert isinstance(item, muster.Message)
            assert item.data == b"%d" % number
        of_time = (time.monotonic() - began) / ON_ITS_OWN_S
        assert MESSAGES <= engine.turns - turns <= 1.2 * MESSAGES + of_time + 10


async def test_publishes_that_wait_together_leave_in_one_turn_and_share_a_timer(
    counted: None, address: muster.testing.Instance
) -> None:
    async with muster.connect(address, gateways=[]) as client:
        await client.publish("r", b"first")
        engine: Any = client.engine
        turns, loop = engine.turns, asyncio.get_running_loop()
        tasks = [loop.create_task(client.publish("r", b"%d" % number)) for number in range(MESSAGES)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.turns - turns <= 2
        timer = client._publishing._deadlines._timer
        positions = await asyncio.gather(*tasks)
        assert client._publishing._deadlines._timer is timer
        assert [position.offset for position in positions] == list(range(2, MESSAGES + 2))

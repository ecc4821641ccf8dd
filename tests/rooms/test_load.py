"""The counts of `muster load rooms`: an announced loss is a loss, and nothing else."""

import asyncio
import threading
from typing import Any

import pytest

from muster_server.control.load.generator import Share
from muster_server.systems.rooms.load import COUNTS, RoomsGenerator, RoomsLoad
from tests.waiting import PATIENT_S

LOAD = RoomsLoad(
    gateways=[],
    proxies=[],
    credential=b"",
    members=1,
    rooms=1,
    publishers=1,
    rate=1.0,
    size=200,
    for_s=1.0,
    ramp_s=0.0,
)


class Engine:
    """Tells what it is given."""

    def __init__(self, **counts: int) -> None:
        self._told: dict[str, Any] = {name: counts.get(name, 0) for name in COUNTS}
        self._told |= {"latencies_us": b"", "late_us": b"", "over": True, "complete": True}

    def schedule(self, *_: object) -> None:
        """Nothing is sent."""

    def advance(self, _: float) -> dict[str, Any]:
        return self._told


@pytest.mark.parametrize(("jumps", "gaps", "out_of_turn"), [(0, 0, 0), (3, 3, 0), (3, 0, 3), (5, 3, 2), (0, 2, 0)])
async def test_a_jump_that_a_gap_announced_is_not_out_of_turn(jumps: int, gaps: int, out_of_turn: int) -> None:
    generator = RoomsGenerator(LOAD, Share(run="r"))
    generator._engine = Engine(out_of_turn=jumps, gaps=gaps, lost=7)  # type: ignore[assignment]
    counts = (await generator.advance(0.0)).counts
    assert (counts["out_of_turn"], counts["gaps"], counts["lost"]) == (out_of_turn, gaps, 7)


async def test_a_run_that_is_interrupted_waits_for_its_engine_before_it_closes_it() -> None:
    began, goes_on, busy = threading.Event(), threading.Event(), threading.Lock()

    class Slow(Engine):
        """Works in a thread until it may go on; what comes meanwhile fails, as with the compiled one."""

        def advance(self, _: float) -> dict[str, Any]:
            with busy:
                began.set()
                assert goes_on.wait(PATIENT_S)
            return self._told

        def close(self) -> None:
            assert busy.acquire(blocking=False), "Already borrowed"

    generator = RoomsGenerator(LOAD, Share(run="r"))
    generator._engine = Slow()  # type: ignore[assignment]
    advancing = asyncio.create_task(generator.advance(1.0))
    assert await asyncio.to_thread(began.wait, PATIENT_S)
    advancing.cancel()
    await asyncio.wait([advancing])
    closing = asyncio.create_task(generator.close())
    asyncio.get_running_loop().call_later(0.2, goes_on.set)
    await asyncio.wait_for(closing, PATIENT_S)

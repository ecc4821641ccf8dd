"""The load of a fleet: instant runs by an open schedule, over the clients that are connected.

Owns the runs. Each must end with one result for each client that was picked: a client that did not answer is replaced by
another one or missed, and both are counted.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from muster_server.control.cluster.instance import Process
from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.plane.calls import CallError
from muster_server.systems.fleet.asking import Asking, asking
from muster_server.systems.fleet.questions import Event, RunNow

RUN_S: Final = 60.0
"""A run that has not ended by then is counted as failed."""


class FleetLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one kind."""

    nodes: list[Process]
    key: bytes
    """Proves the cluster's secret to its nodes."""
    kind: str
    target: str
    selector: str
    pick: int
    rate: float
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "FleetGenerator":
        """The generator of one host."""
        return FleetGenerator(self, share)


class FleetGenerator:
    """One host's runs."""

    sent = "sent"
    done = "done"
    wrong = ("failed", "missed")

    def __init__(self, load: FleetLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._stack = AsyncExitStack()
        self._asking: Asking | None = None
        self._counts = Counter[str]()
        self._loop = OpenLoop(self._run, share.rate(load.rate), load.for_s, load.ramp_s)

    async def open(self) -> str:
        """Find the scheduler that leads."""
        self._asking = await self._stack.enter_async_context(asking(lambda: self._load.nodes, self._load.key))
        rate = self._share.rate(self._load.rate)
        return f"{rate:,g} runs of {self._load.kind}/s, {self._load.pick:,} clients each"

    async def advance(self, seconds: float) -> Slice:
        """Begin runs, and count their results."""
        made = await self._loop.advance(seconds)
        return msgspec.structs.replace(
            made, counts={**made.counts, "results": 0, "replaced": 0, "missed": 0, **self._counts}
        )

    async def close(self) -> None:
        """Follow no run any more."""
        await self._loop.close()
        await self._stack.aclose()

    async def _run(self, number: int) -> str | None:
        assert self._asking is not None
        load = self._load
        question = RunNow(kind=load.kind, target=load.target, selector=load.selector, pick=load.pick)
        last: Event | None = None
        try:
            async with asyncio.timeout(RUN_S):
                async for event in self._asking.follow(question, Event):
                    last = event
        except TimeoutError:
            return "late"
        except CallError as error:
            return error.code
        if last is None or last.what != "ended":
            return "unfinished"
        self._counts["results"] += len(last.done)
        self._counts["replaced"] += len(last.replaced)
        self._counts["missed"] += max(0, load.pick - len(last.done))
        return None


SETTINGS: Final = FleetLoad

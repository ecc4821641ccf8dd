"""The demo of `muster up --demo`: a checked load in a room of its own, and a line of text per second in the room
`demo`.

Members and one publisher of the load are the compiled clients of `muster load rooms`, in one thread of this process.
They check each payload byte for byte, and its number. So a member that misses a message, gets one twice or out of
order is counted. Messages of other publishers are ignored. The room `demo` is for people: `muster sub demo` shows the
lines, and messages of other publishers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster_server.control.cluster import instance, sdk
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.sdk import Room
from muster_server.control.config.options import Config
from muster_server.control.load.generator import Share, histogram
from muster_server.control.terminal.common import verdict_after
from muster_server.control.terminal.found import client_of
from muster_server.pyext.histogram import Histogram
from muster_server.systems.rooms.load import RoomsGenerator, RoomsLoad, reachable
from muster_server.systems.rooms.system import DEMO_ROOM, LOAD_ROOM, Demo

STEP_S: Final = 0.1
"""The figures are those of at most this many seconds ago."""
FOR_S: Final = 3.2e8
"""Length of the schedule: ten years. The end comes by `finish`."""
SAY_S: Final = 1.0
"""Seconds between two lines in the room `demo`."""
SETTLE_S: Final = 5.0
COLUMNS: Final = ("seconds", "published", "delivered", "repaired", "lost", "p50_ms", "p99_ms")
HEADER_EVERY: Final = 20
"""Number of lines between two headers of the table."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts so far.

    `lost`: announced as gaps; after `finish`, also messages that never came. `repeated`: came twice, or out of order.
    """

    seconds: float
    members: int
    published: int
    delivered: int
    repaired: int
    lost: int
    repeated: int
    p50_ms: float
    p99_ms: float

    @property
    def whole(self) -> bool:
        """Whether every member got everything exactly once."""
        return self.lost == 0 and self.repeated == 0 and self.delivered == self.published * self.members


@dataclass(slots=True)
class DemoRoom:
    """Owns the sessions while `opened`."""

    options: Demo
    latencies: Histogram = field(default_factory=histogram)
    _counts: Mapping[str, int] = field(default_factory=dict)
    _began: float = 0.0
    _stop: bool = False
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def published(self) -> int:
        """Messages published so far."""
        return self._counts.get("published", 0)

    @contextlib.asynccontextmanager
    async def opened(self, place: Folder) -> AsyncIterator["DemoRoom"]:
        """Join all members, then publish until `finish` or the end of the block. Raises `UserError`."""
        record = instance.find(place)
        gateways, proxies = reachable(record)
        load = RoomsLoad(
            gateways=gateways,
            proxies=proxies,
            credential=client_of(record).token,
            members=self.options.members,
            rooms=1,
            publishers=1,
            rate=self.options.rate,
            size=self.options.payload_bytes,
            for_s=FOR_S,
            ramp_s=0.0,
            names=(LOAD_ROOM,),
        )
        generator = load.generator(Share(run="demo"))
        try:
            await generator.open()
            self._began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                running = group.create_task(self._run(generator))
                try:
                    yield self
                finally:
                    running.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await generator.close()

    async def finish(self) -> Figures:
        """Stop publishing, wait for messages in transit, and count missing ones as lost."""
        self._stop = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._complete.wait()
        figures = self.figures()
        never = max(0, figures.published * figures.members - figures.delivered - figures.lost)
        return msgspec.structs.replace(figures, lost=figures.lost + never)

    def figures(self) -> Figures:
        """The account of all members so far."""
        p50, p99 = (float(us) / 1000 for us in self.latencies.percentiles([50.0, 99.0]))
        counts = self._counts
        return Figures(
            seconds=round(time.monotonic() - self._began, 3),
            members=self.options.members,
            published=self.published,
            # A message of another publisher has none of the load's content.
            delivered=counts.get("delivered", 0) - counts.get("corrupted", 0),
            repaired=counts.get("repaired", 0),
            lost=counts.get("lost", 0),
            repeated=counts.get("out_of_turn", 0),
            p50_ms=round(p50, 3),
            p99_ms=round(p99, 3),
        )

    async def _run(self, generator: RoomsGenerator) -> None:
        while not self._complete.is_set():
            if self._stop:
                generator.stop()
            took = await generator.advance(STEP_S)
            self._counts = took.counts
            self.latencies.record(took.latencies)
            if took.complete:
                self._complete.set()


def words(figures: Figures, now: time.struct_time) -> str:
    """A line for people: the load's results so far."""
    clock = time.strftime("%H:%M:%S", now)
    return (
        f"{clock}  {figures.published:,} messages to {figures.members:,} members so far, "
        f"half of them within {figures.p50_ms:.1f} ms, {figures.lost:,} lost"
    )


@contextlib.asynccontextmanager
async def spoken(room: DemoRoom, place: Folder) -> AsyncIterator[None]:
    """Publish a line in the room `demo` every second while the block lasts."""
    talking = asyncio.create_task(_talk(room, place))
    try:
        yield
    finally:
        talking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await talking


async def _talk(room: DemoRoom, place: Folder) -> None:
    async with sdk.connect(place) as client, client.join(DEMO_ROOM) as joined, asyncio.TaskGroup() as group:
        group.create_task(_skim(joined))
        while True:
            await asyncio.sleep(SAY_S)
            await client.publish(DEMO_ROOM, words(room.figures(), time.localtime()).encode())


async def _skim(room: Room) -> None:
    """Read and discard messages, so that the room has a member that keeps up."""
    async for _ in room.batches():
        pass


async def run(config: Config, folder: Folder, seconds: float | None, as_json: bool) -> int:
    """Publish, and print a line per second, until the time is over or a signal cancels this; then print the summary.

    Returns the exit code: 1 if a member missed a message.
    """
    room = DemoRoom(config.section("demo"))
    async with room.opened(folder), spoken(room, folder):
        try:
            async with asyncio.timeout(seconds):
                await show_lines(room, quiet=as_json)
        except (TimeoutError, asyncio.CancelledError) as end:
            figures = await room.finish()
            with verdict_after():
                summary(figures, as_json)
            if isinstance(end, asyncio.CancelledError):
                raise  # a signal is a normal end: exit code 0
            return 0 if figures.whole else 1
    return 0


async def show_lines(room: DemoRoom, quiet: bool) -> None:
    """Print one line per second, without end."""
    count = 0
    while True:
        await asyncio.sleep(1.0)
        if quiet:
            continue
        if count % HEADER_EVERY == 0:
            print("  ".join(f"{column:>10}" for column in COLUMNS))
        count += 1
        print(line(room.figures()), flush=True)


def line(figures: Figures) -> str:
    """Format the figures under `COLUMNS`."""
    cells = (getattr(figures, column) for column in COLUMNS)
    return "  ".join(f"{cell:>10.1f}" if isinstance(cell, float) else f"{cell:>10,}" for cell in cells)


def summary(figures: Figures, as_json: bool) -> None:
    """Print the summary on stdout."""
    if as_json:
        document = {**msgspec.to_builtins(figures), "whole": figures.whole}
        print(msgspec.json.encode(document).decode())
        return
    verdict = "every member got every message" if figures.whole else "MESSAGES ARE MISSING OR DUPLICATED"
    print(
        f"{figures.members} members, {figures.published:,} published, {figures.delivered:,} delivered, "
        f"{figures.repaired:,} repaired, {figures.lost:,} lost, {figures.repeated:,} repeated: {verdict}"
    )

"""The demo of `muster up --demo`: a checked load in a room of its own, and a line of text per second in the room
`demo`.

Members and one publisher of the load are compiled clients in a thread of this process, which check every delivery: a
member that misses a message, gets one twice or out of order is counted. Messages of other publishers are ignored. The
room `demo` is for people: `muster sub demo` shows the lines, and messages of other publishers.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from muster_server import _engines
from muster_server.control.cluster import instance, sdk
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.sdk import Room
from muster_server.control.config.options import Config
from muster_server.control.terminal.common import verdict_after
from muster_server.control.terminal.found import client_of
from muster_server.pyext.histogram import Histogram
from muster_server.systems.rooms.load import CONNECT_S, SOCKETS_MAX, check_joined, endpoints, unannounced
from muster_server.systems.rooms.system import DEMO_ROOM, LOAD_ROOM, Demo

STEP_S: Final = 0.1
"""The engine works for this long at a time: the figures are that old at most, and an end waits no longer."""
ENDLESS_S: Final = 1e8
RECEIVE_BYTES: Final = 1 << 20
SAY_S: Final = 1.0
"""Seconds between two lines in the room `demo`."""
SETTLE_S: Final = 5.0
COLUMNS: Final = ("seconds", "published", "delivered", "repaired", "lost", "p50_ms", "p99_ms")
HEADER_EVERY: Final = 20
"""Number of lines between two headers of the table."""
T = TypeVar("T")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts so far. `lost`: announced as gaps; after `finish`, also messages that never came. `repeated`: twice,
    out of order or with wrong content.
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
    latencies: Histogram = field(default_factory=lambda: Histogram(1, 60_000_000, 3))
    published: int = 0
    _told: Mapping[str, Any] = field(default_factory=dict)
    """The engine's last progress."""
    _began: float = 0.0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def opened(self, place: Folder) -> AsyncIterator["DemoRoom"]:
        """Join all members, then publish until `finish` or the end of the block. Raises `UserError`."""
        record, members = instance.find(place), self.options.members
        engine = _engines.LoadEngine(
            gateways=endpoints(record.gateways),
            proxies=endpoints(record.proxies),
            credential=client_of(record).token,
            members=members,
            rooms=[LOAD_ROOM],
            seed=secrets.randbits(60),
            recv_buffer=RECEIVE_BYTES,
            members_each=-(-members // SOCKETS_MAX),
        )
        joined = await _in_thread(engine.connect, CONNECT_S)
        check_joined(joined, members)
        self._began = time.monotonic()
        ended = asyncio.Event()
        working = asyncio.create_task(self._work(engine, ended))
        try:
            yield self
        finally:
            ended.set()
            await working

    async def finish(self) -> Figures:
        """Stop publishing, wait for messages in transit, and count missing ones as lost."""
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._complete.wait()
        figures = self.figures()
        missing = figures.published * figures.members - figures.delivered
        return msgspec.structs.replace(figures, lost=max(figures.lost, missing))

    def figures(self) -> Figures:
        """The account of all members so far."""
        p50, p99 = (float(us) / 1000 for us in self.latencies.percentiles([50.0, 99.0]))
        told = self._told
        return Figures(
            seconds=round(time.monotonic() - self._began, 3),
            members=self.options.members,
            published=self.published,
            delivered=told.get("delivered", 0),
            repaired=told.get("repaired", 0),
            lost=told.get("lost", 0),
            repeated=unannounced(told) + told.get("corrupted", 0),
            p50_ms=round(p50, 3),
            p99_ms=round(p99, 3),
        )

    async def _work(self, engine: _engines.LoadEngine, ended: asyncio.Event) -> None:
        """Have the engine publish and check, until `ended`."""
        options = self.options
        engine.schedule(options.payload_bytes, options.rate, ENDLESS_S, 0.0)
        while not ended.is_set():
            if self._complete.is_set():
                await _in_thread(engine.idle, STEP_S)
                continue
            if self._stop.is_set():
                engine.stop()
            told = await _in_thread(engine.advance, STEP_S)
            self._told, self.published = told, told["published"]
            self.latencies.record(np.frombuffer(told["latencies_us"], dtype="<u4").astype(np.uint64))
            if told["complete"]:
                self._complete.set()
        await _in_thread(engine.close)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Have the engine work in a thread. A cancelled task waits for its end, as no second call may come meanwhile."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


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

"""The demo of `muster up --demo`: a checked load in a room of its own, and a line of text per second in the room
`demo`.

Members and one publisher of the load are in this process, through the client library. Every payload has a mark, its
number and its time. So a member that misses a message, gets one twice or out of order is counted. Messages of other
publishers lack the mark and are ignored. The room `demo` is for people: `muster sub demo` shows the lines, and messages
of other publishers.
"""

import asyncio
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from muster_server.control.cluster import sdk
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.sdk import Client, Room
from muster_server.control.config.options import Config
from muster_server.control.terminal.common import verdict_after
from muster_server.pyext.histogram import Histogram
from muster_server.systems.rooms.system import DEMO_ROOM, LOAD_ROOM, Demo

HEADER: Final = struct.Struct("<8sQQ")
TICK_S: Final = 0.01
SAY_S: Final = 1.0
"""Seconds between two lines in the room `demo`."""
SETTLE_S: Final = 5.0
COLUMNS: Final = ("seconds", "published", "delivered", "repaired", "lost", "p50_ms", "p99_ms")
HEADER_EVERY: Final = 20
"""Number of lines between two headers of the table."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts so far. `lost`: announced as gaps or skipped; after `finish`, also messages that never came."""

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
class Member:
    """One member's account."""

    client: Client
    room: Room
    expected: int = 0
    delivered: int = 0
    skipped: int = 0
    repeated: int = 0


@dataclass(slots=True)
class DemoRoom:
    """Owns the sessions while `opened`."""

    options: Demo
    members: list[Member] = field(default_factory=list)
    published: int = 0
    latencies: Histogram = field(default_factory=lambda: Histogram(1, 60_000_000, 3))
    _mark: bytes = field(default_factory=lambda: secrets.token_bytes(8))
    _began: float = 0.0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def opened(self, place: Folder) -> AsyncIterator["DemoRoom"]:
        """Join all members, then publish until `finish` or the end of the block."""
        async with contextlib.AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(sdk.connect(place, reads=False))
            for _ in range(self.options.members):
                client = await stack.enter_async_context(sdk.connect(place, publishes=False))
                room = await stack.enter_async_context(client.join(LOAD_ROOM))
                self.members.append(Member(client, room))
            self._began = time.monotonic()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._read(member)) for member in self.members]
                    tasks.append(group.create_task(self._publish(publisher)))
                    try:
                        yield self
                    finally:
                        self._stop.set()
                        for task in tasks:
                            task.cancel()
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

    async def finish(self) -> Figures:
        """Stop publishing, wait for messages in transit, and count missing ones as lost."""
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(member.expected < self.published for member in self.members):  # noqa: ASYNC110
                    await asyncio.sleep(TICK_S)
        figures = self.figures()
        never = sum(self.published - member.expected for member in self.members)
        return msgspec.structs.replace(figures, lost=figures.lost + never)

    def figures(self) -> Figures:
        """The account of all members so far."""
        p50, p99 = (float(us) / 1000 for us in self.latencies.percentiles([50.0, 99.0]))
        return Figures(
            seconds=round(time.monotonic() - self._began, 3),
            members=len(self.members),
            published=self.published,
            delivered=sum(member.delivered for member in self.members),
            repaired=sum(int(member.client.stats().get("repaired", 0)) for member in self.members),
            lost=sum(member.skipped for member in self.members),
            repeated=sum(member.repeated for member in self.members),
            p50_ms=round(p50, 3),
            p99_ms=round(p99, 3),
        )

    async def _publish(self, client: Client) -> None:
        padding = bytes(self.options.payload_bytes - HEADER.size)
        start = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - start) * self.options.rate) + 1
            while self.published < due and not self._stop.is_set():
                payload = HEADER.pack(self._mark, self.published, time.monotonic_ns()) + padding
                if not client.publish_nowait(LOAD_ROOM, payload):
                    await client.publish(LOAD_ROOM, payload)
                self.published += 1
            await asyncio.sleep(TICK_S)

    async def _read(self, member: Member) -> None:
        async for batch in member.room.batches():
            now, took = time.monotonic_ns(), []
            for item in batch:
                if not sdk.is_message(item) or not item.data.startswith(self._mark):
                    continue  # the numbers show what a gap removes
                _, number, sent = HEADER.unpack_from(item.data)
                if number < member.expected:
                    member.repeated += 1
                    continue
                member.skipped += number - member.expected
                member.expected = number + 1
                member.delivered += 1
                took.append((now - sent) // 1000)
            self.latencies.record(np.array(took, dtype=np.uint64))


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

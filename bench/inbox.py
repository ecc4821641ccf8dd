"""Inboxes: entries a second, from POST to an event stream, a page of 50, and a broadcast to thousands of streams.

A whole instance with SQLite, which syncs before it answers; the driver is this process. Owns the loads and the goals of
SITE-4.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop

from bench import whole
from bench.child import private_directory
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster.errors import Unavailable
from muster.inbox import AsyncInbox
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS

GOAL: Final = "SITE-4"
ENTRIES_S, STREAM_P99_MS, PAGE_P99_MS, TOLD_S = 5_000.0, 100.0, 20.0, 2.0
USERS: Final = 1_000
"""Users of one request."""
REQUESTS, REQUESTS_QUICK = 30, 5
AT_ONCE: Final = 4
PROBES, PROBES_QUICK = 200, 50
PROBE_S: Final = 0.02
HELD, HELD_QUICK = 10_000, 1_000
BROADCASTS: Final = 50
PAGES, PAGES_QUICK = 300, 50
CONNECTED, CONNECTED_QUICK = 10_000, 500
OPENING: Final = 100
"""Streams that are opened at once."""
TOLD: Final = 3
DONE_S: Final = 60.0
RATE: Final = "1000000"
SETTINGS: Final = {
    "MUSTER_HTTP__MESSAGES_RATE": RATE,
    "MUSTER_HTTP__REQUESTS_RATE": RATE,
    "MUSTER_HTTP__STREAMS_MAX": "10100",
    "MUSTER_HTTP__CONNECTIONS_MAX": "10200",
}
SCOPES: Final = ("notify:*", "broadcast:*", "inbox:*")


class Site:
    """A running instance, and the driver's key."""

    def __init__(self, folder: Folder) -> None:
        record = instance.find(folder)
        self.host, self.port = next(each.bind for each in record.processes if each.role == "http" and each.bind)
        self.url = f"http://{self.host}:{self.port}"
        known = {scope.partition(":")[0]: "" for scope in SCOPES}
        _, self.key = keys.create(folder.path / KEYS, "driver", SCOPES, known)
        self.users = itertools.count(1_000_000, USERS)
        """Each round has users of its own."""

    def inbox(self) -> AsyncInbox:
        """A program."""
        return AsyncInbox(self.url, key=self.key, connections=AT_ONCE)


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All of it. Raises `ChildFailedError`."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(private_directory("inbox")))
        site = Site(stack.enter_context(whole.running(place, "inbox,http", SETTINGS)))
        held = HELD_QUICK if quick else HELD
        uvloop.run(_fill(site, held))
        entries = [
            Entry("batches", partial(_measure, _batches, site, REQUESTS_QUICK if quick else REQUESTS)),
            Entry("stream", partial(_measure, _stream, site, PROBES_QUICK if quick else PROBES)),
            Entry("page", partial(_measure, _pages, site, PAGES_QUICK if quick else PAGES)),
            Entry("broadcast", partial(_measure, _broadcasts, site, CONNECTED_QUICK if quick else CONNECTED)),
        ]
        results = interleave(entries, rounds, progress)
    return tuple(_cases(results, quick=quick))


def _measure(work: Any, site: Site, count: int) -> Sample:
    return Sample(uvloop.run(work(site, count)))


async def _fill(site: Site, held: int) -> None:
    """The inbox of user 7: entries of some kinds, and broadcasts."""
    async with site.inbox() as program:
        async with asyncio.timeout(DONE_S):
            while not await _serves(program):  # noqa: ASYNC110 - what is asked is a server
                await asyncio.sleep(0.1)
        for number in range(BROADCASTS):
            await program.broadcast("all", "news", {"number": number, "text": "x" * 200})
        places = asyncio.Semaphore(AT_ONCE * 16)

        async def put(number: int) -> None:
            async with places:
                await program.notify(7, ("like", "reply", "follow")[number % 3], {"number": number, "text": "x" * 100})

        await asyncio.gather(*map(put, range(held)))


async def _serves(program: AsyncInbox) -> bool:
    try:
        await program.counts(7)
    except Unavailable:
        return False
    return True


async def _batches(site: Site, requests: int) -> dict[str, float]:
    """Each request has an entry for a thousand users; four requests at once."""
    async with site.inbox() as program:
        firsts = [next(site.users) for _ in range(requests)]
        began = time.perf_counter()

        async def put(first: int) -> None:
            said = await program.notify(range(first, first + USERS), "like", {"text": "x" * 100}, id="one")
            assert all(each.outcome == "new" for each in said)

        await asyncio.gather(*map(put, firsts))
        return {"entries a second": requests * USERS / (time.perf_counter() - began)}


async def _stream(site: Site, probes: int) -> dict[str, float]:
    """One entry after another, from before its POST to the stream of its user."""
    user = next(site.users)
    reader = await Reader.open(site, user)
    late: list[float] = []
    try:
        async with site.inbox() as program:
            await program.notify(user, "like", "first")
            await reader.until('"first"')
            for number in range(probes):
                began = time.perf_counter()
                heard = asyncio.create_task(reader.until(f'"probe {number}"'))
                await program.notify(user, "like", f"probe {number}")
                late.append((await heard - began) * 1_000)
                await asyncio.sleep(PROBE_S)
    finally:
        reader.close()
    return {"POST to stream, p50 ms": float(np.percentile(late, 50)), "p99 ms": float(np.percentile(late, 99))}


async def _pages(site: Site, pages: int) -> dict[str, float]:
    """The newest page of a full inbox, and those behind it."""
    times: list[float] = []
    async with site.inbox() as program:
        before = None
        for _ in range(pages):
            began = time.perf_counter()
            page = await program.page(7, before=before, limit=50)
            times.append((time.perf_counter() - began) * 1_000)
            assert page.entries
            before = page.next
    return {"page of 50, p50 ms": float(np.percentile(times, 50)), "p99 ms": float(np.percentile(times, 99))}


async def _broadcasts(site: Site, connected: int) -> dict[str, float]:
    """One broadcast to the streams of all users, until the last of them has it."""
    first = 10_000_000
    readers: list[Reader] = []
    try:
        for at in range(0, connected, OPENING):
            users = range(first + at, first + min(at + OPENING, connected))
            readers += await asyncio.gather(*(Reader.open(site, user) for user in users))
        worst = 0.0
        async with site.inbox() as program:
            for number in range(-1, TOLD):
                text = f"told {number} {time.monotonic_ns()}"
                heard = [asyncio.create_task(reader.until(text)) for reader in readers]
                await asyncio.sleep(0)
                began = time.perf_counter()
                await program.broadcast("all", "told", text)
                last = max(await asyncio.gather(*heard)) - began
                if number >= 0:  # the first one waits until each stream knows its place
                    worst = max(worst, last)
    finally:
        for reader in readers:
            reader.close()
    return {"told, s": worst, "streams": float(connected)}


class Reader(asyncio.Protocol):
    """An event stream, in which texts are looked for."""

    def __init__(self) -> None:
        self._wanted = b""
        self._heard: asyncio.Future[float] | None = None
        self._text = b""
        self._transport: asyncio.Transport | None = None
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, site: Site, user: int) -> "Reader":
        """Open the stream of a user, and read its head. Raises `TimeoutError`, `ConnectionError`."""
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(cls, site.host, site.port)
        assert reader._transport is not None
        head = f"GET /api/v1/inbox?user={user} HTTP/1.1\r\nhost: {site.host}\r\nx-api-key: {site.key}\r\n"
        reader._transport.write((head + "accept: text/event-stream\r\n\r\n").encode())
        async with asyncio.timeout(DONE_S):
            await reader._open
        return reader

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def until(self, text: str) -> float:
        """The time at which this text came. Raises `TimeoutError`."""
        self._wanted = text.encode()
        self._heard = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(DONE_S):
            return await self._heard

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol`."""
        if not self._open.done():
            if b" 200 " in data[:20]:
                self._open.set_result(None)
            else:
                self._open.set_exception(ConnectionError(data[:200].decode(errors="replace")))
        self._text = self._text[-256:] + data
        if self._heard is not None and not self._heard.done() and self._wanted in self._text:
            self._heard.set_result(time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        """As `asyncio.Protocol`."""
        for each in (self._open, self._heard):
            if each is not None and not each.done():
                each.set_exception(ConnectionError(f"the stream ended: {error}"))


def _cases(results: Results, *, quick: bool) -> Iterator[Case]:
    goals = {
        "batches": ("batches", {"entries a second": Goal(GOAL, ">=", ENTRIES_S)}),
        "stream": ("stream", {"p99 ms": Goal(GOAL, "<=", STREAM_P99_MS)}),
        "page": ("page", {"p99 ms": Goal(GOAL, "<=", PAGE_P99_MS)}),
        "broadcast": ("broadcast", {"told, s": Goal(GOAL, "<=", TOLD_S)}),
    }
    for entry, (title, of) in goals.items():
        yield from Case.judged(results, entry, title, of, quick=quick)

"""An edge beside Centrifugo, uWebSockets and Nchan: one publisher to 100 and 1,000 sessions, saturated and paced.

Centrifugo and the edge get the same bytes of the same driver, in both encodings; the other two get each message in a
frame of its own. Each server is on the servers' core. What counts is CPU of all server processes for a delivery, the
time of the median delivery, and the memory of idle sessions; every delivery is counted.
"""

import asyncio
import itertools
import statistics
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import uvloop

from bench import edge_servers, pin
from bench.child import ChildFailedError
from bench.edge_servers import CENTRIFUGO, NCHAN, UWEBSOCKETS, Server
from bench.edge_sessions import CENTRIFUGE, Encoding, Session, opened, payload, publish
from bench.null.sockets import allow_files
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave

FANOUTS: Final = (100, 1_000)
DELIVERIES_PER_S: Final = 50_000
SECONDS, SECONDS_QUICK = 3.0, 1.0
INTERVAL_MS, INTERVAL_RATE = 10, 100_000
WINDOW: Final = 256
"""Messages of a saturated run that are published and not yet delivered to the first session."""
IDLE, IDLE_QUICK = 4_000, 1_000
LATE: Final = 0.9
"""A paced run that published less than this share means nothing."""
DRAIN_S: Final = 10.0
NS, P50, BYTES = "server CPU ns a delivery", "p50 us", "bytes an idle session"
GOALS: Final[Mapping[tuple[str, str, str], Goal]] = {
    (CENTRIFUGO, "saturated", NS): Goal("PF-32", "<=", 0.20),
    (CENTRIFUGO, "paced", NS): Goal("PF-33", "<=", 0.65),
    (CENTRIFUGO, "paced", P50): Goal("PF-33", "<=", 0.7),
    (UWEBSOCKETS, "saturated", NS): Goal("PF-32", "<=", 0.7),
    (UWEBSOCKETS, "paced", NS): Goal("PF-33", "<=", 1.2),
    (UWEBSOCKETS, "paced", P50): Goal("PF-33", "<=", 1.2),
    (NCHAN, "saturated", NS): Goal("PF-32", "<=", 0.15),
    (NCHAN, "paced", NS): Goal("PF-33", "<=", 0.8),
}
"""Bounds of a figure over that of a peer."""
INTERVAL: Final = Goal("PF-33", "<=", 0.35)
"""Bound of a delivery's CPU with a write interval over that without one."""
MEMORY: Final = Goal("PF-42", "<=", 1024)
_channels = itertools.count()


@dataclass(frozen=True)
class Load:
    """One run: how many sessions, how they are encoded, and how fast it goes."""

    kind: str
    fanout: int
    encoding: Encoding
    rate: int = DELIVERIES_PER_S
    """Deliveries a second of a paced run."""

    def __str__(self) -> str:
        rate = "" if self.rate == DELIVERIES_PER_S else f" {self.rate:,}/s"
        return f"{self.kind}{rate} x{self.fanout:,} {self.encoding}"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """All servers at once, all loads in turn."""
    seconds = SECONDS_QUICK if quick else SECONDS
    fanouts = FANOUTS[:1] if quick else FANOUTS
    loads = [(kind, fanout) for kind in ("saturated", "paced") for fanout in fanouts]
    allow_files(IDLE + 1_000)
    with ExitStack() as stack:
        own = edge_servers.muster(stack)
        servers = [own, *(peer for start in edge_servers.PEERS if (peer := start(stack)) is not None)]
        entries = [
            _entry(f"{load}, {server.name}", partial(_sample, server, load, payload_bytes, seconds))
            for kind, fanout in loads
            for server in servers
            for load in (Load(kind, fanout, encoding) for encoding in server.encodings)
        ]
        fast = Load("paced", FANOUTS[0], "protobuf", INTERVAL_RATE)
        slow = edge_servers.muster(stack, interval_ms=INTERVAL_MS)
        entries += [
            _entry(f"{fast}, {server.name}", partial(_sample, server, fast, payload_bytes, seconds))
            for server in (own, slow)
        ]
        idle = IDLE_QUICK if quick else IDLE
        entries += [_entry(f"idle, {server.name}", partial(_idle, server, idle)) for server in servers]
        return tuple(_cases(interleave(entries, rounds, progress), quick))


def _entry(name: str, measure: Callable[[], Coroutine[Any, Any, Sample]]) -> Entry:
    def once() -> Sample:
        with pin.on(pin.DRIVER_CORE):
            return uvloop.run(measure())

    return Entry(name, once)


async def _sample(server: Server, load: Load, payload_bytes: int, seconds: float) -> Sample:
    channel, times = f"bench{next(_channels)}", array("Q")
    sessions = await opened(server.port, load.encoding, channel, load.fanout, times, path=server.path)
    (publisher,) = await opened(server.port, load.encoding, channel, 1, path=server.path, publishes=True)
    try:
        send = _Publisher(publisher, load.encoding, channel, payload_bytes)
        send.one()  # what is made at the first message is made
        await _delivered(server, sessions, send)
        del times[:]
        before, began = server.cpu_ns(), time.monotonic()
        if load.kind == "saturated":
            while time.monotonic() < began + seconds:
                await _window(sessions[0], send)
        else:
            await _paced(send, began, seconds, load.rate / load.fanout)
        await _delivered(server, sessions, send)
        published = send.taken - 1
        used = server.cpu_ns() - before
    finally:
        for session in (*sessions, publisher):
            session.transport.abort()
    wanted = load.rate / load.fanout * seconds
    late = load.kind == "paced" and published < LATE * wanted
    figures = {NS: used / (published * load.fanout), P50: statistics.median(times) / 1e3 if times else 0.0}
    return Sample(figures, f"only {published} of {wanted:.0f} messages were published in time" if late else "")


class _Publisher:
    """Publishes on one session, without waiting for answers."""

    def __init__(self, session: Session, encoding: Encoding, channel: str, size: int) -> None:
        self._session, self._encoding, self._channel, self._size = session, encoding, channel, size
        self.count = 0

    @property
    def taken(self) -> int:
        """Messages that the server took, as far as is known: those behind its credit are refused."""
        return self.count - self._session.refused

    def one(self) -> None:
        """One more message."""
        self.count += 1
        data = payload(self._size)
        self._session.transport.write(publish(self._encoding, 10 + self.count, self._channel, data))


async def _window(reader: Session, send: _Publisher) -> None:
    """Fill the window, and wait for more room in it."""
    while send.taken - reader.deliveries < WINDOW:
        send.one()
    reader.heard.clear()
    async with asyncio.timeout(DRAIN_S):
        await reader.heard.wait()


async def _paced(send: _Publisher, began: float, seconds: float, rate: float) -> None:
    """Publish at this rate, each message at its time."""
    first = send.count
    while (at := began + (send.count - first) / rate) < began + seconds:
        if (left := at - time.monotonic()) > 0:
            await asyncio.sleep(left)
        if time.monotonic() > began + 2 * seconds:
            return
        send.one()


async def _delivered(server: Server, sessions: list[Session], send: _Publisher) -> None:
    """Return once every session has all of them. Raises `ChildFailedError` if some are missing."""
    try:
        async with asyncio.timeout(DRAIN_S):
            for session in sessions:
                while session.deliveries < send.taken and not session.closed:
                    session.heard.clear()
                    await session.heard.wait()
    except TimeoutError:
        pass
    missing = sum(send.taken - session.deliveries for session in sessions)
    if missing:
        raise ChildFailedError(f"{server.name}: {missing} deliveries are missing, or came twice")


async def _idle(server: Server, count: int) -> Sample:
    """Memory that sessions in one room add to the first quarter of them, whose tables have grown already."""
    channel, base = f"bench{next(_channels)}", count // 4
    encoding = server.encodings[0]
    sessions = await opened(server.port, encoding, channel, base, path=server.path)
    before = server.rss_bytes()
    try:
        sessions += await opened(server.port, encoding, channel, count - base, path=server.path)
        return Sample({BYTES: max(0, server.rss_bytes() - before) / (count - base)})
    finally:
        for session in sessions:
            session.transport.abort()


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    """Each load of the edge beside that of each peer that was there."""
    for entry in results.samples:
        load, _, name = entry.rpartition(", ")
        if name != edge_servers.MUSTER:
            continue
        for figure in results.figures(entry):
            series = results.series(entry, figure)
            if figure == BYTES:
                yield Case.limit(f"{load}: {figure}", series, MEMORY, quick=quick)
            yield from _beside(results, load, figure, series, quick)


def _beside(results: Results, load: str, figure: str, series: Series, quick: bool) -> Iterator[Case]:
    kind, alone = load.partition(" ")[0], True
    for peer in (CENTRIFUGO, UWEBSOCKETS, NCHAN):
        theirs = next((each for each in _forms(load, peer) if each in results.samples), None)
        if theirs is not None:
            title, goal = f"{load}: {figure}, over {peer}", GOALS.get((peer, kind, figure))
            yield Case.compared(title, series, results.series(theirs, figure), goal, quick=quick)
            alone = False
    waits = f"{load}, {edge_servers.WAITS}"
    if waits in results.samples:
        title, theirs_series = (
            f"{load}: {figure}, with a write interval of {INTERVAL_MS} ms",
            results.series(waits, figure),
        )
        goal = INTERVAL if figure == NS else None
        yield Case.compared(f"{title}, over none", theirs_series, series, goal, quick=quick)
        alone = False
    if alone and figure != BYTES:
        yield Case.plain(f"{load}: {figure}", series)


def _forms(load: str, peer: str) -> Iterator[str]:
    """The names that a peer's run beside this load may have: in the same encoding, or raw."""
    yield f"{load}, {peer}"
    for encoding in CENTRIFUGE:
        if load.endswith(f" {encoding}"):
            yield f"{load.removesuffix(encoding)}raw, {peer}"

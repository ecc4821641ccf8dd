"""The cost of a sealed publish at a proxy: against a bare drain, against uvloop, and against decryption alone.

PF-2: the same datagrams of real sessions, each from its sender's own socket, go three ways. `recvmmsg` drains them into
the proxy's machine (open, window, frames, route, but not the sending on); a bare `recvmmsg` drains them; and a uvloop
protocol parses them in Python without opening them. Printed beside them: the sum of the drain and of opening one after
the other, the least cost without prefetched keys. PF-3: the machine alone against opening the same packets with the
same keys in the same order. All figures are CPU ns of the thread per packet.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench import pin
from bench.null import _null
from bench.null.sockets import allow_files
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave
from muster_server._engines import FeedEngine

SENDERS = (100, 10_000)
PACKETS = 2048  # at a time: half of a receive buffer of 4 MiB
TIMES = 4
TAKE, DRAIN, UVLOOP, OPEN, MACHINE = "take", "recvmmsg drain", "uvloop + Python", "open alone", "machine"
DRAIN_AND_OPEN = "recvmmsg drain, then open alone"
BOUNDS = {100: 1.35, 10_000: 1.6}  # PF-2
PYTHON_BOUND, OPEN_BOUND = 0.4, 1.5


def run(*, rounds: int, quick: bool, datagram_bytes: int = 256, progress: Progress = silent) -> tuple[Case, ...]:
    """One entry per number of senders. All its figures use the same packets."""
    times = 2 if quick else TIMES
    with ExitStack() as stack:
        stack.enter_context(pin.on(pin.DRIVER_CORE))
        entries = [_entry(stack, senders, datagram_bytes, times) for senders in SENDERS]
        results = interleave(entries, rounds, progress)
    cases: list[Case] = []
    for senders in SENDERS:
        name = f"{senders:,} senders"

        def compared(title: str, mine: str, theirs: str, goal: Goal | None, name: str = name) -> None:
            one, other = results.series(name, mine), results.series(name, theirs)
            cases.append(Case.compared(f"{name}: {title}", one, other, goal, quick=quick))

        compared("receive to route over a bare drain", TAKE, DRAIN, Goal("PF-2", "<=", BOUNDS[senders]))
        compared("drain, then open, over a bare drain", DRAIN_AND_OPEN, DRAIN, None)
        compared("receive to route over uvloop + Python", TAKE, UVLOOP, Goal("PF-2", "<=", PYTHON_BOUND))
        judged = Goal("PF-3", "<=", OPEN_BOUND) if senders == SENDERS[-1] else None
        compared("user-space work over opening alone", MACHINE, OPEN, judged)
    return tuple(cases)


def _entry(stack: ExitStack, senders: int, datagram_bytes: int, times: int) -> Entry:
    allow_files(senders + 256)
    feed = FeedEngine(senders=senders, datagram_bytes=datagram_bytes, seed=senders, sockets=True)
    python = _Python(feed.sink())
    stack.callback(python.close)
    order: list[tuple[str, Callable[[], int]]] = [
        (TAKE, feed.receive),
        (DRAIN, lambda: _null.drain(feed.sink())[0]),
        (UVLOOP, python.drain),
    ]

    def once() -> Sample:
        used = dict.fromkeys((TAKE, DRAIN, UVLOOP, OPEN, MACHINE), 0)
        packets = 0
        for _ in range(times):
            count = feed.prepare(PACKETS)
            packets += count
            order.append(order.pop(0))
            for name, drain in order:
                python.expect(feed.send())
                used[name] += _timed(name, drain, count)
            feed.settle()
            count = feed.prepare(PACKETS)
            for name, work in ((OPEN, feed.open), (MACHINE, feed.machine)):
                feed.load()
                used[name] += _timed(name, work, count)
            feed.settle()
        used[DRAIN_AND_OPEN] = used[DRAIN] + used[OPEN]
        return Sample({name: ns / packets for name, ns in used.items()})

    return Entry(f"{senders:,} senders", once)


def _timed(name: str, work: Callable[[], int], expected: int) -> int:
    before = time.thread_time_ns()
    done = work()
    used = time.thread_time_ns() - before
    if done != expected:
        raise OSError(f"{name}: {done} of {expected} packets")
    return used


# ---------------------------------------------------------------- what one would write in Python

HEADER = struct.Struct("!BBHQIQI")
FRAME = struct.Struct("!BHIQ")


@dataclass
class _Session:
    highest: int = 0
    seen: set[int] = field(default_factory=set)
    queue: list[bytes] = field(default_factory=list)


class _Parser(asyncio.DatagramProtocol):
    """Parses header, session, replay check and one frame's fields, and queues for the owner. Decrypts nothing."""

    def __init__(self) -> None:
        self.sessions: dict[int, _Session] = {}
        self.left = 0
        self.done: Callable[[], None] = lambda: None

    def datagram_received(self, data: bytes, addr: object) -> None:
        _kind, _key, _flags, connection, _epoch, sequence, _placement = HEADER.unpack_from(data)
        session = self.sessions.get(connection)
        if session is None:
            session = self.sessions[connection] = _Session()
        if sequence not in session.seen:
            session.seen.add(sequence)
            session.highest = max(session.highest, sequence)
            if len(session.seen) > 1024:
                session.seen = {kept for kept in session.seen if kept > session.highest - 1024}
        _frame, _length, _handle, _first = FRAME.unpack_from(data, HEADER.size)
        session.queue.append(data[HEADER.size + FRAME.size : -16])
        if len(session.queue) >= 64:
            session.queue.clear()
        self.left -= 1
        if self.left == 0:
            self.done()


class _Python:
    """A uvloop of its own over a copy of the sink's descriptor, watched only while it drains."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = uvloop.new_event_loop()
        self._parser = _Parser()
        self._expected = 0

    def expect(self, count: int) -> None:
        self._expected = count

    def drain(self) -> int:
        return self._loop.run_until_complete(self._drain())

    async def _drain(self) -> int:
        parser, finished = self._parser, asyncio.Event()
        parser.left, parser.done = self._expected, finished.set
        sock = socket.fromfd(self._fd, socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        transport, _ = await self._loop.create_datagram_endpoint(lambda: parser, sock=sock)
        with contextlib.closing(cast(asyncio.DatagramTransport, transport)), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await finished.wait()
        return self._expected - parser.left

    def close(self) -> None:
        self._loop.close()

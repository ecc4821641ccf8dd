"""What single clients of an edge get: answers to subscribe, a slow neighbour, TLS, the return after a death, and programs.

Muster alone, on the servers' core. Each figure is beside that of the same run without its cause, or beside its bound.
"""

import asyncio
import itertools
import os
import resource
import signal
import socket
import subprocess
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop

import muster
from bench import cpu, edge_servers, pin
from bench.child import ChildFailedError, private_directory
from bench.edge_servers import SETTINGS, Server
from bench.edge_sessions import Session, opened, payload, publish
from bench.muster import Instance
from bench.null.sockets import allow_files
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.control.load.generator import Share
from muster_server.systems.edge import wire
from muster_server.systems.edge.load import EdgeGenerator, EdgeLoad
from muster_server.systems.edge.wire import PATH, Encodings

ENCODING: Final[wire.Encoding] = "protobuf"
ROOMS, ROOMS_QUICK = 500, 100
"""Rooms that one client subscribes to, one after the other: new ones, and ones that are at the edge."""
MEMBERS, MEMBERS_QUICK = 1_000, 200
RATE: Final = 50
"""Messages a second beside a slow reader."""
SECONDS, SECONDS_QUICK = 4.0, 2.0
SLOW_BYTES_PER_S: Final = 1_000
SLOW_READERS: Final = 64
"""Readers that read nothing, by which the memory of one is found."""
BATCH: Final = 32
SLOW_MESSAGES: Final = 4_000
"""Messages of 1 KB for them: more than what both kernels take for one."""
IDLE, IDLE_QUICK = 4_000, 500
BACK, BACK_QUICK = 20_000, 1_000
FILES_SPARE: Final = 1_500
"""Open files beside those of clients. Fewer clients come back where a process may not have that many."""
BACK_ROOMS: Final = 200
BACK_RATE: Final = 10.0
BACK_S: Final = 240.0
CHAIN_MEMBERS: Final = 100
CHAIN_RATE: Final = 500
BUFFER_BYTES: Final = 4_096
PATIENCE_S: Final = 30.0
HERE, NEW = "reply p99 ms, a room that is here", "reply p99 ms, a new room"
P99, CPU_EACH, MEMORY = "p99 ms of the others", "server CPU ns a delivery", "bytes of a reader that reads nothing"
TLS: Final = "bytes an idle session with TLS"
SECONDS_BACK, LOST, TWICE = "seconds until all are back", "lost and not announced, or out of order", "announced as lost"
EDGE, GATEWAY = "edge CPU ns a delivery", "gateway CPU ns a delivery"
GOALS: Final = {
    HERE: Goal("PF-43", "<=", 5),
    NEW: Goal("PF-43", "<=", 100),
    MEMORY: Goal("PF-44", "<=", 65_536),
    TLS: Goal("PF-42", "<=", 9_216),
    SECONDS_BACK: Goal("PF-45", "<=", 60),
    LOST: Goal("PF-45", "<=", 0),
}
NEIGHBOUR: Final = Goal("PF-44", "<=", 1.1)
CHAIN: Final = Goal("PF-46", "<=", 1.3)
_rooms = itertools.count()


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All of them in turn; the return of many clients once."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - FILES_SPARE
    back = min(BACK_QUICK if quick else BACK, most)
    allow_files(max(back, MEMBERS, IDLE) + FILES_SPARE)
    seconds, members = (SECONDS_QUICK, MEMBERS_QUICK) if quick else (SECONDS, MEMBERS)
    with ExitStack() as stack:
        instance = Instance(
            settings={**SETTINGS, "edge.user_rooms_max": 100_000, "rooms.default_rights": "read,publish"}
        )
        stack.callback(instance.stop)
        instance.start()
        server = _server(instance)
        folder = Path(stack.enter_context(private_directory("certificate")))
        certificate(folder)
        secure = edge_servers.muster(stack, tls=folder)
        entries = [
            _entry("subscribe", partial(_subscribes, server, ROOMS_QUICK if quick else ROOMS)),
            _entry("none is slow", partial(_beside, server, members, seconds, slow=False)),
            _entry("one is slow", partial(_beside, server, members, seconds, slow=True)),
            _entry("blocked", partial(_blocked, server)),
            _entry("idle", partial(_idle, secure, IDLE_QUICK if quick else IDLE)),
            _entry("by an edge", partial(_by_edge, instance, server, seconds)),
            Entry("by a gateway", partial(_by_gateway, instance, seconds)),
        ]
        results = interleave(entries, rounds, progress)
        once = interleave([_entry("death", partial(_death, secure, folder, back))], 1, progress)
        return (
            *_cases(results, quick),
            *Case.judged(once, "death", f"the edge of {back:,} clients is killed", GOALS, quick=quick),
        )


def certificate(folder: Path) -> None:
    """`server.pem` and `server.key` for 127.0.0.1, made by the program openssl."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", *files],
        check=True,
        capture_output=True,
    )


def _server(instance: Instance) -> Server:
    bind = next(each.bind for each in instance.record.processes if each.role == "edge")
    assert isinstance(bind, tuple)
    edge = instance.pids["edge"]
    return Server(edge_servers.MUSTER, bind[1], lambda: sum(instance.cpu_ns().values()), lambda: cpu.rss_bytes(edge))


def _entry(name: str, measure: Callable[[], Coroutine[Any, Any, Sample]]) -> Entry:
    def once() -> Sample:
        with pin.on(pin.DRIVER_CORE):
            return uvloop.run(measure())

    return Entry(name, once)


def _room() -> str:
    return f"bench-clients-{next(_rooms)}"


# ---------------------------------------------------------------- answers to subscribe


async def _subscribes(server: Server, rooms: int) -> Sample:
    """One client makes the rooms, another one comes to each of them."""
    (first,) = await opened(server.port, ENCODING, _room(), 1, path=server.path, publishes=True)
    (second,) = await opened(server.port, ENCODING, _room(), 1, path=server.path, publishes=True)
    try:
        names = [_room() for _ in range(rooms)]
        new = [await _subscribed(first, 10 + number, name) for number, name in enumerate(names)]
        here = [await _subscribed(second, 10 + number, name) for number, name in enumerate(names)]
    finally:
        first.transport.abort()
        second.transport.abort()
    return Sample({HERE: float(np.percentile(here, 99)) * 1e3, NEW: float(np.percentile(new, 99)) * 1e3})


async def _subscribed(session: Session, number: int, room: str) -> float:
    began = time.monotonic()
    wanted = b"\x08" + _varint(number)
    await session.ask(wire.subscribe(ENCODING, number, room, recoverable=False), wanted)
    return time.monotonic() - began


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


# ---------------------------------------------------------------- a slow neighbour


async def _beside(server: Server, members: int, seconds: float, *, slow: bool) -> Sample:
    """A room of many, of which one reads 1 KB a second, or none does. All others are timed."""
    room, times = _room(), array("Q")
    sessions = await opened(server.port, ENCODING, room, members - 1, path=server.path)
    for session in sessions:
        session.times = times
    (publisher,) = await opened(server.port, ENCODING, room, 1, path=server.path, publishes=True)
    task: asyncio.Task[None] | None = None
    if slow:
        task = asyncio.create_task(_reads_slowly(await _reader(server, room)))
    try:
        before, began, count = server.cpu_ns(), time.monotonic(), int(RATE * seconds)
        for number in range(count):
            if (left := began + number / RATE - time.monotonic()) > 0:
                await asyncio.sleep(left)
            publisher.transport.write(publish(ENCODING, 10 + number, room, payload(200)))
        await _all_have(sessions, count)
        used = server.cpu_ns() - before
    finally:
        if task is not None:
            task.cancel()
        for session in (*sessions, publisher):
            session.transport.abort()
    late = time.monotonic() - began > 1.5 * seconds + 1
    figures = {P99: float(np.percentile(times, 99)) / 1e6, CPU_EACH: used / (count * len(sessions))}
    return Sample(figures, "the messages were not published in time" if late else "")


async def _reader(server: Server, room: str) -> socket.socket:
    """A subscribed client that reads its socket by hand."""
    loop, reader = asyncio.get_running_loop(), socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    reader.setblocking(False)
    await loop.sock_connect(reader, ("127.0.0.1", server.port))
    for request, wanted in (
        (wire.upgrade(f"127.0.0.1:{server.port}", ENCODING, PATH), b"\r\n\r\n"),
        (wire.connect(ENCODING, 1), b"\x08\x01"),
        (wire.subscribe(ENCODING, 2, room, recoverable=False), b"\x08\x02"),
    ):
        await loop.sock_sendall(reader, request)
        found = b""
        while wanted not in found:
            found += await loop.sock_recv(reader, BUFFER_BYTES)
    return reader


async def _reads_slowly(reader: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with reader:
        while True:
            await asyncio.sleep(0.1)
            await loop.sock_recv(reader, SLOW_BYTES_PER_S // 10)


async def _all_have(sessions: list[Session], count: int) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            for session in sessions:
                while session.deliveries < count and not session.closed:
                    session.heard.clear()
                    await session.heard.wait()
    except TimeoutError:
        pass
    missing = sum(count - session.deliveries for session in sessions)
    if missing:
        raise ChildFailedError(f"{missing} deliveries are missing, or came twice")


async def _blocked(server: Server) -> Sample:
    """Memory of the edge for readers that read nothing while a room goes on."""
    room = _room()
    (witness,) = await opened(server.port, ENCODING, room, 1, path=server.path)
    (publisher,) = await opened(server.port, ENCODING, room, 1, path=server.path, publishes=True)
    sent = 0

    async def publishes(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            request = publish(ENCODING, 10 + sent, room, payload(1_000))
            if sent % BATCH:
                publisher.transport.write(request)
            else:  # an edge takes no more than it may without the owner's acknowledgement
                await publisher.ask(request, b"\x08" + _varint(10 + sent))
        await _all_have([witness], sent)

    readers: list[socket.socket] = []
    try:
        await publishes(SLOW_MESSAGES)  # the room's ring is full from now on
        readers = [await _reader(server, room) for _ in range(SLOW_READERS)]
        before = server.rss_bytes()
        await publishes(SLOW_MESSAGES)
        return Sample({MEMORY: max(0, server.rss_bytes() - before) / SLOW_READERS})
    finally:
        for reader in readers:
            reader.close()
        witness.transport.abort()
        publisher.transport.abort()


# ---------------------------------------------------------------- TLS


async def _idle(server: Server, count: int) -> Sample:
    """Memory that sessions with TLS add to the first quarter of them."""
    room, base = _room(), count // 4
    sessions = await opened(server.port, ENCODING, room, base, path=server.path, tls=server.tls)
    before = server.rss_bytes()
    try:
        sessions += await opened(server.port, ENCODING, room, count - base, path=server.path, tls=server.tls)
        return Sample({TLS: max(0, server.rss_bytes() - before) / (count - base)})
    finally:
        for session in sessions:
            session.transport.abort()


async def _death(server: Server, folder: Path, count: int) -> Sample:
    """The edge is killed, its supervisor starts another one, and every client connects and recovers there."""
    load = EdgeLoad(
        urls=[f"wss://127.0.0.1:{server.port}{PATH}"],
        token="",
        ca=(folder / "server.pem").read_text(),
        encodings=Encodings.protobuf,
        members=count,
        rooms=min(BACK_ROOMS, count),
        publishers=1,
        rate=BACK_RATE,
        size=200,
        for_s=BACK_S,
        ramp_s=0.0,
    )
    generator = EdgeGenerator(load, Share(run=f"death{next(_rooms)}"))
    try:
        await generator.open()
        await generator.advance(2.0)
        os.kill(server.pid, signal.SIGKILL)
        began = time.monotonic()
        while (now := await generator.advance(0.25)).counts["joined"] < count or now.counts["sessions_lost"] < count:
            if time.monotonic() > began + BACK_S:
                break
        seconds = time.monotonic() - began
        counts = (await generator.advance(5.0)).counts
    finally:
        await generator.close()
    return Sample({SECONDS_BACK: seconds, LOST: counts["out_of_turn"] + counts["corrupted"], TWICE: counts["lost"]})


# ---------------------------------------------------------------- messages of a program


async def _published(instance: Instance, room: str, seconds: float) -> int:
    """A program publishes by UDP; returns how many messages."""
    count, began = int(CHAIN_RATE * seconds), time.monotonic()
    async with muster.connect(instance.folder, gateways=[]) as client:
        waiting = set()
        for number in range(count):
            if (left := began + number / CHAIN_RATE - time.monotonic()) > 0:
                await asyncio.sleep(left)
            task = asyncio.ensure_future(client.publish(room, payload(200)))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
    return count


async def _by_edge(instance: Instance, server: Server, seconds: float) -> Sample:
    room = f"default:{_room()}"
    sessions = await opened(server.port, ENCODING, room, CHAIN_MEMBERS, path=server.path)
    try:
        before = instance.cpu_ns()["edge"]
        count = await _published(instance, room, seconds)
        await _all_have(sessions, count)
        return Sample({EDGE: (instance.cpu_ns()["edge"] - before) / (count * CHAIN_MEMBERS)})
    finally:
        for session in sessions:
            session.transport.abort()


def _by_gateway(instance: Instance, seconds: float) -> Sample:
    room = f"default:{_room()}"
    with instance.listeners(CHAIN_MEMBERS, rooms=[room], payload_bytes=200) as listeners, pin.on(pin.DRIVER_CORE):
        before = instance.cpu_ns()["gateway"]
        count = uvloop.run(_published(instance, room, seconds))
        listeners.sums()
        return Sample({GATEWAY: (instance.cpu_ns()["gateway"] - before) / (count * CHAIN_MEMBERS)})


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    for entry, title in (("subscribe", "subscribe"), ("blocked", "a slow reader"), ("idle", "idle")):
        yield from Case.judged(results, entry, title, GOALS, quick=quick)
    for figure in (P99, CPU_EACH):
        ours, reference = results.series("one is slow", figure), results.series("none is slow", figure)
        yield Case.compared(f"one reads 1 KB/s: {figure}, over none", ours, reference, NEIGHBOUR, quick=quick)
    ours, reference = results.series("by an edge", EDGE), results.series("by a gateway", GATEWAY)
    yield Case.compared(
        "50,000/s x100 from a program by UDP: edge CPU ns a delivery, over a gateway's",
        ours,
        reference,
        CHAIN,
        quick=quick,
    )

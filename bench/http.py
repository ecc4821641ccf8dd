"""The HTTP face beside redis-py behind the same framework: publishes one by one and in batches, and event streams.

Each face is one process on the servers' core, with what is behind it; clients are bare sockets on the driver's core. What
counts is CPU: messages for each second of a core that the face's process used, and what all servers used for one.
"""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench import cpu, pin
from bench.child import Child, ChildFailedError, free_port, listens, private_directory, python_environment
from bench.muster import LIVE, Instance
from bench.peers.redis import Redis
from bench.progress import Progress, silent
from bench.report import Case
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.systems.http import keys

SECONDS, SECONDS_QUICK = 3.0, 1.0
ONE_BY_ONE, BATCHERS = 32, 4
BATCH: Final = 100
READERS: Final = 100
QUIET_SECONDS: Final = 0.3
PER_CORE, ALL_NS = "messages per second of the face's core", "CPU ns of all servers each"
WORDS: Final = re.compile(rb"\ndata: ")
SCOPES: Final = ("publish:*", "read:*")


@dataclass
class Face:
    """One HTTP server and what is behind it."""

    name: str
    port: int
    headers: str
    face: Callable[[], int]
    """CPU of its process, ns."""
    behind: Callable[[], int]
    room: Callable[[], str]


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Both faces once, all loads in turn."""
    seconds = SECONDS_QUICK if quick else SECONDS
    with ExitStack() as stack:
        faces = [_muster(stack), _redis(stack)]
        entries = [
            _entry(face, load, payload_bytes, seconds)
            for load in ("one by one", f"batches of {BATCH}", f"{READERS} streams")
            for face in faces
        ]
        return tuple(_cases(interleave(entries, rounds, progress)))


def _muster(stack: ExitStack) -> Face:
    instance = Instance()
    stack.callback(instance.stop)
    instance.start()
    directory = Path(stack.enter_context(private_directory("http")))
    file = directory / "keys.json"
    _, key = keys.create(file, "bench", SCOPES, dict.fromkeys(("publish", "read"), ""))
    port = free_port()
    child = _child(stack, "http", directory, "bench.http_muster", str(instance.folder), str(port), str(file))
    child.wait_until(lambda: listens(port))
    return Face(
        "muster",
        port,
        f"x-api-key: {key}\r\n",
        lambda: cpu.process_ns(child.pid),
        lambda: sum(instance.cpu_ns().values()),
        lambda: instance.room(LIVE),
    )


def _redis(stack: ExitStack) -> Face:
    redis = Redis()
    stack.callback(redis.stop)
    (pid,) = redis.start()
    directory = Path(stack.enter_context(private_directory("http")))
    port = free_port()
    child = _child(stack, "redis-py", directory, "bench.http_redis", str(redis.port), str(port))
    child.wait_until(lambda: listens(port))
    rooms = iter(range(1_000_000))
    return Face(
        "redis-py",
        port,
        "",
        lambda: cpu.process_ns(child.pid),
        lambda: cpu.process_ns(pid),
        lambda: f"room-{next(rooms)}",
    )


def _child(stack: ExitStack, name: str, directory: Path, *words: str) -> Child:
    argv = [sys.executable, "-m", *words]
    child = Child(name, argv, core=pin.SERVER_CORE, directory=directory, environment=python_environment())
    stack.callback(child.stop)
    return child


def _entry(face: Face, load: str, payload_bytes: int, seconds: float) -> Entry:
    def once() -> Sample:
        with pin.on(pin.DRIVER_CORE):
            return uvloop.run(_sample(face, load, payload_bytes, seconds))

    return Entry(f"{load}, {face.name}", once)


async def _sample(face: Face, load: str, payload_bytes: int, seconds: float) -> Sample:
    room = face.room()
    body = b"x" * payload_bytes
    batch = b"\n".join([msgspec.json.encode(body.decode())] * BATCH)
    one, many = _post(face, room, body, ""), _post(face, room, batch, "content-type: application/x-ndjson\r\n")
    readers = [await _reader(face, room) for _ in range(READERS)] if "streams" in load else []
    try:
        await _publish(face, one, 1, time.monotonic())  # what is made at the first message is made
        own, behind, began = face.face(), face.behind(), time.monotonic()
        if load == "one by one":
            count = await _together(lambda: _publish(face, one, 1, began + seconds), ONE_BY_ONE)
        else:
            count = await _together(lambda: _publish(face, many, BATCH, began + seconds), 1 if readers else BATCHERS)
        if readers:
            published = count + 1
            count = await _delivered(readers, published)
            if count < published * READERS:
                raise ChildFailedError(f"{face.name}: {published * READERS - count} deliveries are missing")
        taken = time.monotonic() - began
        own, behind = face.face() - own, face.behind() - behind
    finally:
        for reader in readers:
            reader.stop()
    return Sample({PER_CORE: count / own * 1e9, ALL_NS: (own + behind) / count, "messages/s": count / taken})


async def _together(publish: Callable[[], Awaitable[int]], count: int) -> int:
    return sum(await asyncio.gather(*(publish() for _ in range(count))))


def _post(face: Face, room: str, body: bytes, more: str) -> bytes:
    head = f"POST /api/v1/rooms/{room}/messages HTTP/1.1\r\nhost: localhost\r\n{face.headers}{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _publish(face: Face, request: bytes, messages: int, until: float) -> int:
    """Send the request again and again on one connection, at least once; the messages that were published."""
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    count = 0
    try:
        while not count or time.monotonic() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            if not head.startswith(b"HTTP/1.1 200 "):
                raise ChildFailedError(f"{face.name}: {head.splitlines()[0]!r} {body[:200]!r}")
            count += messages
    finally:
        writer.transport.abort()
    return count


class _Reader(asyncio.Protocol):
    """Counts the events of one stream."""

    def __init__(self, request: bytes) -> None:
        self._request, self._rest = request, b""
        self.opened = asyncio.get_running_loop().create_future()
        self.events = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
        data = self._rest + data
        self.events += len(WORDS.findall(data))
        self._rest = data[-6:] if not data.endswith(b"\ndata: ") else b""

    def stop(self) -> None:
        self._transport.abort()


async def _reader(face: Face, room: str) -> _Reader:
    head = f"GET /api/v1/rooms/{room}/messages HTTP/1.1\r\nhost: localhost\r\n{face.headers}"
    request = f"{head}accept: text/event-stream\r\n\r\n"
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: _Reader(request.encode()), "127.0.0.1", face.port)
    await reader.opened
    return reader


async def _delivered(readers: list[_Reader], published: int) -> int:
    """What came, once all of it has, or nothing more does."""
    before, since = -1, time.monotonic()
    while (count := sum(reader.events for reader in readers)) < published * len(readers):
        if count != before:
            before, since = count, time.monotonic()
        elif time.monotonic() - since > 10 * QUIET_SECONDS:
            break
        await asyncio.sleep(0.01)
    return count


def _cases(results: Results) -> Iterator[Case]:
    """Each load of Muster beside that of redis-py."""
    for entry in results.samples:
        load, _, name = entry.rpartition(", ")
        if name == "muster":
            for figure in results.figures(entry):
                other = results.series(f"{load}, redis-py", figure)
                yield Case.compared(f"{load}: {figure}, over redis-py", results.series(entry, figure), other)

"""Delayed messages: accepted durably, fired on time, and there again after a restart; beside a sorted set in Redis.

The servers of both are on one core, the driver and a null server for callbacks on the other. Redis syncs its log with each
command, as Muster's schedule does: else a positive answer would not be durable. Beside rates and times stand processor times
for each message, by process: those of the null server are the receiver's, not the scheduler's.
"""

import asyncio
import itertools
import json
import os
import re
import select
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from redis.asyncio import Redis as RedisClient

from bench import cpu, pin, whole
from bench.child import Child, ChildFailedError, free_port, listens, private_directory, python_environment
from bench.delay_redis import BODIES, DUE, PUSH
from bench.peers.redis import Redis
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from control.cluster import instance as folders
from control.http import keys
from control.http.system import KEYS
from muster import _core

SECONDS, SECONDS_QUICK = 3.0, 1.5
BATCH: Final = 1_000
BODY: Final = b'{"order": "%013d", "pad": "' + b"x" * 160 + b'"}'
FIRED, AT_ONCE = 10_000, 1_000
PENDING, PENDING_QUICK = 10_000_000, 500_000
STORE_TOTAL, STORE_QUICK = 1_000_000, 200_000
IN_FLIGHT: Final = 8
"""Batches at the store at once, and requests over HTTP half as many."""
DAY_MS: Final = 86_400_000
START_S: Final = 60.0
FIRES_S: Final = 60.0
GOALS: Final = {
    "store": Goal("PF-20", ">=", 200_000),
    "http": Goal("PF-20", ">=", 50_000),
    "p50": Goal("PF-21", "<=", 2),
    "p99": Goal("PF-21", "<=", 20),
    "early": Goal("PF-21", "<=", 0),
    "restart": Goal("PF-22", "<=", 2),
    "memory": Goal("PF-22", "<=", 64),
}


@dataclass
class Face:
    """One scheduler: how a batch with these due times reaches it, durably."""

    name: str
    send: Callable[[Sequence[int]], Any]
    reset: Callable[[], Any]
    lanes: int
    pids: Mapping[str, int]
    """Its processes, by what they are."""


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All loads in turn."""
    seconds = SECONDS_QUICK if quick else SECONDS
    with ExitStack() as stack:
        directory = Path(stack.enter_context(private_directory("delay")))
        hook, receiver = _hook(stack, directory)
        faces = [_muster(stack, directory, hook), _redis(stack, directory, hook)]
        entries = [Entry("store", lambda: _store(STORE_QUICK if quick else STORE_TOTAL, directory))]
        entries += [Entry(f"accept, {face.name}", _accepting(face, seconds)) for face in faces]
        entries += [Entry(f"fire, {face.name}", _firing(face, hook, receiver, spread=True)) for face in faces]
        entries += [Entry(f"herd, {face.name}", _firing(face, hook, receiver, spread=False)) for face in faces]
        entries += [Entry("restart", lambda: _restart(PENDING_QUICK if quick else PENDING, directory))]
        return tuple(_cases(interleave(entries, rounds, progress), quick))


# --- who is measured --------------------------------------------------------------------------------------------------


def _child(stack: ExitStack, name: str, core: int, directory: Path, *words: str, **environment: str) -> Child:
    argv = [sys.executable, "-m", *words]
    child = Child(name, argv, core=core, directory=directory, environment={**python_environment(), **environment})
    stack.callback(child.stop)
    return child


def _hook(stack: ExitStack, directory: Path) -> tuple[int, int]:
    """Its port and its process."""
    port = free_port()
    child = _child(stack, "hook", pin.DRIVER_CORE, directory, "bench.delay_hook", str(port))
    child.wait_until(lambda: listens(port))
    return port, child.pid


def _muster(stack: ExitStack, directory: Path, hook: int) -> Face:
    folder = directory / "instance"
    environment = {
        "MUSTER_INSTANCE__DIR": str(folder),
        "MUSTER_SYSTEMS__ENABLED": "messages,http",
        "MUSTER_LOG__LEVEL": "error",
        "MUSTER_PROBES__EVERY_MS": "0",
        "MUSTER_DATABASE__URL": "none",
        "MUSTER_HTTP__REQUESTS_RATE": "1000000",
        "MUSTER_HTTP__MESSAGES_RATE": "10000000",
        "MUSTER_HTTP__BODY_BYTES_MAX": str(4 << 20),
    }
    child = _child(stack, "muster", pin.SERVER_CORE, directory, "control.cli.main", "up", **environment)

    child.wait_until(lambda: whole.ready(folders.Folder(folder)), seconds=START_S)
    record = folders.find(folders.Folder(folder))
    (face,) = record.of("http")
    assert isinstance(face.bind, tuple)
    host, port = face.bind
    _, key = keys.create(folder / KEYS, "bench", ("send:*",), {"send": ""})
    words = ("topic", "create", "bench", "--callback", f"http://127.0.0.1:{hook}/")
    made = Child("topic", [sys.executable, "-m", "control.cli.main", *words], core=pin.SERVER_CORE, directory=directory,
                 environment={**python_environment(), **environment})  # fmt: skip
    if made.process.wait(30):
        raise ChildFailedError(f"topic create: {made.log.read_text()}")
    head = f"POST /api/v1/topics/bench/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n"
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(due: Sequence[int]) -> None:
        body = b"[" + b",".join(b'{"at":%d,"data":%b}' % (at, BODY % at) for at in due) + b"]"
        reader, writer = connections.pop() if connections else await asyncio.open_connection(host, port)
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        said = await reader.readexactly(int(length[1]) if length else 0)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ChildFailedError(f"muster: {answer.splitlines()[0]!r} {said[:200]!r}")
        connections.append((reader, writer))

    async def reset() -> None:
        for _, writer in connections:
            writer.transport.abort()
        connections.clear()

    pids = {process.role: process.pid for process in record.processes if process.role in ROLES}
    return Face("muster", send, reset, IN_FLIGHT // 2, pids)


class _Durable(Redis):
    """Redis that syncs its log with every command."""

    def command(self, binary: str, directory: Path) -> list[str]:
        argv = super().command(binary, directory)
        place = argv.index("--appendonly")
        argv[place + 1] = "yes"
        return [*argv[: place + 2], "--appendfsync", "always", *argv[place + 2 :]]


def _redis(stack: ExitStack, directory: Path, hook: int) -> Face:
    redis = _Durable()
    stack.callback(redis.stop)
    (served,) = redis.start()
    pump = _child(
        stack,
        "pump",
        pin.SERVER_CORE,
        directory,
        "bench.delay_redis",
        str(redis.port),
        f"http://127.0.0.1:{hook}/",
    )
    numbers = itertools.count()
    clients: list[Any] = []

    async def send(due: Sequence[int]) -> None:
        if not clients:
            clients.append(RedisClient(port=redis.port))
        arguments: list[Any] = []
        for at in due:
            arguments += [f"m-{next(numbers)}", at, BODY % at]
        await clients[0].eval(PUSH, 2, DUE, BODIES, *arguments)

    async def reset() -> None:
        for client in clients:
            await client.aclose()
        clients.clear()

    return Face("redis", send, reset, IN_FLIGHT // 2, {"redis": served, "pump": pump.pid})


# --- loads ------------------------------------------------------------------------------------------------------------


def _accepting(face: Face, seconds: float) -> Callable[[], Sample]:
    async def accept() -> Sample:
        count = 0
        used = _Used(face.pids)
        began = time.monotonic()

        async def lane() -> None:
            nonlocal count
            while time.monotonic() < began + seconds:
                at = time.time_ns() // 1_000_000 + DAY_MS
                await face.send([at + each for each in range(BATCH)])
                count += BATCH

        try:
            await asyncio.gather(*(lane() for _ in range(face.lanes)))
            return Sample({"messages/s": count / (time.monotonic() - began), **used.each(count)})
        finally:
            await face.reset()

    return _on_driver(accept)


class _Used:
    """The processor time of processes from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids, self._before = pids, {name: cpu.process_ns(pid) for name, pid in pids.items()}

    def each(self, count: int) -> dict[str, float]:
        """Of each process for each of so many messages, in microseconds."""
        used = {name: (cpu.process_ns(pid) - self._before[name]) / 1e3 / count for name, pid in self._pids.items()}
        servers = sum(each for name, each in used.items() if name != RECEIVER)
        return {CPU: servers, **{f"{CPU}, {name}": each for name, each in used.items()}}


def _firing(face: Face, hook: int, receiver: int, *, spread: bool) -> Callable[[], Sample]:
    count = FIRED if spread else AT_ONCE

    async def fire() -> Sample:
        await asyncio.to_thread(_late, hook)  # forget what came before
        at = time.time_ns() // 1_000_000 + 3_000
        due = [at + (each * 1_000 // count if spread else 0) for each in range(count)]
        try:
            for first in range(0, count, BATCH):
                await face.send(due[first : first + BATCH])
        finally:
            await face.reset()
        if time.time_ns() // 1_000_000 > at:
            names = {**face.pids, RECEIVER: receiver}
            nothing = dict.fromkeys((*FIGURES, CPU, *(f"{CPU}, {name}" for name in names)), 0.0)
            return Sample(nothing, void="the messages were not sent before they were due")
        late: list[float] = []
        end = time.monotonic() + FIRES_S
        await asyncio.sleep(max(0.0, at / 1_000 - 0.1 - time.time()))
        used = _Used({**face.pids, RECEIVER: receiver})
        await asyncio.sleep(max(0.0, at / 1_000 + 1.0 - time.time()))
        while len(late) < count:
            late += await asyncio.to_thread(_late, hook)
            if time.monotonic() > end:
                raise ChildFailedError(f"{face.name}: {count - len(late)} of {count} messages did not fire")
            await asyncio.sleep(0.1)
        hundredths = statistics.quantiles(late, n=100)
        figures = (hundredths[49], hundredths[98], max(late), float(sum(each < 0 for each in late)))
        return Sample({**dict(zip(FIGURES, figures, strict=True)), **used.each(count)})

    return _on_driver(fire)


CPU: Final = "µs of processor each"
ROLES: Final = ("http", "receive", "center", "messages-worker")
"""The roles that a message passes; the others of the instance are idle."""
RECEIVER: Final = "receiver"
FIGURES: Final = ("lateness p50, ms", "lateness p99, ms", "lateness max, ms", "early")


def _late(hook: int) -> list[float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{hook}/", timeout=20) as answer:
        late: list[float] = json.loads(answer.read())
        return late


def _on_driver(work: Callable[[], Any]) -> Callable[[], Sample]:
    def once() -> Sample:
        with pin.on(pin.DRIVER_CORE):
            sample: Sample = uvloop.run(work())
            return sample

    return once


class _Store:
    """A schedule in this process, for what is measured without any server."""

    def __init__(self, folder: Path) -> None:
        self.keeper = _core.ScheduleKeeper(path=str(folder), segment_bytes=64 << 20, checkpoint_bytes=256 << 20)

    def insert(self, arrays: Iterator[bytes]) -> None:
        """A few on their way at once; waits until all are durable."""
        asked = 0
        for number, array in enumerate(arrays):
            if asked == IN_FLIGHT:
                asked -= self.take()
            self.keeper.insert_packed(number, array)
            asked += 1
        while asked:
            asked -= self.take()

    def take(self) -> int:
        """Wait for replies."""
        select.select([self.keeper.fd()], [], [], 10.0)
        return len(self.keeper.take())


def _arrays(count: int, due: Callable[[int], int]) -> Iterator[bytes]:
    """So many messages in batches, as a receiver hands them to the schedule."""
    numbers = iter(range(1, count + 1))
    while some := list(itertools.islice(numbers, BATCH)):
        yield msgspec.msgpack.encode([(_id(n), 1, due(n), None, BODY % n) for n in some])


def _id(number: int) -> int:
    return (number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)


def _store(count: int, directory: Path) -> Sample:
    with tempfile.TemporaryDirectory(dir=directory) as folder, pin.on(pin.SERVER_CORE):
        store = _Store(Path(folder))
        base = time.time_ns() // 1_000_000 + DAY_MS
        arrays = list(_arrays(count, lambda number: base + number))  # the receivers' work
        used = _Used({"store": os.getpid()})
        began = time.monotonic()
        store.insert(iter(arrays))
        taken = time.monotonic() - began
        figures = {"messages/s": count / taken, CPU: used.each(count)[CPU]}
        store.keeper.close()
    return Sample(figures)


def _restart(count: int, directory: Path) -> Sample:
    """One message that is due, the others over thirty days; from opening to the one that fires."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, pin.on(pin.SERVER_CORE):
        store = _Store(Path(folder))
        now = time.time_ns() // 1_000_000
        far = now + DAY_MS
        store.insert(_arrays(count, lambda number: now + 1 if number == 1 else far + number * 30 * DAY_MS // count))
        store.keeper.close()
        began = time.monotonic()
        store = _Store(Path(folder))
        store.keeper.serve(1, 1, 7, 60_000, 6, 1)
        fired = None
        while fired is None:
            for reply in store.keeper.take():
                fired = time.monotonic() - began if reply[1] == "fires" else fired
            time.sleep(0.000_5)
        whole: dict[str, Any] = {}
        while not whole.get("whole"):
            store.keeper.stats(2)
            store_replies: list[Any] = []
            while not store_replies:
                store_replies = store.keeper.take()
            whole = store_replies[-1][2]
        beyond = (whole["memory_bytes"] - whole["near_memory_bytes"]) / whole["live"]
        store.keeper.close()
    return Sample({"seconds to the first fire": fired, "bytes of memory for a message": beyond})


# --- what it comes to -------------------------------------------------------------------------------------------------


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    def case(name: str, entry: str, figure: str, goal: str) -> Case:
        return Case.limit(name, results.series(entry, figure), GOALS[goal], quick=quick)

    def times(load: str, text: str) -> Iterator[Case]:
        mine, other = f"{load}, muster", f"{load}, redis"
        yield Case.compared(f"{text}: {CPU}, over Redis", results.series(mine, CPU), results.series(other, CPU))
        for entry in (mine, other):
            for figure in results.figures(entry):
                if figure.startswith(f"{CPU}, "):
                    yield Case.plain(f"{text}: {CPU}, {entry.partition(', ')[2]}'s {figure.removeprefix(f'{CPU}, ')}",
                                     results.series(entry, figure))  # fmt: skip

    yield case("accepted at the store, messages/s", "store", "messages/s", "store")
    yield Case.plain(f"accepted at the store: {CPU}", results.series("store", CPU))
    yield case("accepted over HTTP in batches, messages/s", "accept, muster", "messages/s", "http")
    yield Case.compared(
        "accepted, messages/s, over a Redis script of the same batch",
        results.series("accept, muster", "messages/s"),
        results.series("accept, redis", "messages/s"),
    )
    yield from times("accept", "accepted")
    for load, text in (("fire", f"{FIRED:,} in one second"), ("herd", f"{AT_ONCE:,} at one millisecond")):
        for figure in FIGURES:
            mine, other = results.series(f"{load}, muster", figure), results.series(f"{load}, redis", figure)
            goal = {"lateness p50, ms": "p50", "lateness p99, ms": "p99", "early": "early"}.get(figure)
            if goal == "early":
                yield Case.worst(f"{text}: {figure}", mine, GOALS[goal], quick=quick)
            elif load == "fire" and goal is not None:
                yield Case.limit(f"{text}: {figure}", mine, GOALS[goal], quick=quick)
            if goal != "early":
                yield Case.compared(f"{text}: {figure}, over the Redis pump", mine, other)
        yield from times(load, text)
    pending = f"{PENDING_QUICK if quick else PENDING:,} pending"
    yield case(f"{pending}: seconds to the first fire", "restart", "seconds to the first fire", "restart")
    yield case(f"{pending}: bytes of memory each", "restart", "bytes of memory for a message", "memory")

"""Presence: events into the store, look-ups, a writer's restart, bytes a user; beside redis-py with one hash a user.

A gateway in this process makes events; writer, reader and Redis are on one core, this process on the other. Both sides
use the same Redis. An event counts once a reader tells of it. The rate of the other side is that of one event after the
other, each with its own call, as a gateway's callback would make them.
"""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvloop
from redis import Redis as RedisPy

from bench import cpu, pin, presence_rooms
from bench.child import Child, ChildFailedError, free_port, private_directory, python_environment
from bench.peers.redis import Redis
from bench.presence_nodes import HOST, SECRET, Gateway, settings, spec
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave
from muster_server import _engines
from muster_server.plane import systems
from muster_server.plane.calls import CallError, key_of
from muster_server.systems.presence.asking import Readers
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.questions import CopyStats

EVENTS, EVENTS_QUICK = 20_000, 5_000
ONE_BY_ONE, ONE_BY_ONE_QUICK = 4_000, 1_000
FEED: Final = "{muster:presence:presence:1:1.0}:outbox"
BATCHES: Final = "{muster:presence:presence:1:1.0}:batches"
HELD: Final = 1_000_000
"""First number of the users that stay online."""
STANDING, STANDING_QUICK = 100_000, 10_000
ASKED: Final = 1_000
CALLS, CALLS_QUICK = 300, 40
FED, FED_QUICK = 400, 100
"""Packets of 38 events."""
TWICE: Final = 20
"""Times that the second path brings all of them."""
SAMPLE_S, STEADY_S, CALM_S, RETURN_S = 0.25, 2.0, 2.0, 30.0
NOISE: Final = 0.01
"""A share of a processor; less than that is no load."""
START_S, SEEN_S = 30.0, 60.0
LOOK_S: Final = 0.005
"""A question takes the core that is measured: 0.5 ms of it."""
SIZES, SIZES_QUICK = (10_000, 100_000, 1_000_000), (10_000, 50_000)

DROP_NS, ABOVE_S = "ns a duplicate", "s"
WRITER, READER, PLAIN = "writer", "reader", "reader without a copy"
RATE, CPU_EACH, P50, P99 = "events/s", "writer, µs CPU an event", "p50, ms", "p99, ms"
USERS, SECONDS, FEED_US = "users/s", "s", "µs an event"
GOALS: Final = {
    "events": Goal("PF-14", ">=", 10),
    "cpu": Goal("PF-14", "<=", 2),
    "restart": Goal("PF-15", "<=", 5),
    "drop": Goal("PF-23", "<=", 100),
    "return": Goal("PF-26", "<=", 5),
    "late": Goal("PF-24", "<=", 2),
    "users": Goal("PF-24", ">=", 5),
    "copy late": Goal("PF-24", "<=", 1),
    "copy users": Goal("PF-24", ">=", 20),
    "copy bytes": Goal("PF-24", "<=", 100),
    "copied": Goal("PF-24", "<=", 5),
}
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Store(Redis):
    """Redis as `muster up` sets it for presence."""

    def command(self, binary: str, directory: Path) -> list[str]:
        options = ["--hash-max-listpack-entries", "512", "--hash-max-listpack-value", "256"]
        return [*super().command(binary, directory), *options]


class Nodes:
    """Redis, a writer, a reader, and a gateway here. `async with` starts and ends them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder = Path(stack.enter_context(private_directory("presence")))
        self.redis = Store()
        stack.callback(self.redis.stop)
        (self.redis_pid,) = self.redis.start()
        self._secret = self._folder / "secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        names = ("gateway", *(f"{name}{more}" for name in (WRITER, READER, PLAIN) for more in ("", " admin")))
        self._ports = {name: free_port() for name in names}
        self._epochs = itertools.count(int(time.time()))
        self._told = settings([f"redis://{HOST}:{self.redis.port}/0"], str(self._folder), writers=(1,))
        key = key_of(bytes.fromhex(SECRET))
        self.asking = Readers(lambda: [(HOST, self._ports[READER])], key)
        self.asking_plain = Readers(lambda: [(HOST, self._ports[PLAIN])], key)
        """The reader without a copy."""
        self.gateway: Gateway
        self.writer: Child
        self.reader: Child

    async def __aenter__(self) -> "Nodes":
        self.gateway = Gateway(1, next(self._epochs), self._ports["gateway"])
        self.start_writer()
        self.start_reader()
        self._start("online-reader", PLAIN, msgspec.structs.replace(self._told, near=False))
        await self.serving(START_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.asking.close(), self.asking_plain.close())
        await self.gateway.end()

    async def restart_gateway(self) -> None:
        """End the gateway without a word, and begin its next life, at which nobody is."""
        await self.gateway.end()
        self.gateway = Gateway(1, next(self._epochs), self._ports["gateway"])

    def start_writer(self) -> None:
        """A writer's next life."""
        self.writer = self._start("online-writer", WRITER)

    def start_reader(self) -> None:
        """The next life of the reader that has a copy."""
        self.reader = self._start("online-reader", READER)

    def _start(self, role: str, name: str, told: PresenceSettings | None = None) -> Child:
        file = self._folder / f"{name}.json"
        made = spec(
            role,
            0,
            epoch=next(self._epochs),
            told=told or self._told,
            secret_file=str(self._secret),
            port=self._ports[name],
            admin=self._ports[f"{name} admin"],
            gateways={1: self._ports["gateway"]},
        )
        file.write_bytes(msgspec.json.encode(made))
        argv = [*systems.node_command(), "--spec", str(file), "--parent", str(os.getpid())]
        child = Child(
            name,
            argv,
            core=pin.SERVER_CORE,
            directory=self._folder,
            environment=python_environment(),
            stdin=subprocess.PIPE,  # a node ends with its owner's end of it
        )
        self._stack.callback(child.stop)
        return child

    async def serving(self, seconds: float) -> None:
        """Return once the reader answers. Raises `ChildFailedError`."""
        until = time.monotonic() + seconds
        while True:
            try:
                for asking in (self.asking, self.asking_plain):
                    await asking.who([0])
                await self.copied(seconds)
                return
            except CallError as error:
                if time.monotonic() > until:
                    raise ChildFailedError(f"presence does not serve after {seconds:g} s: {error}") from None
                await asyncio.sleep(LOOK_S)

    async def copied(self, seconds: float) -> CopyStats:
        """Return once the reader answers from its copy. Raises `ChildFailedError`."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(CallError):
                (shard,) = await self.asking.stats()
                if shard.copy is not None and not shard.copy.why:
                    return shard.copy
            if time.monotonic() > until:
                raise ChildFailedError(f"the reader has no copy after {seconds:g} s")
            await asyncio.sleep(LOOK_S)

    async def seen(self, user: int, online: bool, seconds: float = SEEN_S) -> None:
        """Return once the reader tells that a user is online, or is not. Raises `ChildFailedError`."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(CallError):
                (found,) = (await self.asking.who([user])).users
                if bool(found.devices) == online:
                    return
            if time.monotonic() > until:
                raise ChildFailedError(f"user {user} is not seen after {seconds:g} s")
            await asyncio.sleep(LOOK_S)


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All loads in turn, then bytes a user, then rooms beside presence."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with pin.on(pin.DRIVER_CORE), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = _measured(runner.run, rounds, quick, progress)
        sizes = runner.run(_sizes(SIZES_QUICK if quick else SIZES, quick))
    rooms = presence_rooms.run(rounds=rounds, quick=quick, progress=progress)
    return (*_cases(results, quick), *sizes, *rooms)


def _measured(run: Run, rounds: int, quick: bool, progress: Progress) -> Results:
    events, one_by_one = (EVENTS_QUICK, ONE_BY_ONE_QUICK) if quick else (EVENTS, ONE_BY_ONE)
    standing, calls = (STANDING_QUICK, CALLS_QUICK) if quick else (STANDING, CALLS)
    with ExitStack() as stack:
        nodes = Nodes(stack)
        run(nodes.__aenter__())
        try:
            run(_stand(nodes, standing))
            asked = [list(range(HELD + at, HELD + standing, standing // ASKED))[:ASKED] for at in range(calls % 97 + 3)]
            entries = [
                Entry("events", lambda: run(_events(nodes, events))),
                Entry("events, redis-py", lambda: run(asyncio.to_thread(_one_by_one, nodes, one_by_one))),
                Entry("copy", lambda: run(_look_ups(nodes.asking, asked, calls))),
                Entry("look-ups", lambda: run(_look_ups(nodes.asking_plain, asked, calls))),
                Entry("look-ups, redis-py", lambda: run(asyncio.to_thread(_pipelines, nodes, asked, calls))),
                Entry("writer alone", lambda: _fed(FED_QUICK if quick else FED)),
                Entry("second path", lambda: _dropped(FED_QUICK if quick else FED)),
                Entry("restart", lambda: run(_restart(nodes))),
                Entry("return", lambda: run(_return(nodes, standing))),
            ]
            return interleave(entries, rounds, progress)
        finally:
            run(nodes.__aexit__())


async def _stand(nodes: Nodes, count: int) -> None:
    """Users that stay online; the same in hashes of redis-py."""
    users = range(HELD, HELD + count)
    for first in range(0, count, 10_000):
        nodes.gateway.online(users[first : first + 10_000])
        await nodes.seen(users[min(count, first + 10_000) - 1], True)

    def fill() -> None:
        with RedisPy(port=nodes.redis.port) as redis, redis.pipeline(transaction=False) as pipe:
            for user in users:
                pipe.hset(f"user:{user}", mapping={"phone": "1 1790000000000"})
            pipe.execute()

    await asyncio.to_thread(fill)


async def _events(nodes: Nodes, count: int) -> Sample:
    """So many users come, until a reader tells of the last one; then they go again."""
    users = range(count)
    pid, began = nodes.writer.pid, time.perf_counter()
    before = cpu.process_ns(pid)
    nodes.gateway.online(users)
    await nodes.seen(users[-1], True)
    seconds = time.perf_counter() - began
    used_us = (cpu.process_ns(pid) - before) / 1_000
    nodes.gateway.offline(users)
    await nodes.seen(users[-1], False)
    return Sample({RATE: count / seconds, CPU_EACH: used_us / count})


def _one_by_one(nodes: Nodes, count: int) -> Sample:
    with RedisPy(port=nodes.redis.port) as redis:
        began = time.perf_counter()
        for user in range(count):
            redis.hset(f"other:{user}", "phone", "1 1790000000000")
        seconds = time.perf_counter() - began
        redis.delete(*(f"other:{user}" for user in range(count)))
    return Sample({RATE: count / seconds})


async def _look_ups(asking: Readers, asked: list[list[int]], calls: int) -> Sample:
    took: list[float] = []
    began = time.perf_counter()
    for _, users in zip(range(calls), itertools.cycle(asked), strict=False):
        at = time.perf_counter()
        found = (await asking.who(users)).users
        took.append(time.perf_counter() - at)
        if len(found) != len(users) or not all(user.devices for user in found):
            raise ChildFailedError("a user that is online was not found")
    return _latencies(took, time.perf_counter() - began)


def _pipelines(nodes: Nodes, asked: list[list[int]], calls: int) -> Sample:
    took: list[float] = []
    with RedisPy(port=nodes.redis.port) as redis:
        began = time.perf_counter()
        for _, users in zip(range(calls), itertools.cycle(asked), strict=False):
            at = time.perf_counter()
            with redis.pipeline(transaction=False) as pipe:
                for user in users:
                    pipe.hgetall(f"user:{user}")
                found = pipe.execute()
            took.append(time.perf_counter() - at)
            if not all(found):
                raise ChildFailedError("a user that is online was not found")
        return _latencies(took, time.perf_counter() - began)


def _latencies(took: list[float], seconds: float) -> Sample:
    hundredths = statistics.quantiles(took, n=100)
    return Sample({P50: hundredths[49] * 1_000, P99: hundredths[98] * 1_000, USERS: ASKED * len(took) / seconds})


def _frames(packets: int) -> list[bytes]:
    """A proxy's frames for one writer, of so many packets of a gateway."""
    gateway = _engines.PresenceAccess(b"{}", ap=1, epoch=1, now=0)
    frames: list[bytes] = []
    for at in range(packets):
        for user in range(at * 38, at * 38 + 38):
            gateway.online(at * 1_000_000, 1, user, "phone", 1)
        gateway.expire(at * 1_000_000 + 999_999)
        told = [frame for to, frame in gateway.take() if to is None]
        frames += [each[3] for frame in told for each in _engines.presence_split(1, [(1, 1)], frame)]
    return frames


def _writer() -> _engines.PresenceWriter:
    """A writer's machine that follows the gateway of `_frames`."""
    writer = _engines.PresenceWriter(b"{}", shards=1, index=0, epoch=1)
    writer.restore_applied(0, 1, 1, 0)
    return writer


def _fed(packets: int) -> Sample:
    """A writer's machine alone: packets in, batches for the store out."""
    frames, writer = _frames(packets), _writer()
    gc.collect()  # the users of other measurements: one collection would be most of this short one
    began = time.process_time()
    for at, frame in enumerate(frames):
        writer.feed(at, frame)
        while at % 26 == 25 and writer.batch(1_000) is not None:
            writer.written()
    return Sample({FEED_US: (time.process_time() - began) * 1e6 / (packets * 38)})


def _dropped(packets: int) -> Sample:
    """A writer's machine that has every packet: all of them come on the second path. With the binding's word for each."""
    frames, writer = _frames(packets), _writer()
    for at, frame in enumerate(frames):
        writer.feed(at, frame)
    again = b"".join(frames)
    began = time.process_time()
    for _ in range(TWICE):
        verdicts = writer.feed(len(frames), again)
    seconds = time.process_time() - began
    if set(verdicts) != {"duplicate"}:
        raise ChildFailedError(f"the second path's frames were {sorted(set(verdicts))}")
    return Sample({DROP_NS: seconds * 1e9 / (TWICE * len(verdicts))})


async def _return(nodes: Nodes, standing: int) -> Sample:
    """A gateway starts again and all users come back at once: how long writer or store have over twice their steady load."""
    pids = (nodes.writer.pid, nodes.redis_pid)
    before = [cpu.process_ns(pid) for pid in pids]
    await asyncio.sleep(STEADY_S)
    steady = [(cpu.process_ns(pid) - was) / 1e9 / STEADY_S for pid, was in zip(pids, before, strict=True)]
    await nodes.restart_gateway()
    for first in range(HELD, HELD + standing, 10_000):
        nodes.gateway.online(range(first, min(first + 10_000, HELD + standing)))
        await asyncio.sleep(0)
    began = seen = time.monotonic()
    above = 0.0
    before = [cpu.process_ns(pid) for pid in pids]
    while time.monotonic() - seen < CALM_S and seen - began < RETURN_S:
        last = time.monotonic()
        await asyncio.sleep(SAMPLE_S)
        now, took = [cpu.process_ns(pid) for pid in pids], time.monotonic() - last
        loads = [(each - was) / 1e9 / took for each, was in zip(now, before, strict=True)]
        before = now
        if any(load > 2 * usual + NOISE for load, usual in zip(loads, steady, strict=True)):
            seen = time.monotonic()
            above += took
    await nodes.seen(HELD + standing - 1, True)
    return Sample({ABOVE_S: above})


async def _restart(nodes: Nodes) -> Sample:
    """From kill -9 of the writer until its shard is whole again by its new life."""
    os.kill(nodes.writer.pid, signal.SIGKILL)
    nodes.writer.process.wait()
    began = time.perf_counter()
    nodes.start_writer()
    epoch = 0
    until = time.monotonic() + START_S
    before = (await nodes.asking.stats())[0].writer
    while True:
        with contextlib.suppress(CallError):
            (shard,) = await nodes.asking.stats()
            epoch = 0 if shard.writer is None else shard.writer.epoch
            if not shard.why and before is not None and epoch > before.epoch:
                return Sample({SECONDS: time.perf_counter() - began})
        if time.monotonic() > until:
            raise ChildFailedError(f"the writer is not back after {START_S:g} s")
        await asyncio.sleep(LOOK_S)


async def _sizes(sizes: tuple[int, ...], quick: bool) -> tuple[Case, ...]:
    """Bytes a user with one device, beyond what processes have with none."""
    cases: list[Case] = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        async with nodes:
            none = _held(nodes)
            users = 0
            for size in sizes:
                for first in range(users, size, 20_000):
                    last = min(size, first + 20_000)
                    nodes.gateway.online(range(HELD + first, HELD + last))
                    await nodes.seen(HELD + last - 1, True)
                users = size
                now = _held(nodes)
                each = {name: (now[name] - none[name]) / size for name in now} | {
                    "gateway": _gateway_bytes(size) / size
                }
                cases += [
                    Case.plain(f"{size:,} users online, {name}, bytes a user", Series((value,)))
                    for name, value in each.items()
                ]
                copy = await nodes.copied(SEEN_S)
                title = f"{size:,} users online, a reader's copy, bytes a user"
                cases.append(Case.limit(title, Series((copy.bytes / size,)), GOALS["copy bytes"], quick=quick))
            took = Series((await _copied_again(nodes),))
            title = f"a reader's restart with {users:,} users online, until its copy answers, s"
            cases.append(Case.limit(title, took, GOALS["copied"], quick=quick))
    return tuple(cases)


async def _copied_again(nodes: Nodes) -> float:
    """From kill -9 of the reader until its next life answers from a copy, in seconds."""
    os.kill(nodes.reader.pid, signal.SIGKILL)
    nodes.reader.process.wait()
    began = time.perf_counter()
    nodes.start_reader()
    await nodes.copied(START_S)
    return time.perf_counter() - began


def _gateway_bytes(users: int) -> int:
    """The memory of an access point with so many users, in a process of its own."""
    argv = [sys.executable, "-m", "bench.presence_held", str(users)]
    done = subprocess.run(argv, env=python_environment(), capture_output=True, check=True, timeout=300)
    return int(done.stdout)


def _held(nodes: Nodes) -> dict[str, float]:
    with RedisPy(port=nodes.redis.port) as redis:
        # Changes of the last minute, and batches of the last seconds.
        feed = sum(redis.memory_usage(each, samples=0) or 0 for each in (FEED, BATCHES))
        store = float(redis.info("memory")["used_memory"]) - float(feed)
    pids = {"writer": nodes.writer.pid, "reader": nodes.reader.pid}
    return {"store": store} | {name: float(cpu.rss_bytes(pid)) for name, pid in pids.items()}


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    title = "events from a gateway until a reader tells of them, events/s, over redis-py one by one"
    events, others = results.series("events", RATE), results.series("events, redis-py", RATE)
    yield Case.compared(title, events, others, GOALS["events"], quick=quick)
    yield Case.plain(CPU_EACH, results.series("events", CPU_EACH))
    title = "the writer's machine, frames in and batches out, µs CPU an event"
    yield Case.limit(title, results.series("writer alone", FEED_US), GOALS["cpu"], quick=quick)
    title = "the writer's machine drops what came on the second path, ns CPU each"
    yield Case.limit(title, results.series("second path", DROP_NS), GOALS["drop"], quick=quick)
    title = f"{ASKED:,} users in one call"
    others = results.series("look-ups, redis-py", USERS)
    for name, where, late, more in (
        ("look-ups", "", "late", "users"),
        ("copy", ", from a copy", "copy late", "copy users"),
    ):
        yield Case.plain(f"{title}{where}: {P50}", results.series(name, P50))
        if quick:
            yield Case.plain(f"{title}{where}: {P99}", results.series(name, P99))
        else:
            yield Case.limit(f"{title}{where}: {P99}", results.series(name, P99), GOALS[late])
        users = results.series(name, USERS)
        told = f"{title}{where}, users/s, over HGETALL in a pipeline"
        yield Case.compared(told, users, others, GOALS[more], quick=quick)
    yield Case.plain(f"{title}, redis-py: {P50}", results.series("look-ups, redis-py", P50))
    yield Case.limit("a writer's restart, until its shard serves, s", results.series("restart", SECONDS),
                     GOALS["restart"], quick=quick)  # fmt: skip
    title = "a gateway's restart with all of its users, writer or store above twice their steady load, s"
    yield Case.limit(title, results.series("return", ABOVE_S), GOALS["return"], quick=quick)

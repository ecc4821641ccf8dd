"""Tasks: no-op tasks a second by one worker and by two, and from `send` to the handler; beside dramatiq and streaq in the
same rounds.

The servers of all three sync their log before they answer. Workers and the driver share the other core.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bench import pin, tasks_dramatiq, tasks_streaq
from bench.child import Child, private_directory, python_environment
from bench.messages_dramatiq import broker
from bench.messages_faces import DurableRedis, Muster
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from bench.tasks_jobs import NOTE, NOTES
from muster.messages import AsyncMessages, message
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS

GOAL: Final = "SITE-2"
COUNT, COUNT_QUICK = 20_000, 4_000
PROBES, PROBES_QUICK = 200, 50
PROBE_S: Final = 0.02
LEAD_S: Final = 2.0
DONE_S: Final = 120.0
BATCH: Final = 1_000
AT_ONCE: Final = 8


class Site(Muster):
    """An instance with a topic whose messages are leased."""

    def start(self) -> None:
        """As `Face.start`."""
        super().start()
        scopes = {"send": "", "work": ""}
        _, self.key = keys.create(self._folder / KEYS, "site", ("send:*", "work:*"), scopes)
        self._command("topic", "create", "noop", "--callback", "pull:")
        self.url = f"http://{self._address[0]}:{self._address[1]}"

    def worker(self, number: int) -> Child:
        """A worker process on the driver's core."""
        argv = [sys.executable, "-m", "muster.work", "bench.tasks_jobs:tasks", "--at-once", str(AT_ONCE)]
        environment = {"TASKS_URL": self.url, "TASKS_KEY": self.key, NOTES: str(self.directory / "notes")}
        name = f"worker-{number}"
        return Child(name, argv, core=pin.DRIVER_CORE, directory=self.directory,
                     environment={**python_environment(), **environment})  # fmt: skip


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All of it. Raises `Missing` without a Redis."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(private_directory("tasks")))
        count, probes = (COUNT_QUICK, PROBES_QUICK) if quick else (COUNT, PROBES)
        site = Site(directory, 1)
        stack.callback(site.stop)
        site.start()
        redis = DurableRedis(directory)
        server = redis.start()
        stack.callback(server.stop)
        numbers = itertools.count()
        entries = [
            Entry("one worker", partial(_throughput, site, 1, count, numbers)),
            Entry("two workers", partial(_throughput, site, 2, count, numbers)),
            Entry("idle", partial(_idle, site, probes, numbers)),
            Entry("dramatiq", partial(_dramatiq, redis, directory, count // 4)),
            Entry("streaq", partial(_streaq, redis, directory, count // 4)),
            Entry("streaq, idle", partial(_streaq_idle, redis, directory, probes)),
        ]
        results = interleave(entries, rounds, progress)
    return tuple(_cases(results, quick=quick))


def _throughput(site: Site, workers: int, count: int, numbers: Iterator[int]) -> Sample:
    """Tasks that are all due at one moment, while workers wait for them."""

    async def measured() -> float:
        notes = _fresh(site.directory / "notes")
        async with AsyncMessages(site.url, key=site.key) as messages:
            at = time.time() + LEAD_S + count / 20_000
            for _ in range(0, count, BATCH):
                await messages.send_many("noop", [message({"sent_ns": 0}, at=at) for _ in range(min(BATCH, count))])
            return _rate(await _noted(notes, count))

    children = [site.worker(next(numbers)) for _ in range(workers)]
    try:
        return Sample({"tasks a second": asyncio.run(measured())})
    finally:
        for child in children:
            child.stop()


def _idle(site: Site, probes: int, numbers: Iterator[int]) -> Sample:
    """One task after another, from the call of `send` to the begin of its handler."""

    async def measured() -> dict[str, float]:
        notes = _fresh(site.directory / "notes")
        async with AsyncMessages(site.url, key=site.key) as messages:
            await messages.send("noop", {"sent_ns": 0})
            await _noted(notes, 1)  # the worker is there
            for _ in range(probes):
                await messages.send("noop", {"sent_ns": time.monotonic_ns()})
                await asyncio.sleep(PROBE_S)
            return _late(await _noted(notes, 1 + probes))

    child = site.worker(next(numbers))
    try:
        return Sample(asyncio.run(measured()))
    finally:
        child.stop()


def _dramatiq(redis: DurableRedis, directory: Path, count: int) -> Sample:
    """The same number of no-ops by one process of dramatiq, which waits for them."""
    redis.flush()
    notes = _fresh(directory / "notes-dramatiq")
    queue = broker(redis.port)
    for _ in range(count):
        tasks_dramatiq.send(queue, 0)
    queue.close()
    child = _peer("dramatiq", str(redis.port), notes)
    try:
        begun = asyncio.run(_noted(notes, count))
    finally:
        child.stop()
    return Sample({"tasks a second": _rate(begun)})


def _streaq(redis: DurableRedis, directory: Path, count: int) -> Sample:
    """The same for streaq."""
    redis.flush()
    notes = _fresh(directory / "notes-streaq")

    async def sent() -> None:
        for first in range(0, count, BATCH):
            await tasks_streaq.send_many(redis.url, [0] * min(BATCH, count - first))

    asyncio.run(sent())
    child = _peer("streaq", redis.url, notes)
    try:
        begun = asyncio.run(_noted(notes, count))
    finally:
        child.stop()
    return Sample({"tasks a second": _rate(begun)})


def _streaq_idle(redis: DurableRedis, directory: Path, probes: int) -> Sample:
    """One task of streaq after another."""
    redis.flush()
    notes = _fresh(directory / "notes-streaq")

    async def measured() -> dict[str, float]:
        worker, noop = tasks_streaq.queue(redis.url)
        async with worker:
            await noop.enqueue(0)
            await _noted(notes, 1)
            for _ in range(probes):
                await noop.enqueue(time.monotonic_ns())
                await asyncio.sleep(PROBE_S)
            return _late(await _noted(notes, 1 + probes))

    child = _peer("streaq", redis.url, notes)
    try:
        return Sample(asyncio.run(measured()))
    finally:
        child.stop()


def _peer(name: str, where: str, notes: Path) -> Child:
    """A worker process of another library, on the driver's core."""
    argv = [sys.executable, "-m", f"bench.tasks_{name}", where]
    environment = {**python_environment(), NOTES: str(notes)}
    return Child(name, argv, core=pin.DRIVER_CORE, directory=notes.parent, environment=environment)


def _rate(begun: Sequence[tuple[int, int]]) -> float:
    times = sorted(began for _, began in begun)
    return (len(times) - 1) / ((times[-1] - times[0]) / 1e9)


def _late(begun: Sequence[tuple[int, int]]) -> dict[str, float]:
    """From the call of `send` to the begin of the handler."""
    late = [(began - sent) / 1e6 for sent, began in begun if sent]
    return {"send to handler, p50 ms": float(np.percentile(late, 50)), "p99 ms": float(np.percentile(late, 99))}


def _fresh(file: Path) -> Path:
    file.write_bytes(b"")
    return file


async def _noted(file: Path, count: int) -> Sequence[tuple[int, int]]:
    """Wait for `count` notes and return them. Raises `TimeoutError`."""
    async with asyncio.timeout(DONE_S):
        while os.stat(file).st_size < count * NOTE.size:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    return list(NOTE.iter_unpack(file.read_bytes()))  # noqa: ASYNC240 - the driver does nothing else


def _cases(results: Results, *, quick: bool) -> Iterator[Case]:
    goals = {
        "one worker": {"tasks a second": Goal(GOAL, ">=", 3_000)},
        "two workers": {"tasks a second": Goal(GOAL, ">=", 10_000)},
        "idle": {"send to handler, p50 ms": Goal(GOAL, "<=", 3), "p99 ms": Goal(GOAL, "<=", 20)},
        "dramatiq": {},
        "streaq": {},
        "streaq, idle": {},
    }
    for entry, of in goals.items():
        yield from Case.judged(results, entry, entry, of, quick=quick)
    one = results.series("one worker", "tasks a second")
    for peer in ("dramatiq", "streaq"):
        yield Case.compared(f"one worker, beside {peer}", one, results.series(peer, "tasks a second"))
    late = "send to handler, p50 ms"
    yield Case.compared("idle, beside streaq", results.series("idle", late), results.series("streaq, idle", late))

"""The loads of the bench of delayed messages, for any scheduler: accepted, fired, killed.

Owns what is sent when, and what the null server says came of it. It must not know which scheduler it is.
"""

import asyncio
import json
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import cpu, pin
from bench.child import Child, ChildFailedError, free_port, listens, python_environment
from bench.messages_faces import Face
from bench.rounds import Sample
from muster.clock import now_ms

BATCH: Final = 1_000
DAY_MS: Final = 86_400_000
FIRES_S: Final = 60.0
CPU: Final = "µs of processor each"
RECEIVER: Final = "receiver"
FIGURES: Final = ("lateness p50, ms", "lateness p99, ms", "lateness max, ms", "early")
LOST, DOUBLED, BACK = "lost", "fired twice", "seconds until all were back"


@dataclass(frozen=True)
class Hook:
    """The null server for callbacks, on the driver's core."""

    port: int
    pid: int

    def came(self) -> list[tuple[int, float]]:
        """When each was due, and how late it came, in ms: those since the last call."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=20) as answer:
            came: list[tuple[int, float]] = json.loads(answer.read())
            return came


@contextmanager
def null_server(directory: Path) -> Iterator[Hook]:
    """Until the end of the context."""
    port = free_port()
    argv = [sys.executable, "-m", "bench.messages_hook", str(port)]
    child = Child("hook", argv, core=pin.DRIVER_CORE, directory=directory, environment=python_environment())
    try:
        child.wait_until(lambda: listens(port))
        yield Hook(port, child.pid)
    finally:
        child.stop()


class Used:
    """The processor time of processes from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids, self._before = pids, {name: cpu.process_ns(pid) for name, pid in pids.items()}

    def each(self, count: int) -> dict[str, float]:
        """Processor time of each process, in microseconds, for each of so many messages."""
        used = {name: (cpu.process_ns(pid) - self._before[name]) / 1e3 / count for name, pid in self._pids.items()}
        servers = sum(each for name, each in used.items() if name != RECEIVER)
        return {CPU: servers, **{f"{CPU}, {name}": each for name, each in used.items()}}


def accepting(face: Face, seconds: float) -> Callable[[], Sample]:
    """Batches for so long, due in a day."""

    async def accept() -> Sample:
        count = 0
        used = Used(face.pids())
        began = time.monotonic()

        async def lane() -> None:
            nonlocal count
            while time.monotonic() < began + seconds:
                at = now_ms() + DAY_MS
                await face.send([at + each for each in range(BATCH)])
                count += BATCH

        try:
            await asyncio.gather(*(lane() for _ in range(face.lanes)))
            return Sample({"messages/s": count / (time.monotonic() - began), **used.each(count)})
        finally:
            await face.reset()

    def run() -> Sample:
        sample = _on_driver(accept)
        face.clear()
        return sample

    return run


def firing(face: Face, hook: Hook, count: int, spread_ms: int) -> Callable[[], Sample]:
    """So many messages that are due within this time; 0: at one millisecond."""

    async def fire() -> Sample:
        names = {**face.pids(), RECEIVER: hook.pid}
        await asyncio.to_thread(hook.came)  # forget what came before
        at = await _sent(face, count, spread_ms)
        if now_ms() > at:
            nothing = dict.fromkeys((*FIGURES, CPU, *(f"{CPU}, {name}" for name in names)), 0.0)
            return Sample(nothing, void=f"{face.name}: the messages were not sent before they were due")
        await asyncio.sleep(max(0.0, at / 1_000 - 0.1 - time.time()))
        used = Used(names)
        await asyncio.sleep(max(0.0, (at + spread_ms) / 1_000 - time.time()))
        late: list[float] = []
        end = time.monotonic() + FIRES_S
        while len(late) < count:
            late += [each for _, each in await asyncio.to_thread(hook.came)]
            if time.monotonic() > end:
                raise ChildFailedError(f"{face.name}: {count - len(late)} of {count} messages did not fire")
            await asyncio.sleep(0.1)
        hundredths = statistics.quantiles(late, n=100)
        figures = (hundredths[49], hundredths[98], max(late), float(sum(each < 0 for each in late)))
        return Sample({**dict(zip(FIGURES, figures, strict=True)), **used.each(count)})

    return lambda: _on_driver(fire)


def killing(face: Face, hook: Hook, count: int) -> Sample:
    """All processes are killed while so many messages fire within a second, and started again."""
    face.clear()
    hook.came()
    with pin.on(pin.DRIVER_CORE):
        due = uvloop.run(_due_soon(face, count))
        time.sleep(max(0.0, due / 1_000 + 0.5 - time.time()))
        face.kill()
    killed = time.monotonic()
    face.start()
    wanted = Counter(due + each * 1_000 // count for each in range(count))
    came, last, back = Counter[int](), time.monotonic(), killed
    while (wanted - came) and time.monotonic() < last + face.repeats_s:
        some = [at for at, _ in hook.came()]
        if some:
            came.update(some)
            last = back = time.monotonic()
        time.sleep(0.1)
    came.update(at for at, _ in hook.came())
    lost, doubled = (wanted - came).total(), (came - wanted).total()
    return Sample({LOST: float(lost), DOUBLED: float(doubled), BACK: back - killed})


async def _due_soon(face: Face, count: int) -> int:
    try:
        return await _sent(face, count, 1_000)
    finally:
        await face.reset()


async def _sent(face: Face, count: int, spread_ms: int) -> int:
    """The time at which the first one is due."""
    at = now_ms() + face.lead_ms
    due = [at + each * spread_ms // count for each in range(count)]
    try:
        for first in range(0, count, BATCH):
            await face.send(due[first : first + BATCH])
    finally:
        await face.reset()
    return at


def _on_driver(work: Callable[[], Any]) -> Sample:
    with pin.on(pin.DRIVER_CORE):
        sample: Sample = uvloop.run(work())
        return sample

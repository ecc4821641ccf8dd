"""Delayed messages without servers of ours: the schedule in a folder and in a Redis, and the timing wheel.

Owns stores in this process, on the server core. It must not know roles or callbacks.
"""

import asyncio
import itertools
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvloop

from bench import loops, pin
from bench.child import ChildFailedError
from bench.messages_faces import BODY, DurableRedis
from bench.messages_loads import BATCH, CPU, DAY_MS, Used
from bench.rounds import Sample
from muster.clock import now_ms
from muster_server import _engines
from muster_server.systems.messages.redis import RedisSchedule, connect
from muster_server.systems.messages.shapes import Envelope

IN_FLIGHT: Final = 8
"""Batches at a store at once."""
HOUR_MS: Final = 3_600_000
WHOLE_S: Final = 120.0
MILLION: Final = 1_000_000
TOPIC: Final = 1
"""The number of an instance's first topic."""
WHEEL: Final = {
    "ns for an insert": "insert_ns",
    "ns for a cancel": "cancel_ns",
    "ns for a cancel in any order": "cancel_any_ns",
    "ns for an idle tick": "tick_ns",
    "bytes each": "entry_bytes",
}


class Store:
    """A schedule in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.keeper = _engines.ScheduleKeeper(
            b'{"checkpoint_bytes": 268435456}', path=str(folder), segment_bytes=64 << 20
        )

    def insert(self, arrays: Iterator[bytes]) -> None:
        """A few on their way at once; waits until all are durable. The schedule must have read what is there: `stats`."""
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
        replies = self.keeper.take()
        if any(reply[4] for reply in replies):
            raise ChildFailedError("the schedule still reads what is there, and took no message")
        return len(replies)

    def stats(self) -> dict[str, Any]:
        """Once all is read."""
        end = time.monotonic() + WHOLE_S
        while time.monotonic() < end:
            self.keeper.stats(2)
            replies: list[Any] = []
            while not replies:
                select.select([self.keeper.fd()], [], [], 10.0)
                replies = [each for each in self.keeper.take() if each[1] == "stats"]
            stats: dict[str, Any] = replies[-1][2]
            if stats["whole"]:
                return stats
        raise ChildFailedError(f"the schedule was not read in {WHOLE_S:g} s")


def arrays(first: int, count: int, due: Callable[[int], int]) -> Iterator[bytes]:
    """So many messages in batches, from this number on, as a receiver hands them to the schedule."""
    numbers = iter(range(first, first + count))
    while some := list(itertools.islice(numbers, BATCH)):
        yield msgspec.msgpack.encode([(_id(n), TOPIC, at := due(n), None, enveloped(n, at)) for n in some])


def enveloped(number: int, due_at: int) -> bytes:
    """The body of a message as the schedule has it."""
    return msgspec.msgpack.encode(Envelope(f"m-{number}", "", "application/json", 0, BODY % due_at))


def _id(number: int) -> int:
    return (number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)


def in_folder(count: int, directory: Path) -> Sample:
    """Accepted at the store in a folder, with a sync for each group."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, pin.on(pin.SERVER_CORE):
        store = Store(Path(folder))
        base = now_ms() + DAY_MS
        given = list(arrays(1, count, lambda number: base + number))  # the receivers' work
        used = Used({"store": os.getpid()})
        began = time.monotonic()
        store.insert(iter(given))
        taken = time.monotonic() - began
        figures = {"messages/s": count / taken, CPU: used.each(count)[CPU]}
        store.keeper.close()
    return Sample(figures)


def in_redis(count: int, directory: Path) -> Sample:
    """Accepted at the store in a Redis, which syncs before each answer. Both are on one core."""

    async def fill(url: str, pids: dict[str, int]) -> Sample:
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        schedule = RedisSchedule(connect(url, ""), "bench", lambda _worker, _fires: None, log, history_ms=HOUR_MS,
                                 ahead_ms=HOUR_MS, dead_days=1)  # fmt: skip
        await schedule.open()
        base = now_ms() + DAY_MS
        given = list(arrays(1, count, lambda number: base + number))
        left = iter(given)

        async def lane() -> None:
            for array in left:
                await schedule.insert_packed(array)

        used = Used(pids)
        began = time.monotonic()
        await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
        taken = time.monotonic() - began
        figures = {"messages/s": count / taken, **used.each(count)}
        live = (await schedule.stats())["live"]
        await schedule.close()
        if live != count:
            raise ChildFailedError(f"the schedule in Redis has {live} of {count} messages")
        return Sample(figures)

    with tempfile.TemporaryDirectory(dir=directory) as folder:
        redis = DurableRedis(Path(folder))
        served = redis.start()
        try:
            with pin.on(pin.SERVER_CORE):
                return uvloop.run(fill(redis.url, {"center": os.getpid(), "redis": served.pid}))
        finally:
            served.stop()


def wheel(entries: int) -> Sample:
    """Timers in memory."""
    with pin.on(pin.SERVER_CORE):
        times = loops.wheel_times(entries)
    return Sample({figure: times[name] for figure, name in WHEEL.items()})

"""How late messages fire while others are pending, and a restart with all of these.

Owns an instance that is filled while it is stopped. It must not know other schedulers.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cpu, pin
from bench.child import ChildFailedError
from bench.messages_faces import Muster
from bench.messages_loads import DAY_MS, FIGURES, FIRES_S, Hook, firing
from bench.messages_store import TOPIC, Store, arrays
from bench.progress import Progress
from bench.rounds import REPEATS_MAX, VoidRunError
from muster.clock import now_ms

RESTARTS: Final = 3
DAYS: Final = 30
"""Pending messages are due within so many days, the first one in a day."""
LOOK_S: Final = 0.000_5


@dataclass(frozen=True)
class Point:
    """So many were pending."""

    pending: int
    p50_ms: float
    p99_ms: float
    center_bytes: float
    """Resident memory of the center for each."""


@dataclass(frozen=True)
class Pending:
    """The figures. The largest number adds restarts of the store, its memory, and the whole instance from its start."""

    points: tuple[Point, ...]
    restart_s: tuple[float, ...]
    bytes_each: float
    instance_s: float


def run(sizes: Sequence[int], fired: int, hook: Hook, directory: Path, progress: Progress) -> Pending:
    """Sizes from small to large. Raises `ChildFailedError` and `VoidRunError`."""
    face, far = Muster(directory, hook.port), now_ms() + DAY_MS
    last = sizes[-1]
    points, restarts, each, first = list[Point](), tuple[float, ...](), 0.0, 0.0
    with progress(len(sizes)) as step:
        step("a topic")
        face.start()
        face.stop()
        for before, size in zip((0, *sizes), sizes, strict=False):
            step(f"{size:,} pending")
            with pin.on(pin.SERVER_CORE):
                store = Store(face.schedule)
                store.stats()
                store.insert(arrays(before + 1, size - before, lambda number: far + number * DAYS * DAY_MS // last))
                store.keeper.close()
            if size == last:  # on all cores: one thread reads the index while another one fires
                restarts, each = _restarts(face.schedule, last)
                first = _first_callback(face, hook)
            else:
                face.start()
            try:
                late = _late(face, fired, hook)
                rss = cpu.rss_bytes(face.pids()["center"])
                points.append(Point(size, late[0], late[1], rss / size))
            finally:
                face.stop()
    return Pending(tuple(points), restarts, each, first)


def _late(face: Muster, fired: int, hook: Hook) -> tuple[float, float]:
    for _ in range(1 + REPEATS_MAX):
        sample = firing(face, hook, fired, 1_000)()
        if not sample.void:
            return sample.figures[FIGURES[0]], sample.figures[FIGURES[1]]
    raise VoidRunError(sample.void)


def _restarts(folder: Path, last: int) -> tuple[tuple[float, ...], float]:
    """Seconds from opening the schedule to the fire of a message that is due, and bytes of memory for each message."""
    took: list[float] = []
    for number in range(last + 1, last + 1 + RESTARTS):
        store = Store(folder)
        store.stats()
        store.insert(arrays(number, 1, lambda _: now_ms()))
        store.keeper.close()
        began = time.monotonic()
        store = Store(folder)
        # The claim runs out at once: the next start finds the message due again.
        store.keeper.serve(1, TOPIC, 7, 1, 6, 1)
        while not any(reply[1] == "fires" for reply in store.keeper.take()):
            if time.monotonic() > began + FIRES_S:
                raise ChildFailedError("a message that was due did not fire after the schedule was opened")
            time.sleep(LOOK_S)
        took.append(time.monotonic() - began)
        stats = store.stats()
        store.keeper.close()
    return tuple(took), (stats["memory_bytes"] - stats["near_memory_bytes"]) / stats["live"]


def _first_callback(face: Muster, hook: Hook) -> float:
    """Seconds from the start of the whole instance to the first callback. It runs afterwards."""
    hook.came()
    came: list[float] = []
    began = time.monotonic()

    def look() -> None:
        while not came and time.monotonic() < began + FIRES_S:
            if hook.came():
                came.append(time.monotonic() - began)
            time.sleep(0.02)

    looking = threading.Thread(target=look)
    looking.start()
    face.start()
    looking.join()
    if not came:
        raise ChildFailedError("muster: a message that was due did not fire after the start")
    return came[0]

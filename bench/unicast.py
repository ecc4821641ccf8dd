"""Messages to one user beside messages of a room with one member: what the servers spend, and how long each takes.

Owns the instance (`muster up --with presence`) and both programs. CPU is that of all nodes together, without what they
spend while nothing is sent. Both ways are measured in one instance, in turns.
"""

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import uvloop

import muster
from bench import cpu, whole
from bench.child import ChildFailedError, private_directory
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave
from muster_server.control.cluster import instance as folders
from muster_server.control.cluster.instance import Folder
from muster_server.plane.auth import mint
from muster_server.plane.trust import signing_secrets

MESSAGES: Final = 20_000
MESSAGES_QUICK: Final = 2_000
ONE_BY_ONE: Final = 500
ONE_BY_ONE_QUICK: Final = 50
OPEN: Final = 128
"""Messages without an answer at once."""
BYTES: Final = 100
USER: Final = 7
ROOM: Final = "bench:one"
START_S: Final = 60.0
LOOK_S: Final = 0.2
IDLE_S: Final = 2.0
TOKEN_S: Final = 3_600.0

EACH, RATE, P50, P99 = "servers, µs CPU a message", "messages/s", "p50, ms", "p99, ms"
ROLES: Final = ("proxy", "unicast", "broker", "gateway")
TO_USER, TO_ROOM = "to a user with one device", "to a room with one member"
GOAL: Final = Goal("PF-25", "<=", 3)
One = Callable[[bytes], Awaitable[object]]


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """Both ways in turns. Raises `ChildFailedError`."""
    count, single = (MESSAGES_QUICK, ONE_BY_ONE_QUICK) if quick else (MESSAGES, ONE_BY_ONE)
    with (
        private_directory("unicast") as place,
        whole.running(Path(place), "presence") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        idle = runner.run(_idle(folder))

        def sample(to_user: bool) -> Sample:
            return Sample(runner.run(_measured(folder, idle, to_user, count, single)))

        entries = [Entry(TO_USER, lambda: sample(True)), Entry(TO_ROOM, lambda: sample(False))]
        results = interleave(entries, rounds, progress)
    user, room = (results.series(entry, EACH) for entry in (TO_USER, TO_ROOM))
    plain = [
        Case.plain(f"{entry}: {figure}", results.series(entry, figure))
        for entry in (TO_USER, TO_ROOM)
        for figure in results.figures(entry)
        if figure != EACH
    ]
    return (Case.compared(f"{EACH}, {TO_USER}", user, room, GOAL, quick=quick), *plain)


def _spent(folder: Folder) -> Counter[str]:
    """CPU nanoseconds since their start, by role."""
    spent: Counter[str] = Counter()
    for process in folders.find(folder).processes:
        spent[process.role] += cpu.process_ns(process.pid) if process.pid else 0
    return spent


async def _idle(folder: Folder) -> dict[str, float]:
    """CPU nanoseconds of each role in a second without messages."""
    before, began = _spent(folder), time.monotonic()
    await asyncio.sleep(IDLE_S)
    spent, seconds = _spent(folder), time.monotonic() - began
    return {role: (spent[role] - before[role]) / seconds for role in spent}


async def _measured(folder: Folder, idle: dict[str, float], to_user: bool, count: int, single: int) -> dict[str, float]:
    token = mint(signing_secrets(str(folder.jwt_secret))[0], USER, ["read"], time.time(), TOKEN_S, device="phone")
    data = bytes(BYTES)
    async with (
        muster.connect(folder.path, proxies=[], token=token) as device,
        muster.connect(folder.path, gateways=[]) as sender,
        device.join(ROOM) as room,
    ):
        reading = asyncio.create_task(_read_user(device) if to_user else _read_room(room))
        one = _to_user(sender) if to_user else _to_room(sender)
        await _until_delivered(one, data)
        took = [await _timed(one, data) for _ in range(single)]
        before, began = _spent(folder), time.monotonic()
        left = iter(range(count))
        await asyncio.gather(*(_worker(one, data, left) for _ in range(OPEN)))
        seconds = time.monotonic() - began
        spent = {role: ns - before[role] - idle[role] * seconds for role, ns in _spent(folder).items()}
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return {
        EACH: sum(spent.values()) / count / 1e3,
        **{f"{role}, µs CPU a message": spent[role] / count / 1e3 for role in ROLES},
        RATE: count / seconds,
        P50: statistics.median(took) * 1e3,
        P99: statistics.quantiles(took, n=100)[98] * 1e3,
    }


def _to_user(sender: muster.Client) -> One:
    async def one(data: bytes) -> None:
        results = await sender.send(USER, data)
        if [each.outcome for each in results] != ["delivered"]:
            raise ChildFailedError(f"a message to the user ended as {results}")

    return one


def _to_room(sender: muster.Client) -> One:
    return lambda data: sender.publish(ROOM, data)


async def _until_delivered(one: One, data: bytes) -> None:
    """The user is known at every site a moment after its session is open."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(ChildFailedError):
                await one(data)
                return
            await asyncio.sleep(LOOK_S)


async def _timed(one: One, data: bytes) -> float:
    began = time.perf_counter()
    await one(data)
    return time.perf_counter() - began


async def _worker(one: One, data: bytes, left: Iterator[int]) -> None:
    for _ in left:
        await one(data)


async def _read_user(device: muster.Client) -> None:
    async for _ in device.direct():
        pass


async def _read_room(room: muster.Room) -> None:
    async for _ in room.batches():
        pass

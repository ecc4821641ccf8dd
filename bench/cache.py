"""What the cache costs and keeps, beside cashews, aiocache and dogpile.cache: hits, loads of a miss, drops, and a scan.

Owns the loads and the goals of SITE-1. All libraries share one Redis, and take turns in the same rounds.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
import uvloop
from redis.asyncio import Redis as Client
from redis.utils import HIREDIS_AVAILABLE

from bench import cache_libraries as libraries
from bench.cache_programs import LOAD_S, Change, Programs, Together, Watch
from bench.peers import Redis
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster.cache import Cache

if not HIREDIS_AVAILABLE:
    raise ModuleNotFoundError("redis-py without hiredis", name="hiredis")

GOAL: Final = "SITE-1"
NEAR_US, FAR_RATIO, LOADS, HEARD_P99_MS, HOT_FALL = 2.0, 1.3, 1.0, 20.0, 25.0
HITS, HITS_QUICK = 50_000, 5_000
GETS, GETS_QUICK = 5_000, 1_000
MISSES, MISSES_QUICK = 200, 10
DROPS, DROPS_QUICK = 300, 30
SCANNED, SCANNED_QUICK = 200_000, 5_000
"""Absent ids in a round: a million in the five rounds of a whole run."""
PROCESSES, CALLERS = 4, 50
HOT: Final = 200
NEAR: Final = {"muster": "muster", "cashews": "cashews_hit", "aiocache": "aiocache_hit", "dogpile": "dogpile"}
STAMPEDE: Final = {"muster": "muster", "cashews": "cashews", "aiocache": "aiocache_stampede"}


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All of it. Raises `Missing` without a Redis."""
    with ExitStack() as stack:
        redis = Redis()
        redis.find()
        stack.callback(redis.stop)
        redis.start()
        names = itertools.count()
        hits = HITS_QUICK if quick else HITS
        entries = [
            Entry(f"level 1, {name}", partial(_near, redis.port, library, hits)) for name, library in NEAR.items()
        ]
        entries += [
            Entry("level 2", partial(_far, redis.port, GETS_QUICK if quick else GETS)),
            Entry("scan", partial(_scan, redis.port, SCANNED_QUICK if quick else SCANNED, names)),
        ]
        for name, library in STAMPEDE.items():
            programs = Programs(library, redis.port, PROCESSES, f"of-{name}")
            stack.callback(programs.stop)
            misses, ids = MISSES_QUICK if quick else MISSES, itertools.count()
            entries.append(Entry(f"misses, {name}", partial(_misses, programs, misses, ids)))
            if name == "muster":
                entries.append(Entry("drops", partial(_drops, programs, DROPS_QUICK if quick else DROPS, ids)))
        results = interleave(entries, rounds, progress)
    return tuple(_cases(results, quick=quick))


def _near(port: int, library: str, hits: int) -> Sample:
    async def measured() -> float:
        async with AsyncExitStack() as stack:
            read = await getattr(libraries, library)(stack, port, _value, "hits")
            plain = library == "dogpile"
            if not plain:
                await read(7)
                await read(7)
            began = time.thread_time()
            if plain:
                for _ in range(hits):
                    read(7)
            else:
                for _ in range(hits):
                    await read(7)
            return (time.thread_time() - began) / hits * 1e6

    return Sample({"µs CPU": uvloop.run(measured())})


async def _value(id: int) -> Any:
    return libraries.VALUE | {"id": id}


def _far(port: int, count: int) -> Sample:
    """Turns of both, so that the machine's moods hit them alike. The level in the process is emptied before each read."""

    async def measured() -> dict[str, float]:
        async with AsyncExitStack() as stack:
            cache = await stack.enter_async_context(Cache(f"redis://127.0.0.1:{port}", name="far"))
            client: Any = Client(port=port)
            stack.push_async_callback(client.aclose)
            read = cache.cached("share:{id}", fresh_s=600, early=0)(_value)
            await read(7)
            (name,) = [key async for key in client.scan_iter("muster:cache:{far:share:7}")]
            spent = {"muster": 0.0, "redis-py's GET": 0.0}
            for turn in range(10):
                order = list(spent) if turn % 2 else list(reversed(spent))
                for side in order:
                    began = time.thread_time()
                    if side == "muster":
                        for _ in range(count // 10):
                            cache._near.remove("share:7")
                            await read(7)
                    else:
                        for _ in range(count // 10):
                            await client.get(name)
                    spent[side] += time.thread_time() - began
            return {f"{side}, µs CPU": seconds / count * 1e6 for side, seconds in spent.items()}

    return Sample(uvloop.run(measured()))


def _misses(programs: Programs, count: int, ids: Iterator[int]) -> Sample:
    loads = []
    for _ in range(count):
        id, at = next(ids), time.monotonic() + 0.02
        loads.append(sum(programs.ask([Together(id, CALLERS, at)] * PROCESSES)))
    return Sample({"loads of a miss": float(np.mean(loads)), "most loads of a miss": float(max(loads))})


def _drops(programs: Programs, count: int, ids: Iterator[int]) -> Sample:
    """One process writes and drops, another one reads all the time: how long it still gets the old value."""
    writer, reader = programs.pipes[:2]
    id, ages = next(ids), []
    reader.send(Watch(id, 0))
    programs.answer(reader)
    for value in range(1, count + 1):
        reader.send(Watch(id, value))
        writer.send(Change(id, value))
        dropped, seen = programs.answer(writer), programs.answer(reader)
        ages.append((seen - dropped) * 1e3)
    p50, p99 = np.percentile(ages, (50, 99)) - LOAD_S * 1e3  # the reader loads the new value first
    return Sample({"p50, ms": max(0.0, float(p50)), "p99, ms": max(0.0, float(p99))})


def _scan(port: int, absent: int, names: Iterator[int]) -> Sample:
    """A hot set is read; then the same between absent ids. Counts loads, bytes, and what the hot set loses."""

    async def measured() -> dict[str, float]:
        name = f"scan-{next(names)}"
        async with Cache(f"redis://127.0.0.1:{port}", name=name, near_bytes=1 << 20) as cache:
            found = cache.cached("hot:{id}", fresh_s=600, early=0)(_value)
            asked = 0

            @cache.cached("absent:{id}", fresh_s=600, absent_s=5)
            async def missing(id: int) -> Any:
                nonlocal asked
                asked += 1

            async def read_hot() -> float:
                before = cache.figures()["near_hits"]
                for id in range(HOT):
                    await found(id)
                return (cache.figures()["near_hits"] - before) / HOT

            for _ in range(10):
                await read_hot()
            ratios, most_bytes = [], 0.0
            for first in range(0, absent, 1_000):
                await asyncio.gather(*(missing(id) for id in range(first, min(absent, first + 1_000))))
                ratios.append(await read_hot())
                most_bytes = max(most_bytes, cache.figures()["near_bytes"])
            return {
                "loads an absent id": asked / absent,
                "hot hits lost, %": 100 * (1 - float(np.mean(ratios))),
                "level 1 over its bound": most_bytes / (1 << 20),
            }

    return Sample(uvloop.run(measured()))


def _cases(results: Results, *, quick: bool) -> Iterator[Case]:
    ours = results.series("level 1, muster", "µs CPU")
    yield Case.limit("a hit at level 1, µs CPU", ours, Goal(GOAL, "<=", NEAR_US), quick=quick)
    for name in list(NEAR)[1:]:
        yield Case.compared(f"a hit at level 1, over {name}", ours, results.series(f"level 1, {name}", "µs CPU"))
    yield Case.compared(
        "a hit at level 2, µs CPU, over redis-py's GET",
        results.series("level 2", "muster, µs CPU"),
        results.series("level 2", "redis-py's GET, µs CPU"),
        Goal(GOAL, "<=", FAR_RATIO),
        quick=quick,
    )
    callers = f"{PROCESSES * CALLERS} callers in {PROCESSES} processes"
    for name in STAMPEDE:
        most = results.series(f"misses, {name}", "most loads of a miss")
        if name == "muster":
            yield Case.worst(f"loads of a miss, {callers}, most", most, Goal(GOAL, "<=", LOADS))
        else:
            yield Case.plain(f"loads of a miss, {callers}, most, {name}", most)
    yield Case.plain("old value in another process after a drop, p50, ms", results.series("drops", "p50, ms"))
    p99 = results.series("drops", "p99, ms")
    title = "old value in another process after a drop, p99, ms"
    yield Case.plain(title, p99) if quick else Case.limit(title, p99, Goal(GOAL, "<=", HEARD_P99_MS))
    bounds: dict[str, float] = {"loads an absent id": 1.0, "hot hits lost, %": HOT_FALL, "level 1 over its bound": 1.0}
    for figure, bound in bounds.items():
        yield Case.worst(f"a scan of absent ids: {figure}", results.series("scan", figure), Goal(GOAL, "<=", bound))

"""Many nodes start together on a real ZooKeeper: the time until all know all, and what that and a change cost.

The nodes are light: the registry's client of each, many in a process, and no data plane. They, ZooKeeper and everything
else share the cores of this machine; on machines of their own each would have one. CPU is that of the processes of nodes,
without their start. A quarter of the nodes in the same rounds shows what grows with their number.
"""

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench import pin
from bench.child import ChildFailedError, python_environment
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from bench.zookeeper import ZooKeeper

NODES, NODES_QUICK = 1_000, 200
EACH: Final = 50
"""Nodes in a process."""
LIMIT_S: Final = 300.0
CHANGES: Final = 10
QUIET_S: Final = 3.0
APART_S: Final = 1.0

START, READS, CPU, CHANGE = "s until all know all", "requests a node", "CPU ms a node", "CPU us of a change a node"
GOALS: Final = {START: Goal("PF-37", "<=", 30.0), CHANGE: Goal("PF-37", "<=", 50.0)}
LINEAR: Final = Goal("PF-37", "<=", 2.0)


def run(*, rounds: int, quick: bool, nodes: int = 0, progress: Progress = silent) -> tuple[Case, ...]:
    """`nodes`: how many start together; 0: as many as by default. Raises `Missing`, `ChildFailedError`."""
    many = nodes or (NODES_QUICK if quick else NODES)
    few = max(1, many // 4)
    results = interleave([_entry(few), _entry(many)], rounds, progress)
    return tuple(_cases(results, few, many, quick=quick))


def _name(nodes: int) -> str:
    return f"{nodes:,} nodes"


def _entry(nodes: int) -> Entry:
    return Entry(_name(nodes), lambda: once(nodes))


def _cases(results: Results, few: int, many: int, *, quick: bool) -> Iterator[Case]:
    for nodes in (few, many):
        goals = GOALS if nodes == many else {}
        yield from Case.judged(results, _name(nodes), _name(nodes), goals, quick=quick)
    of, base = results.series(_name(many), READS), results.series(_name(few), READS)
    yield Case.compared(f"{READS}, {_name(many)} over {few:,}", of, base, LINEAR, quick=quick)


def once(nodes: int) -> Sample:
    """One start of this many, and changes of one of them."""
    with ExitStack() as stack:
        service = stack.enter_context(ZooKeeper(pin.SERVER_CORE))
        os.sched_setaffinity(service.pid, {pin.SERVER_CORE, pin.DRIVER_CORE})
        parts = [
            stack.enter_context(_Part(service.url, at, min(EACH, nodes - at), nodes)) for at in range(0, nodes, EACH)
        ]
        for part in parts:
            part.answer()
        before, began = _counted(parts), time.monotonic()
        started = _asked(parts, "start")
        after = _counted(parts)
        requests = [each for part in started for each in part["requests"]]
        time.sleep(QUIET_S)
        idle = _cost(parts, [])
        changed = _cost(parts, parts[:1])
    return Sample(
        {
            START: max(part["seen"] for part in started) - began,
            READS: statistics.median(requests),
            CPU: (after[0] - before[0]) / nodes * 1e3,
            CHANGE: (changed[0] - idle[0]) / max(1, changed[1] - idle[1]) * 1e6,
        }
    )


def _cost(parts: Sequence["_Part"], changing: Sequence["_Part"]) -> tuple[float, int]:
    """CPU in seconds, and maps taken, over the time of some changes."""
    before = _counted(parts)
    for at in range(CHANGES):
        for part in changing:
            part.ask(f"weigh {at + 2}")
            part.answer()
        time.sleep(APART_S)
    after = _counted(parts)
    return after[0] - before[0], after[1] - before[1]


def _counted(parts: Sequence["_Part"]) -> tuple[float, int]:
    said = _asked(parts, "count")
    return sum(each["cpu"] for each in said), sum(each["maps"] for each in said)


def _asked(parts: Sequence["_Part"], word: str) -> list[dict[str, Any]]:
    for part in parts:
        part.ask(word)
    return [part.answer() for part in parts]


class _Part:
    """A process with some of the nodes."""

    def __init__(self, url: str, first: int, count: int, nodes: int) -> None:
        argv = [sys.executable, "-m", "bench.starts_nodes", url, *map(str, (first, count, nodes))]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=python_environment(),
        )

    def __enter__(self) -> "_Part":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, word: str) -> None:
        """Write a word to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Read its answer. Raises `ChildFailedError` after `LIMIT_S`."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise ChildFailedError(f"a process of nodes did not answer within {LIMIT_S:g} s, or has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

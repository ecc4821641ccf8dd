"""What one message costs a Python program: the library beside redis-py with hiredis and nats-py, all on uvloop.

Owns the loads and the goals of PF-31. All servers run on one core; on the other one a program reads and another one
publishes, the same for each library. Every message is counted and compared.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from bench.muster import APART, PACED, TOGETHER, Instance
from bench.peers import Missing, Nats, Peer, Redis
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from bench.sdk_libraries import OfMuster, OfNats, OfRedis
from bench.sdk_programs import GO, Heard, Library, Program, Published, Publishing, Reading, Upto

LATE_US_MAX: Final = 5_000.0
"""The publisher shares its core with the readers. Later than that, publishes come in bursts of ten, which are cheaper to
read: a sample of ours is void then. One of a peer counts, to its advantage, and its delay is shown."""
P50, P99 = "p50, ms", "p99, ms"
READ, PUBLISH, RATE = "reader, µs CPU each", "publisher, µs CPU each", "publishes/s"
LOST, LATE = "lost or wrong", "publisher late, p99, ms"
MUSTER, MUSTER_APART, REDIS, NATS = "muster", "muster apart", "redis-py", "nats-py"
"""Muster's nodes share a process, as the peers' servers are one process, and as by default; apart for comparison."""


@dataclass(frozen=True)
class Shape:
    """A load. `rate` publishes a second, or `in_flight` under way at once."""

    name: str
    readers: int
    count: int
    rate: float = 0.0
    in_flight: int = 0

    @property
    def warm_up(self) -> int:
        """Publishes before those that count."""
        return self.count // 10

    def share(self, part: float) -> "Shape":
        """The same with a part of the messages."""
        return Shape(self.name, self.readers, int(self.count * part), self.rate, self.in_flight)


ONE: Final = Shape("1,000/s to one reader", 1, 3_000, rate=1_000)
MANY: Final = Shape("2,000/s to 20 readers", 20, 4_000, rate=2_000)
AWAITED: Final = Shape("256 awaited publishes at once", 1, 50_000, in_flight=256)
SHAPES: Final = (ONE, MANY, AWAITED)
QUICK_SHARE: Final = 0.2

FIGURES: Final[Mapping[str, Sequence[str]]] = {
    ONE.name: (P50, P99, READ),
    MANY.name: (READ, P50),
    AWAITED.name: (PUBLISH, RATE),
}
OF_NATS: Final[Mapping[tuple[str, str], float]] = {(ONE.name, P50): 1.0, (ONE.name, P99): 1.0, (MANY.name, READ): 1.0}
"""Goals over nats-py."""
PUBLISH_US: Final = 6.0
GOAL: Final = "PF-31"


def run(
    *,
    rounds: int,
    quick: bool,
    say: Callable[[str], None],
    payload_bytes: int = 200,
    shapes: Sequence[Shape] = SHAPES,
    progress: Progress = silent,
) -> tuple[Case, ...]:
    """All libraries that are here, all loads in turn. `say` is told of servers that are not. Raises `ChildFailedError`."""
    with ExitStack() as stack:
        sides = [_Side(stack, name, library) for name, library in _libraries(stack, say)]
        parts = [shape.share(QUICK_SHARE) if quick else shape for shape in shapes]
        entries = [
            Entry(f"{shape.name}, {side.name}", partial(_sample, side, shape, payload_bytes))
            for shape in parts
            for side in sides
        ]
        results = interleave(entries, rounds, progress)
        names = [side.name for side in sides]
    return tuple(case for shape in shapes for case in _cases(results, shape.name, names, quick=quick))


def _libraries(stack: ExitStack, say: Callable[[str], None]) -> Iterator[tuple[str, Library]]:
    """With their servers, which run until the stack is left."""
    for name, layout in ((MUSTER, TOGETHER), (MUSTER_APART, APART)):
        instance = Instance(settings={"up.processes": layout})
        stack.callback(instance.stop)
        instance.start()
        yield name, OfMuster(instance.folder)
    peers: list[tuple[Peer, str, type[OfRedis | OfNats]]] = [(Redis(), REDIS, OfRedis), (Nats(), NATS, OfNats)]
    for peer, name, library in peers:
        try:
            peer.find()
        except Missing as missing:
            say(str(missing))
            continue
        stack.callback(peer.stop)
        peer.start()
        yield name, library(peer.port)


class _Side:
    """A library's two programs."""

    def __init__(self, stack: ExitStack, name: str, library: Library) -> None:
        self.name = name
        self._reads = Program(library)
        stack.callback(self._reads.stop)
        self._publishes = Program(library)
        stack.callback(self._publishes.stop)
        self._rooms = (f"{PACED}:sdk-{number}" for number in itertools.count())

    def measured(self, shape: Shape, payload_bytes: int) -> tuple[Heard, Published]:
        """One sample."""
        room = next(self._rooms)
        self._reads.ask(Reading(room, shape.readers, payload_bytes))
        self._publishes.ask(Publishing(room, payload_bytes, shape.warm_up, shape.count, shape.rate, shape.in_flight))
        self._reads.ask(Upto(shape.warm_up))
        published: Published = self._publishes.ask(GO)
        heard: Heard = self._reads.ask(Upto(shape.count))
        self._publishes.ask(GO)
        self._reads.ask(GO)
        return heard, published


def _sample(side: _Side, shape: Shape, payload_bytes: int) -> Sample:
    heard, published = side.measured(shape, payload_bytes)
    expected = shape.count * shape.readers
    late = published.late_us > LATE_US_MAX
    ages_ms = np.array(heard.ages_us or [0.0]) / 1e3
    return Sample(
        {
            P50: float(np.percentile(ages_ms, 50)),
            P99: float(np.percentile(ages_ms, 99)),
            READ: heard.cpu_ns / max(1, heard.messages) / 1e3,
            PUBLISH: published.cpu_ns / shape.count / 1e3,
            RATE: shape.count / published.seconds,
            LOST: abs(expected - heard.messages) + heard.wrong,
            LATE: published.late_us / 1e3,
        },
        void=f"the publisher was {published.late_us:,.0f} µs late" if late and side.name == MUSTER else "",
    )


def _cases(results: Results, shape: str, names: Sequence[str], *, quick: bool) -> Iterator[Case]:
    for figure in FIGURES[shape]:
        ours = results.series(f"{shape}, {MUSTER}", figure)
        for name in names[1:]:
            theirs = results.series(f"{shape}, {name}", figure)
            bound = OF_NATS.get((shape, figure)) if name == NATS else None
            judged = bound is not None and not (quick and figure == P99)
            goal = Goal(GOAL, "<=", bound) if bound is not None and judged else None
            yield Case.compared(f"{shape}: {figure}, over {name}", ours, theirs, goal, quick=quick)
        if figure == PUBLISH:
            yield Case.limit(f"{shape}: {figure}", ours, Goal(GOAL, "<=", PUBLISH_US), quick=quick)
        elif len(names) == 2:  # no peer is here
            yield Case.plain(f"{shape}: {figure}", ours)
    for name in names:
        lost = results.series(f"{shape}, {name}", LOST)
        if name in {MUSTER, MUSTER_APART}:
            yield Case.worst(f"{shape}, {name}: {LOST}", lost, Goal(GOAL, "<=", 0))
        elif lost.max:
            yield Case.plain(f"{shape}, {name}: {LOST}", lost)
        late = results.series(f"{shape}, {name}", LATE)
        if late.max * 1e3 > LATE_US_MAX:
            yield Case.plain(f"{shape}, {name}: {LATE}", late)

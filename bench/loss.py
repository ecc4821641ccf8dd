"""Links that lose 1 %, hold back 1 % for 5 ms and double 1 %, beside links without faults (PF-10).

The servers' drivers inject these faults into single datagrams, on every link and in both directions between servers and
clients. A message crosses four such hops, and so does its acknowledgement. Two instances take turns, one with faults
and one with rules that hit nothing, each with publishers that send whenever there is credit.

The rooms are `paced`: they wait for repair rather than give a message up. So each member must have each message once:
none *missing* (neither delivered nor told as lost), none *told as lost*, none *doubled* or out of its publisher's
order. The drivers count the injected faults, and the bench prints them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench import asked
from bench.muster import PACED, PATIENCE_SECONDS, Instance, Outcome
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.control.errors import UserError

FAULTS: Final[dict[str, object]] = {
    "faults.loss": 0.01,
    "faults.reorder": 0.01,
    "faults.reorder_hold_ms": 5,
    "faults.duplicate": 0.01,
}
NO_FAULTS: Final[dict[str, object]] = {"faults.loss": 1e-9}
"""Rules that hit nothing. Drivers with rules split what the kernel joins, and that is a cost of the test, not of loss."""
WITH, WITHOUT = "with faults", "without"
SECONDS, SECONDS_QUICK, WARM_UP_SECONDS = 5.0, 1.0, 0.5
SHARE_MIN = 0.9

RATE, CPU = "deliveries/s", "server CPU ns each"
MISSING, LOST, DOUBLED, CORRUPTED = "missing", "told as lost", "doubled or out of order", "corrupted"
WRONG = (MISSING, LOST, DOUBLED, CORRUPTED)
DONE = ("lost", "reordered", "duplicated")


@dataclass(frozen=True)
class Shape:
    """Rooms of this many members."""

    rooms: int
    members: int

    @property
    def name(self) -> str:
        return f"{self.rooms} room{'s' if self.rooms > 1 else ''} of {self.members}"


SHAPES: Final = (Shape(1, 100), Shape(64, 4))


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Two instances take turns."""
    seconds = SECONDS_QUICK if quick else SECONDS
    instances = {WITH: Instance(settings=FAULTS), WITHOUT: Instance(settings=NO_FAULTS)}
    try:
        for instance in instances.values():
            instance.start()
        entries = [
            _entry(kind, instance, shape, payload_bytes, seconds)
            for shape in SHAPES
            for kind, instance in instances.items()
        ]
        results = interleave(entries, rounds, progress)
    finally:
        for instance in instances.values():
            instance.stop()
    return tuple(case for shape in SHAPES for case in _cases(results, shape, quick=quick))


def _name(shape: Shape, kind: str) -> str:
    return f"{shape.name}, {kind}"


def _entry(kind: str, instance: Instance, shape: Shape, payload_bytes: int, seconds: float) -> Entry:
    def once() -> Sample:
        rooms = [instance.room(PACED) for _ in range(shape.rooms)]
        with instance.clients(shape.rooms * shape.members, rooms=rooms) as engine:
            runs: list[Outcome] = [engine.saturate(payload_bytes, WARM_UP_SECONDS, PATIENCE_SECONDS)]
            before, faults_before = sum(instance.cpu_ns().values()), _faults(instance)
            runs.append(engine.saturate(payload_bytes, seconds, PATIENCE_SECONDS))
            used, faults = sum(instance.cpu_ns().values()) - before, _faults(instance)
        done = runs[-1]
        figures = {RATE: done["delivered"] / max(done["wall_us"], 1) * 1e6, CPU: used / max(done["delivered"], 1)}
        figures |= _account(runs, shape.members)
        seen = faults["seen"] - faults_before["seen"]
        figures |= {f"datagrams {name} %": 100 * (faults[name] - faults_before[name]) / max(seen, 1) for name in DONE}
        return Sample(figures)

    return Entry(_name(shape, kind), once)


def _account(runs: Sequence[Outcome], members: int) -> dict[str, float]:
    def total(name: str) -> int:
        return sum(done[name] for done in runs)

    owed, delivered, lost = total("published") * members, total("delivered"), total("lost")
    doubled = max(delivered + lost - owed, total("out_of_turn") - total("gaps"), 0)
    missing = max(owed - delivered - lost, 0)
    counts = zip(WRONG, (missing, lost, doubled, total("corrupted")), strict=True)
    return {name: float(count) for name, count in counts}


def _faults(instance: Instance) -> dict[str, float]:
    """Datagrams subject to the drivers' rules, and the faults that hit them."""
    total = dict.fromkeys(("seen", *DONE), 0.0)
    for process in instance.record.processes:
        try:
            figures = asked.metrics(process)
        except UserError:
            continue
        for name in total:
            total[name] += figures[f"muster_faults_{name}_total"]
    return total


def _cases(results: Results, shape: Shape, *, quick: bool) -> Iterator[Case]:
    mine, theirs = _name(shape, WITH), _name(shape, WITHOUT)
    for figure in results.figures(mine):
        series, reference = results.series(mine, figure), results.series(theirs, figure)
        title = f"{shape.name}: {figure}"
        if figure == RATE:
            goal = Goal("PF-10", ">=", SHARE_MIN)
            yield Case.compared(f"{title}, {WITH} over {WITHOUT}", series, reference, goal, quick=quick)
        elif figure == CPU:
            yield Case.compared(f"{title}, {WITH} over {WITHOUT}", series, reference)
        elif figure in WRONG:
            yield Case.worst(f"{title}, {WITH}", series, Goal("PF-10", "<=", 0.0), quick=quick)
            yield Case.worst(f"{title}, {WITHOUT}", reference, Goal("PF-10", "<=", 0.0), quick=quick)
        else:
            yield Case.plain(f"{title}, {WITH}", series)

"""Rooms at a gateway with presence on, beside one without: the gateway's CPU for a delivery, saturated and paced.

Two instances of `muster up` take turns; they differ by `systems.enabled`. The members share a token that names no user, so
nobody comes or goes while it is measured. Of the nodes of presence none is measured: they are no part of a delivery.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from bench.muster import GATEWAY, Instance, Muster
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from bench.targets import Load

GOAL: Final = Goal("PF-30", "<=", 1.03)
CPU_EACH: Final = "gateway CPU ns each"
ON: Final = {"systems.enabled": "presence", "presence.sites": 1}
PAYLOAD: Final = 200


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """Both instances in turn, by load."""
    seconds = 0.4 if quick else 1.5
    loads = [  # those of PF-1 and PF-6
        Load("saturated", 100, PAYLOAD, seconds=seconds, warm_up_seconds=0.2),
        Load("paced", 100, PAYLOAD, rate=10_000.0, seconds=seconds, warm_up_seconds=0.2),
    ]
    with ExitStack() as stack:
        targets = {"with presence": Muster(Instance(settings=ON)), "without": Muster(Instance())}
        for target in targets.values():
            stack.callback(target.stop)
            target.start()
        entries = [_entry(name, target, load) for load in loads for name, target in targets.items()]
        return tuple(_cases(interleave(entries, rounds, progress), loads, quick))


def _entry(name: str, target: Muster, load: Load) -> Entry:
    def once() -> Sample:
        done = target.run(load)
        void = f"the generator was {done.late_p99_us / 1000:.1f} ms late (p99)" if done.void else ""
        return Sample({CPU_EACH: done.role_cpu_ns[GATEWAY] / max(done.deliveries, 1)}, void)

    return Entry(f"{name}, {load.name}", once)


def _cases(results: Results, loads: list[Load], quick: bool) -> Iterator[Case]:
    for load in loads:
        on, off = (results.series(f"{name}, {load.name}", CPU_EACH) for name in ("with presence", "without"))
        yield Case.compared(f"rooms, {load.name}: {CPU_EACH}, with presence over without", on, off, GOAL, quick=quick)

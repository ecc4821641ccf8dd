"""The cost of more nodes per message: two gateways against one (PF-9), brokers and routers 4x2 against one of each.

The instances take turns in the same rounds, under the loads of `fanout` (PF-1), `peers` (PF-5), `paced` (PF-6) and
`hops` (PF-11). Many nodes are no worse if their figure is at most 1.10 times that of one of each, and both ranges
overlap. The work of idle nodes (pings, timers) grows with the nodes, not with the messages. So it is measured before
each run and subtracted where CPU per delivery is judged; the figure with it is printed too.

Each of the two gateways has as many members and deliveries as the single one. All servers share one core, so two
gateways have no more CPU than one: only the CPU per delivery can be judged here.

The cost of an idle link is the extra CPU of a gateway with sixteen links over one with two.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from bench import fanout
from bench.muster import GATEWAY, PACED, Instance, drive
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from bench.targets import Load

MANY: Final[dict[str, object]] = {"up.brokers": "4x2", "up.routers": "4x2"}
TWO: Final[dict[str, object]] = {"up.gateways": 2}
ONE_OF_EACH, PARTITIONS, GATEWAYS = "one of each", "brokers and routers 4x2", "two gateways"
NO_WORSE, NO_SLOWER, GATEWAYS_MAX = 1.10, 0.91, 1.05
ALONE_FANOUT, ALONE_WINDOW = 100, 32
FANOUT, RATE = 100, 100_000.0
HOPS_FANOUTS, HOPS_RATE = (1, 100, 1_000), 10_000.0
GATEWAY_MEMBERS, GATEWAY_RATE = 500, 50_000.0  # of each gateway
SECONDS, SECONDS_QUICK, IDLE_SECONDS = 1.5, 0.4, 0.5
STILL_SECONDS, STILL_SECONDS_QUICK = 5.0, 1.0

RATE_EACH, CHAIN, CHAIN_AND_IDLE = "deliveries/s", "server CPU ns each", "server CPU ns each, idle included"
GATEWAY_CPU, IDLE, LOST = "gateway CPU ns each", "idle CPU of all, % of a core", "lost"
STILL, LINKS = "gateway CPU without traffic, % of a core", "links of the gateway"


@dataclass(frozen=True)
class Kind:
    """One load, and its figures with their goals."""

    load: Load
    goals: dict[str, Goal]


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Three instances take turns, then the two with a gateway alone on its core: their idle processes are on the driver
    core."""
    seconds = SECONDS_QUICK if quick else SECONDS
    instances = {ONE_OF_EACH: Instance(), PARTITIONS: Instance(settings=MANY), GATEWAYS: Instance(settings=TWO)}
    kinds = _kinds(payload_bytes, seconds)
    one, two = (_gateways_load(count, payload_bytes, seconds) for count in (1, 2))
    entries = [_entry(instances[name], name, kind.load) for kind in kinds for name in (ONE_OF_EACH, PARTITIONS)]
    entries += [_entry(instances[ONE_OF_EACH], ONE_OF_EACH, one), _entry(instances[GATEWAYS], GATEWAYS, two)]
    still = STILL_SECONDS_QUICK if quick else STILL_SECONDS
    entries += [_still(instances[name], name, still) for name in (ONE_OF_EACH, PARTITIONS)]
    with _started(instances):
        results = interleave(entries, rounds, progress)
    alone = {
        ONE_OF_EACH: Instance("--gateway-alone", "--unbundled"),
        PARTITIONS: Instance("--gateway-alone", "--unbundled", settings=MANY),
    }
    shape = fanout.Shape(ALONE_FANOUT, payload_bytes)
    entries = [fanout.entry(name, instance, shape, seconds, ALONE_WINDOW) for name, instance in alone.items()]
    with _started(alone):
        results.samples.update(interleave(entries, rounds, progress).samples)
    return (
        *_alone_cases(results, shape, quick=quick),
        *(case for kind in kinds for case in _kind_cases(results, kind, quick=quick)),
        *_gateway_cases(results, one, two, quick=quick),
        *_link_cases(results),
    )


@contextmanager
def _started(instances: Mapping[str, Instance]) -> Iterator[None]:
    with ExitStack() as stack:
        for instance in instances.values():
            stack.callback(instance.stop)
            instance.start()
        yield


def _kinds(payload_bytes: int, seconds: float) -> list[Kind]:
    cpu = {figure: Goal("PF-6", "<=", NO_WORSE) for figure in (GATEWAY_CPU, CHAIN)}
    return [
        Kind(Load("saturated", FANOUT, payload_bytes, seconds=seconds), {RATE_EACH: Goal("PF-5", ">=", NO_SLOWER)}),
        Kind(Load("paced", FANOUT, payload_bytes, rate=RATE, seconds=seconds), cpu),
        *(
            Kind(
                Load("paced", fanout, payload_bytes, rate=HOPS_RATE, seconds=seconds),
                {CHAIN: Goal("PF-11", "<=", NO_WORSE)},
            )
            for fanout in HOPS_FANOUTS
        ),
    ]


def _gateways_load(count: int, payload_bytes: int, seconds: float) -> Load:
    return Load("paced", count * GATEWAY_MEMBERS, payload_bytes, rate=count * GATEWAY_RATE, seconds=seconds)


def _name(shape: str, load: Load) -> str:
    return f"{shape}, {load.name}"


def _entry(instance: Instance, name: str, load: Load) -> Entry:
    def once() -> Sample:
        idle_ns = _idle_ns_a_second(instance)
        with instance.clients(load.fanout, rooms=[instance.room(PACED)]) as engine:
            done = drive(instance, engine, load)
        count = max(done.deliveries, 1)
        figures = {
            RATE_EACH: done.per_second,
            CHAIN: (done.server_cpu_ns - idle_ns * done.seconds) / count,
            CHAIN_AND_IDLE: done.server_cpu_ns / count,
            GATEWAY_CPU: done.role_cpu_ns[GATEWAY] / count,
            IDLE: idle_ns / 1e7,
            LOST: float(done.lost + done.duplicated + done.corrupted),
        }
        return Sample(figures, f"the generator was {done.late_p99_us / 1000:.1f} ms late (p99)" if done.void else "")

    return Entry(_name(name, load), once)


def _idle_ns_a_second(instance: Instance) -> float:
    before, began = sum(instance.cpu_ns().values()), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (sum(instance.cpu_ns().values()) - before) / (time.monotonic() - began)


def _still(instance: Instance, name: str, seconds: float) -> Entry:
    """Only links, to each broker and router."""

    def once() -> Sample:
        before, began = instance.cpu_ns()[GATEWAY], time.monotonic()
        time.sleep(seconds)
        used = (instance.cpu_ns()[GATEWAY] - before) / (time.monotonic() - began)
        links = sum(process.role in ("broker", "router") for process in instance.record.processes)
        return Sample({STILL: used / 1e7, LINKS: float(links)})

    return Entry(f"{name}, still", once)


def _link_cases(results: Results) -> Iterator[Case]:
    one, many = (f"{name}, still" for name in (ONE_OF_EACH, PARTITIONS))
    links = results.series(many, LINKS).median - results.series(one, LINKS).median
    used = results.series(many, STILL)
    yield Case.compared(f"{PARTITIONS} over {ONE_OF_EACH}: {STILL}", used, results.series(one, STILL))
    yield Case.plain(f"{STILL}, for each link", used.slope(results.series(one, STILL), links))


def _alone_cases(results: Results, shape: fanout.Shape, *, quick: bool) -> Iterator[Case]:
    one, many = (f"{name} {shape.name}" for name in (ONE_OF_EACH, PARTITIONS))
    for figure in (fanout.PER_CPU, fanout.RATE):
        title = f"gateway alone, a datagram each, x{shape.members:,}, {PARTITIONS} over {ONE_OF_EACH}: {figure}"
        mine, theirs = results.series(many, figure), results.series(one, figure)
        yield Case.no_worse(title, mine, theirs, Goal("PF-1", ">=", NO_SLOWER), quick=quick)


def _kind_cases(results: Results, kind: Kind, *, quick: bool) -> Iterator[Case]:
    one, many = _name(ONE_OF_EACH, kind.load), _name(PARTITIONS, kind.load)
    for figure in results.figures(one):
        mine, theirs = results.series(many, figure), results.series(one, figure)
        title = f"{kind.load.name}, {PARTITIONS} over {ONE_OF_EACH}: {figure}"
        if goal := kind.goals.get(figure):
            yield Case.no_worse(title, mine, theirs, goal, quick=quick)
        elif figure == LOST:
            yield from (_lost(results, name, quick=quick) for name in (one, many))
        else:
            yield Case.compared(title, mine, theirs)


def _gateway_cases(results: Results, one: Load, two: Load, *, quick: bool) -> Iterator[Case]:
    mine, theirs = _name(GATEWAYS, two), _name(ONE_OF_EACH, one)
    for figure in (GATEWAY_CPU, CHAIN, CHAIN_AND_IDLE):
        goal = Goal("PF-9", "<=", GATEWAYS_MAX) if figure == GATEWAY_CPU else None
        title = f"{mine} over {theirs}: {figure}"
        yield Case.compared(title, results.series(mine, figure), results.series(theirs, figure), goal, quick=quick)
    yield from (_lost(results, name, quick=quick) for name in (theirs, mine))


def _lost(results: Results, name: str, *, quick: bool) -> Case:
    """Also doubled ones, or those that differ from the published message."""
    return Case.worst(f"{name}: {LOST}", results.series(name, LOST), Goal("nodes", "<=", 0.0), quick=quick)

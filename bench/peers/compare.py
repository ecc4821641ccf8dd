"""Targets side by side: the same loads in the same rounds, each figure beside that of the first target."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave
from bench.targets import Load, Result, Target

FANOUTS = (100, 1000)
RATES = (100_000.0, 1_000_000.0)  # deliveries a second
PACED_RATES = (50_000.0, 100_000.0, 150_000.0, 1_000_000.0)
PER_CPU = "deliveries per server CPU second"
CPU_RATES_MAX = 150_000.0  # up to this rate the CPU per delivery counts, above it the latency
WINDOW = 1_024  # publishes in flight to a peer: NATS is at its best here, 10 % above 256; Muster has its own credit
MUSTER, ONE_PROCESS = "muster", "muster in one process"
HEADROOM = 0.8  # a pace above this share of a target's peak is not run against it


@dataclass(frozen=True)
class Claim:
    """A goal on one figure of `target` over that of `against`, under the load of that name."""

    target: str
    against: str
    load: str
    figure: str
    goal: Goal
    against_figure: str = ""  # if the other's figure has another name


def loads(*, quick: bool, payload_bytes: int = 200, saturated_only: bool = False) -> tuple[Load, ...]:
    seconds, warm_up = (0.3, 0.1) if quick else (1.0, 0.3)
    fanouts = FANOUTS[:1] if quick else FANOUTS
    saturated = [
        Load("saturated", fanout, payload_bytes, window=WINDOW, seconds=seconds, warm_up_seconds=warm_up)
        for fanout in fanouts
    ]
    rates = () if saturated_only else RATES[:1] if quick else RATES
    paced = [
        Load("paced", FANOUTS[0], payload_bytes, rate=rate, seconds=seconds, warm_up_seconds=warm_up) for rate in rates
    ]
    return (*saturated, *paced)


def paced_loads(*, quick: bool, payload_bytes: int = 200) -> tuple[Load, ...]:
    """For targets that can do all of these: without saturated loads their peak is unknown."""
    seconds, warm_up = (0.5, 0.1) if quick else (2.0, 0.5)
    return tuple(
        Load("paced", FANOUTS[0], payload_bytes, rate=rate, seconds=seconds, warm_up_seconds=warm_up)
        for rate in PACED_RATES
    )


def claims(wanted: Sequence[Load], *, quick: bool) -> list[Claim]:
    """Muster's goals against the peers: PF-5, PF-6 and PF-7.

    Saturated loads judge both the deliveries and the deliveries per CPU second: the one driver core may be full first.
    """
    found = []
    for load in wanted:
        if load.mode == "saturated" and load.fanout == FANOUTS[0]:
            goals = {"redis": Goal("PF-5", ">", 1), "nats": Goal("PF-5", ">", 1), "mosquitto": Goal("PF-5", ">=", 15)}
            found += [
                Claim(muster, peer, load.name, figure, goal)
                for muster in (MUSTER, ONE_PROCESS)
                for figure in ("deliveries/s", PER_CPU)
                for peer, goal in goals.items()
            ]
        elif load.mode == "paced" and load.rate <= CPU_RATES_MAX:
            chain = "server CPU ns each"
            found += [
                Claim(MUSTER, "redis", load.name, "gateway CPU ns each", Goal("PF-6", "<=", 0.85), chain),
                Claim(MUSTER, "nats", load.name, "gateway CPU ns each", Goal("PF-6", "<=", 0.65), chain),
                Claim(MUSTER, "redis", load.name, chain, Goal("PF-6", "<=", 0.95)),
                Claim(ONE_PROCESS, "redis", load.name, chain, Goal("PF-6", "<=", 0.75)),
            ]
        elif load.mode == "paced":
            bounds = {"p50 µs": 0.8} if quick else {"p50 µs": 0.8, "p99 µs": 1.0}
            found += [
                Claim(muster, "redis", load.name, figure, Goal("PF-7", "<=", bound))
                for muster in (MUSTER, ONE_PROCESS)
                for figure, bound in bounds.items()
            ]
    return found


def run(
    targets: Sequence[Target],
    wanted: Sequence[Load],
    *,
    rounds: int,
    quick: bool = False,
    claims: Sequence[Claim] = (),
    progress: Progress = silent,
) -> tuple[Case, ...]:
    """Start all targets, run every load against each in interleaved rounds, stop them. The first is the reference."""
    with ExitStack() as stack:
        for target in targets:
            stack.callback(target.stop)
            target.start()
        saturated = [load for load in wanted if load.mode == "saturated"]
        results = interleave([_entry(t, load, quick) for load in saturated for t in targets], rounds, progress)
        paced = [
            _entry(target, load, quick)
            for load in wanted
            if load.mode == "paced"
            for target in targets
            if load.rate <= HEADROOM * _capacity(results, target, saturated)
        ]
        results.samples.update(interleave(paced, rounds, progress).samples)
    return (*_cases(results, targets, wanted), *_claimed(results, claims, quick))


def _name(target: str, load: str) -> str:
    return f"{target} {load}"


def _entry(target: Target, load: Load, quick: bool) -> Entry:
    def once() -> Sample:
        result = target.run(load)
        void = f"the generator was {result.late_p99_us / 1000:.1f} ms late (p99)" if result.void else ""
        return Sample(figures(result, quick=quick), void)

    return Entry(_name(target.name, load.name), once)


def figures(result: Result, *, quick: bool = False) -> dict[str, float]:
    """The printed figures of a result; a quick run is too short for the tail."""
    shown = {
        "deliveries/s": result.per_second,
        "server CPU ns each": result.cpu_ns_each,
        **({} if result.latency else {PER_CPU: 1e9 * result.deliveries / max(result.server_cpu_ns, 1)}),
        **{
            f"{role} CPU ns each": used / result.deliveries if result.deliveries else 0.0
            for role, used in result.role_cpu_ns.items()
        },
        "lost": float(result.lost),
        "duplicated": float(result.duplicated),
        "corrupted": float(result.corrupted),
        "server MiB": result.server_rss_bytes / (1 << 20),
    }
    latency = result.latency
    if latency:
        shown |= {"p50 µs": latency.p50, "p90 µs": latency.p90}
        if not quick:
            shown |= {"p99 µs": latency.p99, "p99.9 µs": latency.p99_9}
        shown |= {
            "first client p50 µs": latency.first_p50,
            "middle client p50 µs": latency.middle_p50,
            "last client p50 µs": latency.last_p50,
        }
    return shown


def _capacity(results: Results, target: Target, saturated: Sequence[Load]) -> float:
    """The most deliveries a second at any fan-out. Without a saturated load, every pace is run."""
    peaks = [results.series(_name(target.name, load.name), "deliveries/s").median for load in saturated]
    return max(peaks, default=float("inf"))


FAULTS = ("lost", "duplicated", "corrupted")


def _cases(results: Results, targets: Sequence[Target], wanted: Sequence[Load]) -> list[Case]:
    cases = []
    for load in wanted:
        reference = _name(targets[0].name, load.name)
        for target in targets:
            name = _name(target.name, load.name)
            if name not in results.samples:
                continue
            for figure in results.figures(name):
                series = results.series(name, figure)
                shared = reference in results.samples and figure in results.figures(reference)
                if figure in FAULTS or name == reference or not shared:
                    if figure in FAULTS[1:] and not series.max:
                        continue  # duplicates and corruption are rare: a line only if they happened
                    cases.append(Case.plain(f"{name}, {figure}", series))
                else:
                    cases.append(Case.compared(f"{name}, {figure}", series, results.series(reference, figure)))
    return cases


def _claimed(results: Results, claims: Sequence[Claim], quick: bool) -> list[Case]:
    """Claims with figures of both sides; for a peer that is not installed there is nothing to judge."""
    cases = []
    for target, load in sorted({(claim.target, claim.load) for claim in claims}):
        if _name(target, load) in results.samples:
            lost = results.series(_name(target, load), "lost")
            goal = Goal(
                next(claim.goal.id for claim in claims if (claim.target, claim.load) == (target, load)), "<=", 0
            )
            cases.append(Case.limit(f"{target}, {load}, lost in the worst round", Series((lost.max,), lost.void), goal))
    for claim in claims:
        mine, theirs = _name(claim.target, claim.load), _name(claim.against, claim.load)
        if mine in results.samples and theirs in results.samples:
            cases.append(
                Case.compared(
                    f"{claim.target} over {claim.against}, {claim.load}, {claim.figure}",
                    results.series(mine, claim.figure),
                    results.series(theirs, claim.against_figure or claim.figure),
                    claim.goal,
                    quick=quick,
                )
            )
    return cases

"""Costs of membership and of the control plane as they grow: bytes per membership, joins, starts, doublings, maps.

The real machines of a gateway, a router and brokers run in memory, without sockets. Figures are CPU of the machines
alone (logs, sealing, tables). Their clock stands still while any machine has something to send, so no waiting is
included. "Linear" compares the cost per room, or per node of the map, with that of a smaller plane of the same rounds.

Unless quick, runs with processes follow: nodes die, and members come back (`rejoin.py`, `failover.py`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator

from bench import cpu, failover, maps, pin, rejoin
from bench.child import ChildFailedError, python_environment
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server._engines import KnownRooms, ScaleEngine

PARTITIONS, PARTITIONS_QUICK = (1, 2, 4, 8), (1, 4)
ROOMS, ROOMS_QUICK = (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000)
BASE, BASE_QUICK = 10_000, 1_000
# Gateways and rooms of each, in one router: just above the size at which tables double, where a membership takes most
# bytes.
HELD, HELD_QUICK = (12, 870_401), (9, 108_801)
BYTES_MAX = 64.0
CHANGES_A_SECOND = 500_000.0
LINEAR = 2.0  # caches overflow on the way: twice the cost per room for a hundred times the rooms
MEMBERS, MEMBERS_ROOMS, MEMBERS_ROOMS_QUICK = (1, 4, 16), 10_000, 1_000

BYTES = "bytes each"
JOINS, GATEWAY_JOIN = "joins per s through router to broker, one core for both", "gateway ns per join"
START, START_BYTES = "start ns per room", "start bytes per room"
STEPS = tuple(f"{step} ns per room" for step in ("prepare", "switch", "forget"))
DOUBLE = "doubling ns per room"


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """Planes of each size in each round, in turning order; then the deaths."""
    partitions, rooms = (PARTITIONS_QUICK, ROOMS_QUICK) if quick else (PARTITIONS, ROOMS)
    base = BASE_QUICK if quick else BASE
    gateways, each = HELD_QUICK if quick else HELD
    crowded = MEMBERS_ROOMS_QUICK if quick else MEMBERS_ROOMS
    entries = [_held(gateways, each), *maps.entries(quick=quick)]
    entries += [_plane(count, parts) for parts in partitions for count in rooms]
    entries += [_crowd(crowded, members) for members in MEMBERS]
    with pin.on(pin.SERVER_CORE):
        results = interleave(entries, rounds, progress)
    cases = [_held_case(results, gateways * each, quick=quick)]
    cases += maps.cases(results, quick=quick)
    cases += _crowd_cases(results, crowded, quick=quick)
    for parts in partitions:
        for count in rooms:
            judged = count == rooms[-1]
            cases += _plane_cases(results, count, parts, base, judged=judged, quick=quick)
    if not quick:
        cases += rejoin.run(rounds=1, quick=False, progress=progress)
        cases += failover.run(rounds=failover.ROUNDS_QUICK, quick=False, progress=progress)
    return tuple(cases)


# ---------------------------------------------------------------- memberships held


def held_bytes(gateways: int, each: int) -> float:
    """The growth of this process by each membership of a router in it. Raises `ChildFailedError` if some had no
    place."""
    KnownRooms(gateways=1, each=1, seed=1)
    before = cpu.rss_bytes(os.getpid())
    known = KnownRooms(gateways=gateways, each=each, seed=1)
    if len(known) != gateways * each:
        raise ChildFailedError(f"a router had place for {len(known):,} of {gateways * each:,} memberships")
    return (cpu.rss_bytes(os.getpid()) - before) / len(known)


def _held(gateways: int, each: int) -> Entry:
    return Entry("memberships held", lambda: Sample({BYTES: held_bytes_of_a_child(gateways, each)}))


def held_bytes_of_a_child(gateways: int, each: int) -> float:
    """The same in a fresh process: one that held more before would reuse its memory."""
    code = f"from bench.scale import held_bytes; print(held_bytes({gateways}, {each}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=python_environment(), check=False)
    if done.returncode:
        raise ChildFailedError(f"memberships: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout)


def _held_case(results: Results, count: int, *, quick: bool) -> Case:
    title = f"{count:,} memberships held in one router: {BYTES}"
    series = results.series("memberships held", BYTES)
    return Case.limit(title, series, Goal("scale", "<=", BYTES_MAX), quick=quick)


# ---------------------------------------------------------------- rooms and partitions


def _name(rooms: int, partitions: int) -> str:
    return f"{rooms:,} rooms, {partitions} partition{'s' if partitions > 1 else ''}"


def _plane(rooms: int, partitions: int) -> Entry:
    def once() -> Sample:
        engine = ScaleEngine(rooms=rooms, partitions=partitions, seed=rooms + partitions)
        gateway, router, brokers, _ = engine.joined()
        figures = {JOINS: rooms * 1e9 / (router + brokers), GATEWAY_JOIN: gateway / rooms}
        (gateway, router, brokers, octets), known = engine.start_broker()
        figures[START] = (gateway + router + brokers) / max(known, 1)
        figures[START_BYTES] = octets / max(known, 1)
        return Sample(figures | _doubled(engine, rooms))

    return Entry(_name(rooms, partitions), once)


def _doubled(engine: ScaleEngine, rooms: int) -> dict[str, float]:
    figures = {step: sum(costs[:3]) / rooms for step, costs in zip(STEPS, engine.double(), strict=True)}
    return figures | {DOUBLE: sum(figures.values())}


def _plane_cases(
    results: Results, rooms: int, partitions: int, base: int, *, judged: bool, quick: bool
) -> Iterator[Case]:
    name = _name(rooms, partitions)
    joins, title = results.series(name, JOINS), f"{name}: {JOINS}"
    if judged and partitions == 1:
        yield Case.limit(title, joins, Goal("PF-13", ">=", CHANGES_A_SECOND), quick=quick)
    else:
        yield Case.plain(title, joins)
    for figure, what, share in ((START, "a broker starts", rooms / partitions), (DOUBLE, "partitions double", rooms)):
        mine, smaller = results.series(name, figure), results.series(_name(base, partitions), figure)
        title = f"{name}: {what}, ns of all roles per room"
        if not judged:
            yield Case.plain(title, mine)
            continue
        linear = Goal("linear", "<=", LINEAR)
        yield Case.compared(f"{title}, over {base:,} rooms", mine, smaller, linear, quick=quick)
        yield Case.plain(f"{name}: {what}, ms of all roles", mine.scaled(share / 1e6))
    for figure in (GATEWAY_JOIN, START_BYTES, *STEPS) if judged else ():
        yield Case.plain(f"{name}: {figure}", results.series(name, figure))


# ---------------------------------------------------------------- members


def _crowd_name(rooms: int, members: int) -> str:
    return f"{rooms:,} rooms of {members}"


def _crowd(rooms: int, members: int) -> Entry:
    def once() -> Sample:
        engine = ScaleEngine(rooms=rooms, partitions=1, seed=rooms + members, members=members)
        figures = {GATEWAY_JOIN: engine.joined()[0] / (rooms * members)}
        return Sample(figures | _doubled(engine, rooms))

    return Entry(_crowd_name(rooms, members), once)


def _crowd_cases(results: Results, rooms: int, *, quick: bool) -> Iterator[Case]:
    """When owners change, a gateway looks at the members of those rooms: at most in proportion to them."""
    fewest, *_, most = MEMBERS
    for figure in (DOUBLE, GATEWAY_JOIN):
        base = results.series(_crowd_name(rooms, fewest), figure)
        for members in MEMBERS[1:]:
            name = _crowd_name(rooms, members)
            goal = Goal("linear", "<=", members / fewest) if figure == DOUBLE and members == most else None
            title = f"{name}, 1 partition: {figure}, over rooms of {fewest}"
            yield Case.compared(title, results.series(name, figure), base, goal, quick=quick)

"""Delayed messages: accepted durably, fired on time, and there again after a death; beside what teams use instead.

The servers of all are on one core, the driver and a null server for callbacks on the other. All schedulers sync their log
before they answer, as Muster's schedule does: else a positive answer would not be durable. Beside rates and times stand
processor times for each message, by process: those of the null server are the receiver's, not the scheduler's.

Muster and a sorted set in Redis take turns in each round. Dramatiq and NATS have fewer rounds, as they take longer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import messages_pending, messages_store
from bench.child import private_directory
from bench.messages_faces import Dramatiq, Face, Muster, Nats, Pump
from bench.messages_loads import BACK, CPU, DOUBLED, FIGURES, LOST, Hook, accepting, firing, killing, null_server
from bench.messages_pending import Pending
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Series, interleave

SECONDS, SECONDS_QUICK = 2.0, 1.0
FIRED, AT_ONCE = 10_000, 1_000
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SIZES_QUICK: Final = (1_000, 100_000, 500_000)
STORE_TOTAL, STORE_QUICK = 1_000_000, 200_000
REDIS_TOTAL, REDIS_QUICK = 100_000, 50_000
TIMERS, TIMERS_QUICK = 5_000_000, 1_000_000
OTHERS_ROUNDS: Final = 2
OTHERS: Final[tuple[type[Face], ...]] = (Dramatiq, Nats)
GOALS: Final = {
    "store": Goal("PF-20", ">=", 200_000),
    "redis": Goal("PF-20", ">=", 30_000),
    "http": Goal("PF-20", ">=", 50_000),
    "lost": Goal("PF-20", "<=", 0),
    "p50": Goal("PF-21", "<=", 2),
    "p99": Goal("PF-21", "<=", 20),
    "early": Goal("PF-21", "<=", 0),
    "restart": Goal("PF-22", "<=", 2),
    "memory": Goal("PF-22", "<=", 64),
    "ns for an insert": Goal("PF-19", "<=", 150),
    "ns for a cancel": Goal("PF-19", "<=", 30),
    "ns for an idle tick": Goal("PF-19", "<=", 100),
    "bytes each": Goal("PF-19", "<=", 48),
}


def run(*, rounds: int, quick: bool, say: Callable[[str], None], progress: Progress = silent) -> tuple[Case, ...]:
    """All loads in turn. `say`: what is left out, and why."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(private_directory("messages")))
        hook = stack.enter_context(null_server(directory))
        cases: list[Case] = []
        with ExitStack() as inner:
            faces = [_started(inner, kind, directory, hook) for kind in (Muster, Pump)]
            results = interleave([*_stores(quick, directory), *_loads(faces, hook, quick)], rounds, progress)
            cases += _cases(results, quick)
            killed = {face.name: killing(face, hook, FIRED).figures for face in faces}
        for kind in OTHERS:
            if (why := kind.lacks()) is not None:
                say(f"{kind.name} is left out: {why}")
                continue
            with ExitStack() as inner:
                face = _started(inner, kind, directory, hook)
                results = interleave([*_slower(face, hook, quick)], min(rounds, OTHERS_ROUNDS), progress)
                cases += _others_cases(results, face)
                killed[face.name] = killing(face, hook, FIRED).figures
        for name, figures in killed.items():
            lost = Series((figures[LOST],))
            text = f"kill -9 of all processes, {name}"
            yields = Case.worst(f"{text}: {LOST}", lost, GOALS["lost"], quick=quick)
            cases.append(yields if name == Muster.name else Case.plain(f"{text}: {LOST}", lost))
            cases += [Case.plain(f"{text}: {figure}", Series((figures[figure],))) for figure in (DOUBLED, BACK)]
        sizes = SIZES_QUICK if quick else SIZES
        pending = messages_pending.run(sizes, FIRED, hook, directory / "pending", progress)
        return (*cases, *_pending_cases(pending, quick))


def _started(stack: ExitStack, kind: type[Face], directory: Path, hook: Hook) -> Face:
    face = kind(directory, hook.port)
    stack.callback(face.stop)
    face.start()
    return face


# --- loads ------------------------------------------------------------------------------------------------------------


def _stores(quick: bool, directory: Path) -> Iterator[Entry]:
    """Without servers of ours."""
    count, redis = (STORE_QUICK, REDIS_QUICK) if quick else (STORE_TOTAL, REDIS_TOTAL)
    timers = TIMERS_QUICK if quick else TIMERS
    yield Entry("wheel", lambda: messages_store.wheel(timers))
    yield Entry("store", lambda: messages_store.in_folder(count, directory))
    yield Entry("store in redis", lambda: messages_store.in_redis(redis, directory))


def _loads(faces: Sequence[Face], hook: Hook, quick: bool) -> Iterator[Entry]:
    seconds = SECONDS_QUICK if quick else SECONDS
    for face in faces:
        yield Entry(f"accept, {face.name}", accepting(face, seconds))
    for face in faces:
        yield Entry(f"fire, {face.name}", firing(face, hook, FIRED, 1_000))
    for face in faces:
        yield Entry(f"herd, {face.name}", firing(face, hook, AT_ONCE, 0))


def _slower(face: Face, hook: Hook, quick: bool) -> Iterator[Entry]:
    yield Entry(f"accept, {face.name}", accepting(face, SECONDS_QUICK if quick else SECONDS))
    yield Entry(f"fire, {face.name}", firing(face, hook, FIRED, 1_000))


# --- what it comes to -------------------------------------------------------------------------------------------------


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    def case(name: str, entry: str, figure: str, goal: str) -> Case:
        return Case.limit(name, results.series(entry, figure), GOALS[goal], quick=quick)

    def times(load: str, text: str) -> Iterator[Case]:
        mine, other = f"{load}, muster", f"{load}, redis"
        yield Case.compared(f"{text}: {CPU}, over Redis", results.series(mine, CPU), results.series(other, CPU))
        yield from _by_process(results, mine, text)
        yield from _by_process(results, other, text)

    timers = f"{TIMERS_QUICK if quick else TIMERS:,} timers"
    yield from Case.judged(results, "wheel", timers, GOALS, quick=quick)
    yield case("accepted at the store, messages/s", "store", "messages/s", "store")
    yield Case.plain(f"accepted at the store: {CPU}", results.series("store", CPU))
    yield case("accepted at the store in Redis, messages/s", "store in redis", "messages/s", "redis")
    yield from _by_process(results, "store in redis", "accepted at the store in Redis")
    yield case("accepted over HTTP in batches, messages/s", "accept, muster", "messages/s", "http")
    yield Case.compared(
        "accepted, messages/s, over a Redis script of the same batch",
        results.series("accept, muster", "messages/s"),
        results.series("accept, redis", "messages/s"),
    )
    yield from times("accept", "accepted")
    for load, text in (("fire", f"{FIRED:,} in one second"), ("herd", f"{AT_ONCE:,} at one millisecond")):
        for figure in FIGURES:
            mine, other = results.series(f"{load}, muster", figure), results.series(f"{load}, redis", figure)
            goal = {"lateness p50, ms": "p50", "lateness p99, ms": "p99", "early": "early"}.get(figure)
            if goal == "early":
                yield Case.worst(f"{text}: {figure}", mine, GOALS[goal], quick=quick)
            elif load == "fire" and goal is not None:
                yield Case.limit(f"{text}: {figure}", mine, GOALS[goal], quick=quick)
            if goal != "early":
                yield Case.compared(f"{text}: {figure}, over the Redis pump", mine, other)
        yield from times(load, text)


def _by_process(results: Results, entry: str, text: str) -> Iterator[Case]:
    for figure in results.figures(entry):
        if figure.startswith(f"{CPU}, "):
            name = f"{text}: {CPU}, {entry.partition(', ')[2] or entry}'s {figure.removeprefix(f'{CPU}, ')}"
            yield Case.plain(name, results.series(entry, figure))


def _others_cases(results: Results, face: Face) -> Iterator[Case]:
    accept, fire = f"accept, {face.name}", f"fire, {face.name}"
    yield Case.plain(f"accepted by {face.name}, messages/s", results.series(accept, "messages/s"))
    yield Case.plain(f"accepted by {face.name}: {CPU}", results.series(accept, CPU))
    for figure in (*FIGURES, CPU):
        yield Case.plain(f"{FIRED:,} in one second, {face.name}: {figure}", results.series(fire, figure))


def _pending_cases(pending: Pending, quick: bool) -> Iterator[Case]:
    for point in pending.points:
        text = f"{point.pending:,} pending"
        yield Case.plain(f"{text}: {FIGURES[0]}", Series((point.p50_ms,)))
        yield Case.plain(f"{text}: {FIGURES[1]}", Series((point.p99_ms,)))
        yield Case.plain(f"{text}: memory of the center, bytes each", Series((point.center_bytes,)))
    yield Case.limit(f"{text}: seconds from opening the schedule to the first fire", Series(pending.restart_s),
                     GOALS["restart"], quick=quick)  # fmt: skip
    yield Case.plain(
        f"{text}: seconds from the start of the instance to the first callback", Series((pending.instance_s,))
    )
    yield Case.limit(f"{text}: bytes of memory each", Series((pending.bytes_each,)), GOALS["memory"], quick=quick)

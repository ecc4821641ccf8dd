"""Likes: durable toggles, counts and rankings while these go on, memory and restarts; beside Redis with the same client.

The servers are on one core, the client on the other. Every toggle changes something and each of its answers is compared.
Redis has bitmaps of a million users an item, as Redis's own recipes have, and sets where ids are sparse. Its log is not
rewritten meanwhile, which spares it work that Muster does. Live counts are off; the write-behind runs as always.
"""

import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from bench import cpu, likes_feed, pin, whole
from bench.child import Child, ChildFailedError, free_port, private_directory, python_environment
from bench.likes_client import PING, Pipeline, ask, command, pace, saturate
from bench.peers.redis import Redis
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, Series, interleave
from muster_server.control.cluster import instance as folders
from muster_server.control.terminal import common
from muster_server.systems.likes.options import LikesOptions

SECONDS, SECONDS_QUICK = 3.0, 0.6
CONNECTIONS, DEPTH = 50, 64
ITEMS, USERS = 1_000, 1_000_000
TOGGLED: Final = 2_048
"""Likes of each connection: set in one pass, taken back in the next."""
RANKED, STANDING = 100, 50
"""Entries of a page of the top; at most so many likes does an item have before."""
PACED, ASKED = 50_000, 500
"""Likes and questions a second while latencies are taken."""
PAGES = 100
"""Pages of a feed a second."""
LATE_MS = 1.0
"""A run is void if the client sent its questions later than that (p99)."""
DENSE, MANY = 10_000, 100
"""Likes an item where memory is measured."""
HELD, HELD_QUICK = 10_000_000, 600_000
HELD_USERS: Final = 10
"""Likes of a user there."""
SPARSE: Final = 0x9E3779B97F4A7C15
BATCH, FILLERS = 512, 8
START_S, BEHIND_S, BACK_S = 60.0, 120.0, 60.0
BEHIND_MS: Final = 5_000
HOUR_MS: Final = 3_600_000
SYNCS, BLOCK = 64, 4_096

MUSTER, ALWAYS, EVERYSEC, SETS = "muster", "redis always", "redis everysec", "redis without a log"
RATE, CPU, BUSY = "likes/s", "server, µs CPU a like", "client's share of its core"
PAGE_CPU = "server, µs CPU a page"
P50, P99, TAKEN = "p50, ms", "p99, ms", "share of the likes taken"
GOALS: Final = {
    "pipelines": Goal("PF-16", ">=", 500_000),
    ALWAYS: Goal("PF-16", ">=", 3),
    EVERYSEC: Goal("PF-16", ">=", 1),
    "one by one": Goal("PF-16", ">=", 1),
    "memory": Goal("PF-17", "<=", 2.5),
    "asked": Goal("PF-27", "<=", 2),
    "ranked": Goal("PF-27", ">=", 5),
    "restart": Goal("PF-28", "<=", 5),
    "hot": Goal("PF-29", ">=", 0.8),
    "feed": Goal("PF-40", "<=", 5),
}


@dataclass(frozen=True)
class Server:
    """One keeper of likes. `ranks`: it ranks items by itself, else the client has it do so with each like."""

    name: str
    port: int
    pid: Callable[[], int]
    ranks: bool
    status: Callable[[], Mapping[str, Any]] = dict
    """What a node of Muster says of itself."""


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All loads in turn."""
    held = HELD_QUICK if quick else HELD
    with pin.on(pin.DRIVER_CORE):
        toggled = _toggled(rounds, SECONDS_QUICK if quick else SECONDS, progress)
        memory, restarts = _kept(held, rounds, progress)
    return (
        *_cases(toggled, quick),
        *_feed_cases(toggled, quick),
        *_memory_cases(held, memory, quick),
        *_restart_cases(held, restarts, quick),
    )


# --- who is measured --------------------------------------------------------------------------------------------------


def _muster(stack: ExitStack, **options: object) -> Server:
    directory = Path(stack.enter_context(private_directory("likes")))
    folder, port = folders.Folder(directory / "instance"), free_port()
    likes = {
        "folder": directory / "likes",
        "bind": f"127.0.0.1:{port}",
        "database": "sqlite",
        "live_rate": 0,
        **options,
    }
    environment = {
        "MUSTER_INSTANCE__DIR": str(folder.path),
        "MUSTER_SYSTEMS__ENABLED": "likes",
        "MUSTER_LOG__LEVEL": "error",
        "MUSTER_PROBES__EVERY_MS": "0",
        "MUSTER_DATABASE__URL": "none",
        **{f"MUSTER_LIKES__{name.upper()}": str(value).lower() for name, value in likes.items()},
    }
    argv = [sys.executable, "-m", "muster_server", "up"]
    child = Child(
        MUSTER, argv, core=pin.SERVER_CORE, directory=directory, environment={**python_environment(), **environment}
    )
    stack.callback(child.stop)

    child.wait_until(lambda: whole.ready(folder), seconds=START_S)

    def status() -> Mapping[str, Any]:
        said: Mapping[str, Any] = common.get(_node(folder), "/api/v1/status")[1]
        return said

    return Server(MUSTER, port, lambda: _node(folder).pid, True, status)


def _node(folder: folders.Folder) -> folders.Process:
    """The node of likes, once it serves."""
    until = time.monotonic() + START_S
    while not (node := folders.find(folder).of("likes")[0]).ready:
        if time.monotonic() > until:
            raise ChildFailedError(f"{node.name} was not ready after {START_S:g} s")
        time.sleep(0.01)
    return node


class _Logged(Redis):
    """Redis with a log that it syncs as it is told; none without a word."""

    def __init__(self, fsync: str = "") -> None:
        super().__init__()
        self._fsync = fsync

    def command(self, binary: str, directory: Path) -> list[str]:
        argv = super().command(binary, directory)
        if not self._fsync:
            return argv
        return [*argv, "--appendonly", "yes", "--appendfsync", self._fsync, "--auto-aof-rewrite-percentage", "0"]


def _redis(stack: ExitStack, name: str, fsync: str = "") -> Server:
    redis = _Logged(fsync)
    stack.callback(redis.stop)
    (pid,) = redis.start()
    return Server(name, redis.port, lambda: pid, False)


# --- commands ---------------------------------------------------------------------------------------------------------


def _item(number: int) -> bytes:
    return b"share:%d" % number


def _like(item: bytes, user: int, bit: int) -> bytes:
    return command(b"SETBIT", item, b"%d" % user, b"%d" % bit)


def _ranked(item: bytes, user: int, bit: int) -> bytes:
    """What Redis needs for the ranking besides."""
    return _like(item, user, bit) + command(b"ZADD", b"rank", b"INCR", b"1" if bit else b"-1", item)


def _question(server: Server, item: bytes) -> bytes:
    """Count, rank and the top. Redis has the count in its ranking, where it is cheaper than in a bitmap."""
    count = command(b"BITCOUNT", item) if server.ranks else command(b"ZSCORE", b"rank", item)
    rank = command(b"ZREVRANK", b"rank", item)
    top = command(b"ZREVRANGE", b"rank", b"0", b"%d" % (RANKED - 1), b"WITHSCORES")
    return count + rank + top + PING


class _Toggles:
    """Likes that no other load touches: their first user has this number, or they are all of one item."""

    def __init__(self, place: int, *, depth: int, hot: bool = False) -> None:
        random, users = Random(place), itertools.count(place * CONNECTIONS * TOGGLED)
        self._depth = depth
        self._lanes = [
            [
                [(_item(ITEMS if hot else random.randrange(ITEMS)), next(users) * 7_919 % USERS) for _ in range(depth)]
                for _ in range(TOGGLED // depth)
            ]
            for _ in range(CONNECTIONS)
        ]

    def plain(self) -> list[Iterator[Pipeline]]:
        """Without end, a connection each; answers tell the bit that was there before."""

        def pipeline(likes: Sequence[tuple[bytes, int]], bit: int) -> Pipeline:
            sent = b"".join(_like(item, user, bit) for item, user in likes)
            return Pipeline(sent, self._depth, (b":0\r\n", b":1\r\n")[1 - bit] * self._depth)

        return self._cycles(pipeline)

    def ranked(self, server: Server, *, asks: bool) -> list[Iterator[Pipeline]]:
        """The same with the ranking, and with a question behind each pipeline."""
        write = _like if server.ranks else _ranked

        def pipeline(likes: Sequence[tuple[bytes, int]], bit: int) -> Pipeline:
            sent = b"".join(write(item, user, bit) for item, user in likes)
            return Pipeline(sent + (_question(server, likes[0][0]) if asks else PING), self._depth, 0)

        return self._cycles(pipeline)

    def _cycles(self, write: Callable[[Sequence[tuple[bytes, int]], int], Pipeline]) -> list[Iterator[Pipeline]]:
        return [itertools.cycle([write(likes, bit) for bit in (1, 0) for likes in lane]) for lane in self._lanes]


def _standing(server: Server) -> Iterator[Pipeline]:
    """Likes that stay, so that ranks differ."""
    write = _like if server.ranks else _ranked
    for number in range(ITEMS):
        likes = 1 + number % STANDING
        users = range(USERS, USERS + likes)
        yield Pipeline(b"".join(write(_item(number), user, 1) for user in users) + PING, likes, 0)


# --- loads ------------------------------------------------------------------------------------------------------------


def _toggled(rounds: int, seconds: float, progress: Progress) -> Results:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(private_directory("likes-null")))
        servers = [_redis(stack, ALWAYS, "always"), _redis(stack, EVERYSEC, "everysec"), _muster(stack)]
        loads = {"pipelines": _Toggles(0, depth=DEPTH), "one by one": _Toggles(1, depth=1)}
        ranked, asked, hot = _Toggles(2, depth=DEPTH), _Toggles(3, depth=DEPTH), _Toggles(4, depth=DEPTH, hot=True)
        entries = [Entry("null", lambda: _null(directory))]
        for server in servers:
            saturate(server.port, [_standing(server)])
            saturate(server.port, [likes_feed.likes(server.ranks)])
            for name, toggles in loads.items():
                entries.append(_saturated(f"{name}, {server.name}", server, toggles.plain(), seconds))
            entries.append(_saturated(f"ranked, {server.name}", server, ranked.ranked(server, asks=True), seconds))
            entries.append(_asked(f"asked, {server.name}", server, asked.ranked(server, asks=False), seconds))
        entries += [_pages(server, seconds) for server in servers[1:]]
        entries.append(_saturated(f"hot, {MUSTER}", servers[-1], hot.plain(), seconds))
        return interleave(entries, rounds, progress)


def _saturated(name: str, server: Server, sources: Sequence[Iterator[Pipeline]], seconds: float) -> Entry:
    def once() -> Sample:
        pid = server.pid()
        before = cpu.process_ns(pid)
        load = saturate(server.port, sources, seconds)
        used_us = (cpu.process_ns(pid) - before) / 1_000
        return Sample({RATE: load.likes / load.seconds, CPU: used_us / load.likes, BUSY: load.busy})

    return Entry(name, once)


def _asked(name: str, server: Server, sources: Sequence[Iterator[Pipeline]], seconds: float) -> Entry:
    def once() -> Sample:
        paced = pace(
            server.port,
            sources,
            _question(server, _item(0)),
            pipelines_rate=PACED / DEPTH,
            questions_rate=ASKED,
            seconds=seconds,
        )
        late_ms = _hundredths(paced.late)[98]
        took = _hundredths(paced.took)
        figures = {P50: took[49], P99: took[98], TAKEN: paced.pipelines / paced.planned}
        return Sample(figures, void=f"the client was {late_ms:.1f} ms late (p99)" if late_ms > LATE_MS else "")

    return Entry(name, once)


def _pages(server: Server, seconds: float) -> Entry:
    question, answer = likes_feed.question(server.ranks) + PING, likes_feed.answer(server.ranks)

    def once() -> Sample:
        before = cpu.process_ns(server.pid())
        paced = pace(
            server.port,
            [],
            question,
            pipelines_rate=1,
            questions_rate=PAGES,
            seconds=seconds,
            answer=answer,
        )
        used_us = (cpu.process_ns(server.pid()) - before) / 1_000
        late_ms, took = _hundredths(paced.late)[98], _hundredths(paced.took)
        figures = {P50: took[49], P99: took[98], PAGE_CPU: used_us / len(paced.took)}
        return Sample(figures, void=f"the client was {late_ms:.1f} ms late (p99)" if late_ms > LATE_MS else "")

    return Entry(f"feed, {server.name}", once)


def _hundredths(seconds: Sequence[float]) -> list[float]:
    """In milliseconds."""
    return [each * 1_000 for each in statistics.quantiles(seconds, n=100)]


def _null(directory: Path) -> Sample:
    """What the disk takes for one sync; a thousandth of that where the folder is in memory, and nothing is durable."""
    took = []
    with (directory / "null").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.monotonic()
            file.write(bytes(BLOCK))
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - began)
    return Sample({"µs": statistics.median(took) * 1e6})


# --- what it holds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """A server's memory in bytes a like: of the whole process, and of what came once all users were known."""

    whole: float
    beyond: float


def _kept(count: int, rounds: int, progress: Progress) -> tuple[Mapping[tuple[int, str], Held], Results]:
    memory: dict[tuple[int, str], Held] = {}
    for each in (DENSE, MANY):
        with ExitStack() as stack:
            redis = _redis(stack, SETS)
            memory[each, SETS] = _fill(redis, count, each, b"SADD")
    with ExitStack() as stack:
        muster = _muster(stack, items_by_user=False, write_behind_ms=HOUR_MS)
        memory[DENSE, MUSTER] = _fill(muster, count, DENSE, b"SETBIT")
    with ExitStack() as stack:
        muster = _muster(stack, write_behind_ms=BEHIND_MS)
        memory[MANY, MUSTER] = _fill(muster, count, MANY, b"SETBIT")
        restarts = interleave([Entry("restart", lambda: _restart(muster))], rounds, progress)
    return memory, restarts


def _fill(server: Server, count: int, each: int, word: bytes) -> Held:
    """Likes of users with ids of 63 bits, over so many items that each has about `each`."""
    items, users = max(1, count // each), count // HELD_USERS
    random = np.random.default_rng(each)
    pid = server.pid()

    def pipelines(likers: Iterator[Any]) -> Iterator[Pipeline]:
        head, tail = b"*4\r\n$6\r\nSETBIT\r\n", b"$1\r\n1\r\n"
        if word == b"SADD":
            head, tail = b"*3\r\n$4\r\nSADD\r\n", b""
        for some in likers:
            ids = (some.astype(np.uint64) * np.uint64(SPARSE)) >> np.uint64(1)
            words = [(b"share:%d" % item, b"%d" % user) for item, user in
                     zip(random.integers(items, size=len(some)).tolist(), ids.tolist(), strict=True)]  # fmt: skip
            sent = b"".join(
                b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (head, len(item), item, len(user), user, tail)
                for item, user in words
            )
            yield Pipeline(sent, len(words), 4 * len(words))

    def put(likers: Iterator[Any]) -> int:
        return saturate(server.port, [pipelines(likers)] * FILLERS).likes

    known = put(np.arange(first, min(first + BATCH, users)) for first in range(0, users, BATCH))
    before = cpu.rss_bytes(pid)
    more = put(random.integers(users, size=BATCH) for _ in range((count - known) // BATCH))
    after = cpu.rss_bytes(pid)
    return Held(after / (known + more), (after - before) / more)


def _restart(server: Server) -> Sample:
    """From kill -9 to the first right answer, once the last snapshot is no older than a node lets it become."""
    _until_snapshot(server)
    question = command(b"BITCOUNT", _item(0))
    known, pid = ask(server.port, question), server.pid()
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    while True:
        try:
            if ask(server.port, question) == known:
                return Sample({"s": time.monotonic() - began})
        except OSError:
            time.sleep(0.005)
        if time.monotonic() > began + BACK_S:
            raise ChildFailedError(f"{server.name}: no answer {BACK_S:g} s after its death")


def _until_snapshot(server: Server) -> None:
    until, most = time.monotonic() + BEHIND_S, LikesOptions().snapshot_records
    while True:
        said = server.status()
        if said["offset"] - said["write_behind"]["snapshot_offset"] <= most:
            return
        if time.monotonic() > until:
            raise ChildFailedError(f"{server.name}: no snapshot within {BEHIND_S:g} s: {said['write_behind']}")
        time.sleep(0.2)


# --- what it comes to -------------------------------------------------------------------------------------------------


def _cases(results: Results, quick: bool) -> Iterator[Case]:
    def rates(load: str, server: str = MUSTER) -> Series:
        return results.series(f"{load}, {server}", RATE)

    title = f"durable toggles, pipelines of {DEPTH} from {CONNECTIONS} connections, {RATE}"
    yield Case.limit(title, rates("pipelines"), GOALS["pipelines"], quick=quick)
    for other in (ALWAYS, EVERYSEC):
        name = f"{title}, over {other}"
        yield Case.compared(name, rates("pipelines"), rates("pipelines", other), GOALS[other], quick=quick)
    title = f"durable toggles, one by one from {CONNECTIONS} connections, {RATE}"
    yield Case.compared(f"{title}, over {ALWAYS}", rates("one by one"), rates("one by one", ALWAYS))
    name, goal = f"{title}, over {EVERYSEC}", GOALS["one by one"]
    yield Case.compared(name, rates("one by one"), rates("one by one", EVERYSEC), goal, quick=quick)
    yield Case.compared("one item takes all toggles, over the spread rate", rates("hot"), rates("pipelines"),
                        GOALS["hot"], quick=quick)  # fmt: skip
    title = f"toggles in a ranking; count, rank and top {RANKED} after each {DEPTH}, {RATE}"
    name, goal = f"{title}, over {ALWAYS}", GOALS["ranked"]
    yield Case.compared(name, rates("ranked"), rates("ranked", ALWAYS), goal, quick=quick)
    yield Case.compared(f"{title}, over {EVERYSEC}", rates("ranked"), rates("ranked", EVERYSEC))
    title = f"count, rank and top {RANKED} while {PACED:,} toggles/s run"
    if not quick:
        yield Case.limit(f"{title}: {P99}", results.series(f"asked, {MUSTER}", P99), GOALS["asked"])
    for server in (MUSTER, ALWAYS, EVERYSEC):
        for figure in (P50, TAKEN) if quick else (P50, P99, TAKEN):
            if (server, figure) != (MUSTER, P99):
                yield Case.plain(f"{title}: {server}, {figure}", results.series(f"asked, {server}", figure))
    for load in ("pipelines", "one by one", "ranked"):
        for server in (MUSTER, ALWAYS, EVERYSEC):
            for figure in (CPU, BUSY):
                yield Case.plain(f"{load}: {server}, {figure}", results.series(f"{load}, {server}", figure))
    yield Case.plain(f"null: {BLOCK} bytes written and synced, µs", results.series("null", "µs"))


def _feed_cases(results: Results, quick: bool) -> Iterator[Case]:
    title = f"page of a feed, {likes_feed.ITEMS:,} items: count, viewer's like, newest {likes_feed.NEWEST}"
    mine, other = f"feed, {MUSTER}", f"feed, {EVERYSEC}"
    if not quick:
        yield Case.limit(f"{title}: {P99}", results.series(mine, P99), GOALS["feed"])
        yield Case.plain(f"{title}: {EVERYSEC}, {P99}", results.series(other, P99))
    for figure in (P50, PAGE_CPU):
        yield Case.plain(f"{title}: {MUSTER}, {figure}", results.series(mine, figure))
        yield Case.compared(
            f"{title}: {figure}, over {EVERYSEC}", results.series(mine, figure), results.series(other, figure)
        )


def _memory_cases(count: int, memory: Mapping[tuple[int, str], Held], quick: bool) -> Iterator[Case]:
    def once(value: float) -> Series:
        return Series((value,))

    for each in (DENSE, MANY):
        title = f"{count:,} likes, {each:,} an item, sparse ids"
        mine, other = memory[each, MUSTER], memory[each, SETS]
        if each == DENSE:
            name = f"{title}: memory of the process, bytes for a further like"
            if not quick:
                yield Case.limit(name, once(mine.beyond), GOALS["memory"])
            yield Case.compared(f"{name}, over sets of Redis", once(mine.beyond), once(other.beyond))
        lists = "" if each == DENSE else " and what each user likes"
        name = f"{title}: whole process with users, ranks{lists}, bytes a like, over sets of Redis"
        yield Case.compared(name, once(mine.whole), once(other.whole))


def _restart_cases(count: int, results: Results, quick: bool) -> Iterator[Case]:
    name = f"{count:,} likes: seconds from kill -9 to the first answer"
    yield Case.limit(name, results.series("restart", "s"), GOALS["restart"], quick=quick)

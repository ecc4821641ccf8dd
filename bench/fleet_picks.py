"""Picks of the fleet: 100 of 20,000 and of 1,000,000 clients by selector and weight, and what weights cost (PF-18).

CPU of the thread for each pick. `deck` is a draw from a mark whose members are at hand, over whole rounds, so that full
and nearly empty rounds count alike; `new selector` reads the bitmaps of three attributes, makes a deck and draws; `by name`
is all that a pick costs. Beside them, in the same rounds: drawing without replacement by weight with NumPy, and a random
order by SQLite in memory.
Neither of those is fair: they know nothing of the picks before.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bench import pin
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.pyext import bits
from muster_server.pyext.deck import Deck
from muster_server.pyext.weights import Weights
from muster_server.systems.fleet.index import Index, Snapshot, Update
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.selector import parse

CLIENTS: Final = (20_000, 1_000_000)
PICK: Final = 100
SELECTOR: Final = "country=CN and province=520000 and not carrier=3"
BOUND_US: Final = {20_000: 5.0, 1_000_000: 50.0}
NEW_BOUND_US: Final = 100.0
WEIGHTS_BOUND_US: Final = 1_000.0  # of a minute, and of a task that picks everyone
DECK, NEW, NAMES = "deck", "new selector", "by name, busy ones passed over"
NUMPY, SQLITE = "numpy.random.choice with p", "SQLite ORDER BY RANDOM()"
MINUTE, TASK, EACH = "a minute, weights read", "a task for everyone", "µs each"
PICKS, PICKS_QUICK = 20_000, 2_000


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    with pin.on(pin.DRIVER_CORE):
        entries = [entry for clients in CLIENTS for entry in _entries(clients, quick=quick)]
        results = interleave(entries, rounds, progress)
    return tuple(case for clients in CLIENTS for case in _cases(results, clients, quick=quick))


def _cases(results: Results, clients: int, *, quick: bool) -> Iterator[Case]:
    def name(what: str) -> str:
        return f"{PICK} of {clients:,}: {what}"

    picked = results.series(name(DECK), EACH)
    yield Case.limit(f"{name(DECK)}, {EACH}", picked, Goal("PF-18", "<=", BOUND_US[clients]), quick=quick)
    new = results.series(name(NEW), EACH)
    yield Case.limit(f"{name(NEW)}, {EACH}", new, Goal("PF-18", "<=", NEW_BOUND_US), quick=quick)
    yield Case.plain(f"{name(NAMES)}, {EACH}", results.series(name(NAMES), EACH))
    for other in (NUMPY, SQLITE):
        yield Case.compared(f"{name(DECK)} over {other}", picked, results.series(name(other), EACH))
    for what in (MINUTE, TASK):
        series = results.series(f"{clients:,}: {what}", EACH)
        goal = Goal("PF-18", "<=", WEIGHTS_BOUND_US)
        yield Case.limit(f"{clients:,} clients: {what}, {EACH}", series, goal, quick=quick)


def _entries(clients: int, *, quick: bool) -> Iterator[Entry]:
    """All on the same fleet; every client is of the mark, but for the new selector's."""
    words = (clients + 63) // 64
    weights, numbers = Weights(clients, 0), np.arange(clients, dtype=np.uint32)
    deck, members, seeds = Deck(words), np.zeros(words, dtype=np.uint64), iter(range(1 << 62))
    bits.write(numbers, members)
    index, selector, found = _index(clients), parse(SELECTOR), np.zeros(words, dtype=np.uint64)
    out = np.zeros(clients, dtype=np.float32)
    random, database = np.random.default_rng(clients), _database(clients)
    minutes, picks = iter(range(1, 1 << 31)), Picks(index, 0)

    def pick() -> int:
        return len(deck.pick(PICK, next(seeds), members, weights.rested_at, weights.now).clients)

    def pick_new() -> int:
        index.members(selector, found)
        return len(Deck(words).pick(PICK, next(seeds), found, weights.rested_at, weights.now).clients)

    def pick_names() -> int:
        picked = picks.pick(selector, PICK, next(seeds))
        picks.release(picked.numbers)
        return len(picked.clients)

    def pick_numpy() -> int:
        weights.read(out)
        chances = out + 1.0  # tasks for everyone have taken all weight after some rounds
        return len(random.choice(clients, PICK, replace=False, p=chances / chances.sum()))

    def pick_sqlite() -> int:
        return len(database.execute("SELECT id FROM client WHERE country = 1 ORDER BY RANDOM() LIMIT 100").fetchall())

    def minute() -> int:
        weights.advance(next(minutes))
        weights.read(out)
        return PICK

    def task() -> int:
        weights.punish(numbers, 20.0)
        return PICK

    slow = max(2, 400_000 // clients)
    many = PICKS_QUICK if quick else PICKS
    for what, work, times in (
        (DECK, pick, many),
        (NEW, pick_new, many // 20),
        (NAMES, pick_names, many // 20),
        (NUMPY, pick_numpy, slow),
        (SQLITE, pick_sqlite, slow),
    ):
        yield _entry(f"{PICK} of {clients:,}: {what}", work, times)
    for what, work in ((MINUTE, minute), (TASK, task)):
        yield _entry(f"{clients:,}: {what}", work, 20)


def _entry(name: str, work: Callable[[], int], times: int) -> Entry:
    def once() -> Sample:
        work()
        before = time.thread_time_ns()
        done = sum(work() for _ in range(times))
        used = time.thread_time_ns() - before
        if done != PICK * times:
            raise OSError(f"{name}: {done} of {PICK * times} clients")
        return Sample({EACH: used / 1000 / times})

    return Entry(name, once)


def _index(clients: int) -> Index:
    """Two of three clients in the country, half of these in the province, three carriers."""
    records = []
    for number in range(clients):
        attributes = {
            "country": ["CN" if number % 3 else "US"],
            "province": ["520000" if number % 2 else "440000"],
            "carrier": [str(number * 7 % 11 % 3 + 1)],
        }
        records.append((number, Update(f"c{number}", 1, 1, attributes)))
    return Index.restored(Snapshot(records, clients))


def _database(clients: int) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE client (id INTEGER PRIMARY KEY, country INTEGER NOT NULL)")
    database.executemany("INSERT INTO client VALUES (?, 1)", ((number,) for number in range(clients)))
    return database

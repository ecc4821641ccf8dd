"""One key of a cache of two levels: readers, writers, deaths and lag in any order. Slow, and obvious.

The rules C-1 to C-6 (`docs/rules.md`) stand in it one by one; each of `BUGS` leaves one out. A run interleaves the steps
of a few readers and writers in two processes by a seed. Time is a count of steps. The database has a replica that lags by
at most `LAG`; Redis evicts; messages about drops come late, in order; writers die.

A value is the number of the commit that wrote it. A reader must get at least the newest value whose drop its process has
heard of; a strict one at least the newest whose drop has returned. At the end no level keeps an older value.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

PROCESSES: Final = 2
LOCK: Final = 30
"""Time after which another reader takes a token that no fill has used."""
LAG: Final = 50
HOLD: Final = 60
"""Time after a drop in which loads read the primary; longer than the lag."""
MARK: Final = 80
STEPS_MAX: Final = 3_000
READERS_MAX: Final = 12

BUGS: Final = (
    "C-1: a fill needs no token",
    "C-2: no flight is dirty",
    "C-2: only the joined flight is dirty",
    "C-3: callers join dirty flights",
    "C-4: writers leave no mark",
    "C-4: a load under a mark is stored",
    "C-4: a writer commits after its mark",
    "C-4: all writers share one mark",
    "C-5: loads after a drop read a replica",
    "C-6: the writer returns before the drop",
)
SHARED: Final = "C-4: all writers share one mark"


class Wrong(Exception):
    """A promise is broken."""


class Redis:
    """What level 2 has of the key."""

    __slots__ = ("hold", "lapses", "marks", "token", "value")

    def __init__(self) -> None:
        self.value: int | None = None
        self.token: int | None = None
        self.lapses = 0
        self.marks: dict[int, int] = {}
        self.hold = 0


@dataclass(slots=True, eq=False)
class Flight:
    """A load under way in a process, which callers may join."""

    dirty: bool = False
    value: int | None = None


@dataclass(slots=True)
class Process:
    near: int | None = None
    joined: Flight | None = None
    flights: list[Flight] = field(default_factory=list)
    inbox: list[int] = field(default_factory=list)
    heard: int = 0
    """The newest value whose drop this process has heard of."""


class World:
    """One run. Raises `Wrong`."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self._dice = Random(seed)
        self._bug = bug
        self._now = 0
        self._redis = Redis()
        self._processes = [Process() for _ in range(PROCESSES)]
        self._primary = self._replica = 0
        self._lags_since: int | None = None
        self._tokens = 0
        self._returned = 0
        """The newest value whose drop has returned to its writer."""

    def run(self) -> None:
        """Play until all have ended, and look at what is left."""
        dice = self._dice
        tasks = [self._read(dice.randrange(PROCESSES), strict=dice.random() < 0.2) for _ in range(dice.randrange(3, 9))]
        tasks += [self._write(marks=dice.random() < 0.8) for _ in range(dice.randrange(1, 4))]
        while tasks and self._now < STEPS_MAX:
            self._now += 1
            self._replicate()
            drawn = dice.random()
            if drawn < 0.15:
                self._deliver(self._processes[dice.randrange(PROCESSES)])
                continue
            if drawn < 0.16:  # evicted
                self._redis.value = self._redis.token = None
                continue
            if drawn < 0.20 and len(tasks) < READERS_MAX and self._now < 200:
                tasks.append(self._read(dice.randrange(PROCESSES), strict=dice.random() < 0.3))
            task = dice.choice(tasks)
            if next(task, self) is self:
                tasks.remove(task)
        self._end()

    def _end(self) -> None:
        """All messages have come, and all marks lapsed."""
        for process in self._processes:
            while process.inbox:
                self._deliver(process)
            if process.near is not None and process.near < self._primary:
                raise Wrong(f"level 1 keeps {process.near} of {self._primary}")
        if self._redis.value is not None and self._redis.value < self._primary:
            raise Wrong(f"level 2 keeps {self._redis.value} of {self._primary}")

    def _replicate(self) -> None:
        if self._primary == self._replica:
            self._lags_since = None
            return
        self._lags_since = self._now if self._lags_since is None else self._lags_since
        if self._dice.random() < 1 / 40 or self._now - self._lags_since >= LAG:
            self._replica = self._primary

    # --- readers ------------------------------------------------------------------------------------------------------

    def _read(self, number: int, *, strict: bool) -> Iterator[None]:
        process, redis, bug = self._processes[number], self._redis, self._bug
        need = self._returned if strict else process.heard
        if not strict and process.near is not None:
            return self._check(process.near, need, "level 1")
        flight = process.joined
        if flight is not None and not strict:
            while flight.value is None:
                yield
            return self._check(flight.value, need, "a joined flight")
        flight = process.joined = Flight()
        process.flights.append(flight)
        token = None
        while True:
            yield  # the way to Redis
            marked, held = any(until > self._now for until in redis.marks.values()), redis.hold > self._now
            waits = False
            if marked:
                pass
            elif redis.value is not None:
                value, kept, where = redis.value, True, "level 2"
                yield  # and back
                break
            elif redis.token is not None and self._now < redis.lapses:
                waits = True
            else:
                token = redis.token = self._next()
                redis.lapses = self._now + LOCK
            yield  # and back
            if waits:
                yield
                continue
            yield  # the way to the database
            lagging = not strict and not marked and (not held or bug.startswith("C-5"))
            value = self._replica if lagging and self._dice.random() < 0.5 else self._primary
            for _ in range(self._dice.randrange(40)):
                yield  # a slow answer
            where, kept = "the database", False
            if marked and not bug.endswith("is stored"):
                break
            yield  # the way to Redis
            kept = redis.token == token or bug.startswith("C-1") or marked
            if kept:
                redis.value, redis.token = value, None
            yield  # and back
            break
        if kept and (not flight.dirty or bug == "C-2: no flight is dirty"):
            process.near = value
        if process.joined is flight:
            process.joined = None
        process.flights.remove(flight)
        flight.value = value
        return self._check(value, need, where)

    def _check(self, value: int, need: int, where: str) -> None:
        if value < need:
            raise Wrong(f"got {value} from {where}, needs {need}, at {self._now}")

    def _deliver(self, process: Process) -> None:
        """The next message about a drop comes to a process."""
        if not process.inbox:
            return
        process.heard = max(process.heard, process.inbox.pop(0))
        process.near = None
        only = [process.joined] if process.joined is not None else []
        for flight in only if self._bug == "C-2: only the joined flight is dirty" else process.flights:
            flight.dirty = True
        if not self._bug.startswith("C-3"):
            process.joined = None

    # --- writers ------------------------------------------------------------------------------------------------------

    def _write(self, *, marks: bool) -> Iterator[None]:
        """Mark, write, commit, drop. One without a mark does not die."""
        dies = self._dice.choice(("", "", "", "marked", "committed")) if marks else ""
        if self._bug == "C-4: writers leave no mark":
            marks = False
        yield
        mine = 0 if self._bug == SHARED else self._next()
        if marks:
            self._drop(0, mine, MARK)
        if dies == "marked":
            return
        lapses = self._now + MARK
        for _ in range(1 + self._dice.randrange(30)):
            yield
        if marks and self._now >= lapses and self._bug != "C-4: a writer commits after its mark":
            return  # rolled back
        self._primary += 1
        version = self._primary
        if dies == "committed":
            return
        if self._bug.startswith("C-6"):
            self._returned = max(self._returned, version)
        for _ in range(1 + self._dice.randrange(6)):
            yield
        self._drop(version, mine, 0)
        self._returned = max(self._returned, version)

    def _drop(self, version: int, mine: int, mark: int) -> None:
        """What Redis does at once: a mark removes what is there, as a drop does, and is told to all as well."""
        redis = self._redis
        redis.value = redis.token = None
        if mark:
            redis.marks[mine] = self._now + mark
        else:
            redis.marks.pop(mine, None)
        redis.hold = max(redis.hold, self._now + mark + HOLD)
        for process in self._processes:
            process.inbox.append(version)

    def _next(self) -> int:
        self._tokens += 1
        return self._tokens


def first_wrong(bug: str, seeds: range) -> tuple[int, str] | None:
    """The first of these seeds whose run breaks a promise, and how."""
    for seed in seeds:
        try:
            World(seed, bug).run()
        except Wrong as wrong:
            return seed, str(wrong)
    return None


if __name__ == "__main__":
    import sys

    for each in sys.argv[2:] or ("", *BUGS):
        print(f"{each or 'none':45} {first_wrong(each, range(int(sys.argv[1])))}", flush=True)

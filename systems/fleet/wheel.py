"""When tasks run: a wheel of 60 minutes, each with a queue for each class of customer.

Owns which (task, minute) is due, and the last minute that was handed out. It must not know a clock, a store or a
client: minutes since 1970 come in, and the caller stores each turn whole: its runs, its missed runs and `last_minute`
in one transaction, before it starts any of them. Then each (task, minute) runs once or is reported as missed, wherever
the caller dies.

Counts are exact: a task of n per hour is due n times in any 60 consecutive minutes, for each n, because the count up to
a minute is an integer division of the time that has passed. A task's minutes are shifted by a hash of its name, so that
similar tasks do not all run in the same minute.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import msgspec

MINUTES: Final = 60
PER_HOUR_MAX: Final = 6_000
EVERY_MAX: Final = 7 * 24 * 60  # limit in minutes
PICK_MAX: Final = 1 << 20
SLIP_MAX_MS: Final = 59_000
TASKS_MAX: Final = 100_000  # limit; a refresh reads all of them: about 0.2 s


class TaskError(Exception):
    """A task cannot be scheduled. The text is one line."""


class Class(IntEnum):
    """Classes of customers; in a minute a lower one is served first."""

    MAJOR = 0
    ENTERPRISE = 1
    ORDINARY = 2


class Every(msgspec.Struct, frozen=True, tag="every"):
    """By frequency: one run of `pick` clients every `minutes`."""

    minutes: int
    pick: int


class PerHour(msgspec.Struct, frozen=True, tag="per_hour"):
    """Spread: `samples` per hour, as evenly as minutes allow; one run per minute that has samples."""

    samples: int


class Task(msgspec.Struct, frozen=True):
    name: str
    schedule: Every | PerHour
    customer: Class = Class.ORDINARY
    since_minute: int = 0
    """The first minute that counts; earlier ones are not missed."""
    slip_ms: int = 0
    """Runs begin up to this many ms after the start of the minute, by a hash; 0: at once."""


class DueRun(msgspec.Struct, frozen=True):
    """One run. (task, minute) is its name everywhere."""

    task: str
    minute: int
    customer: Class
    pick: int
    delay_ms: int
    """Delay from the start of the minute."""


class MissedRuns(msgspec.Struct, frozen=True):
    """Runs of a task that no scheduler handed out, from minute `first` to `last`, both included; they will never run."""

    task: str
    first: int
    last: int
    runs: int
    samples: int


class Turn(msgspec.Struct, frozen=True):
    runs: list[DueRun]
    missed: list[MissedRuns]


class Averages(msgspec.Struct, frozen=True):
    """Averages over the task table: a run counts as often as it is due."""

    picked_per_task: float
    tasks_per_minute: float


class Wheel:
    """The wheel. `last_minute` is its whole state besides the tasks: all minutes up to it are handed out or missed,
    none after it."""

    def __init__(self, last_minute: int, tasks: Iterable[Task] = (), *, late_minutes_max: int = 1) -> None:
        """A skipped minute still runs if it is at most `late_minutes_max` old; otherwise it is missed."""
        self.last_minute = last_minute
        self._late_minutes_max = late_minutes_max
        self._tasks: dict[str, Task] = {}
        self._next: dict[str, int] = {}
        self._slots: list[tuple[dict[str, None], dict[str, None], dict[str, None]]] = [
            ({}, {}, {}) for _ in range(MINUTES)
        ]
        self.refresh(tasks)

    def refresh(self, tasks: Iterable[Task]) -> None:
        """Replace the table of tasks; unchanged tasks keep their schedule. Raises `TaskError`, and changes nothing
        then."""
        table = {task.name: task for task in tasks}
        if len(table) > TASKS_MAX:
            raise TaskError(f"too many tasks: {len(table)} (limit {TASKS_MAX})")
        for task in table.values():
            _check(task)
        for name, old in list(self._tasks.items()):
            if table.get(name) != old:
                self._take_out(old)
        for name, task in table.items():
            if name not in self._tasks:
                self._put_in(task)

    def advance(self, minute: int) -> Turn:
        """All runs due up to `minute`, in order: by minute, class and name. A minute is handed out only once."""
        if minute <= self.last_minute:
            return Turn([], [])
        first = max(self.last_minute + 1, minute - self._late_minutes_max)
        missed = list(self._missed(self.last_minute + 1, first - 1))
        runs: list[DueRun] = []
        for at in range(first, minute + 1):
            for queue in self._slots[at % MINUTES]:
                ready = [self._tasks[name] for name in sorted(queue) if self._next[name] == at]
                runs += [_run(task, at) for task in ready]
                for task in ready:
                    self._move(task, at + 1)
            self.last_minute = at
        return Turn(runs, missed)

    def minutes_ahead(self, minute: int) -> int:
        """Minutes for which nothing will be due because they were handed out already: the clock was set back."""
        return max(0, self.last_minute - minute)

    def hour(self) -> list[tuple[int, dict[Class, list[str]]]]:
        """The next 60 minutes, each with the tasks that run in it, by class in their order."""
        first = self.last_minute + 1
        found: list[tuple[int, dict[Class, list[str]]]] = [
            (minute, {customer: [] for customer in Class}) for minute in range(first, first + MINUTES)
        ]
        for name in sorted(self._tasks):
            task, at = self._tasks[name], self._next[name]
            while at < first + MINUTES:
                found[at - first][1][task.customer].append(name)
                at = _next(task, at + 1)
        return found

    def averages(self) -> Averages:
        """Clients per run, and runs per minute, over all tasks; zeros without tasks."""
        runs = sum(_runs_per_hour(task.schedule) for task in self._tasks.values())
        picked = sum(_samples_per_hour(task.schedule) for task in self._tasks.values())
        return Averages(picked / runs if runs else 0.0, runs / MINUTES)

    def samples(self, minute: int) -> int:
        """The number of samples of all tasks in a minute."""
        return sum(due(task, minute) for task in self._tasks.values())

    @property
    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def _put_in(self, task: Task) -> None:
        self._tasks[task.name] = task
        self._place(task, max(self.last_minute + 1, task.since_minute))

    def _take_out(self, task: Task) -> None:
        self._lift(task)
        del self._tasks[task.name]

    def _move(self, task: Task, after: int) -> None:
        self._lift(task)
        self._place(task, after)

    def _place(self, task: Task, after: int) -> None:
        at = self._next[task.name] = _next(task, after)
        self._slots[at % MINUTES][task.customer][task.name] = None

    def _lift(self, task: Task) -> None:
        del self._slots[self._next.pop(task.name) % MINUTES][task.customer][task.name]

    def _missed(self, first: int, last: int) -> Iterator[MissedRuns]:
        """The missed runs of these minutes; advances the tasks."""
        if first > last:
            return
        for name in sorted(self._tasks):
            task = self._tasks[name]
            begin = max(first, task.since_minute)
            if self._next[name] > last:
                continue
            runs, samples = _count(task, begin, last)
            yield MissedRuns(name, begin, last, runs, samples)
            self._move(task, last + 1)
        self.last_minute = last


def phase(name: str) -> int:
    """A number by which a task's minutes are shifted: arbitrary, but always the same for a name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def due(task: Task, minute: int) -> int:
    """The number of samples of a task in a minute: the definition; everything else is a faster form of it."""
    if minute < task.since_minute:
        return 0
    match task.schedule:
        case Every(minutes, pick):
            return pick if (minute + phase(task.name)) % minutes == 0 else 0
        case PerHour(samples):
            moved = minute + phase(task.name) % MINUTES
            return (moved + 1) * samples // MINUTES - moved * samples // MINUTES


def _next(task: Task, after: int) -> int:
    """The first minute from `after` on in which the task is due."""
    match task.schedule:
        case Every(minutes, _):
            return after + -(after + phase(task.name)) % minutes
        case PerHour(samples):
            moved = after + phase(task.name) % MINUTES
            wanted = moved * samples // MINUTES + 1  # (next + 1) x samples // 60 must reach it
            return after - moved + -(-wanted * MINUTES // samples) - 1


def _count(task: Task, first: int, last: int) -> tuple[int, int]:
    """Runs and samples that were due from `first` to `last`, both included and not before the task began."""
    match task.schedule:
        case Every(minutes, pick):
            moved = phase(task.name)
            runs = (last + moved) // minutes - (first - 1 + moved) // minutes
            return runs, runs * pick
        case PerHour(samples):
            moved = phase(task.name) % MINUTES
            wanted = (last + 1 + moved) * samples // MINUTES - (first + moved) * samples // MINUTES
            return last - first + 1 if samples >= MINUTES else wanted, wanted


def _run(task: Task, minute: int) -> DueRun:
    delay = phase(f"{task.name}\n{minute}") % (task.slip_ms + 1)
    return DueRun(task.name, minute, task.customer, due(task, minute), delay)


def _runs_per_hour(schedule: Every | PerHour) -> float:
    match schedule:
        case Every(minutes, _):
            return MINUTES / minutes
        case PerHour(samples):
            return min(samples, MINUTES)


def _samples_per_hour(schedule: Every | PerHour) -> float:
    match schedule:
        case Every(minutes, pick):
            return pick * MINUTES / minutes
        case PerHour(samples):
            return samples


def _check(task: Task) -> None:
    match task.schedule:
        case Every(minutes, pick):
            if not 1 <= minutes <= EVERY_MAX:
                raise TaskError(f"task {task.name}: invalid interval of {minutes} minutes (expected 1 to {EVERY_MAX})")
            if not 1 <= pick <= PICK_MAX:
                raise TaskError(
                    f"task {task.name}: invalid number of clients per run {pick} (expected 1 to {PICK_MAX})"
                )
        case PerHour(samples):
            if not 1 <= samples <= PER_HOUR_MAX:
                raise TaskError(
                    f"task {task.name}: invalid number of samples per hour {samples} (expected 1 to {PER_HOUR_MAX})"
                )
    if not 0 <= task.slip_ms <= SLIP_MAX_MS:
        raise TaskError(f"task {task.name}: invalid slip of {task.slip_ms} ms (expected 0 to {SLIP_MAX_MS})")

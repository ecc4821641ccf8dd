"""What a fleet keeps: tasks, runs with their draws, results, and which scheduler leads. Knows no database.

A `Store` is asked by one scheduler at a time to write, and by any process to read. Whatever a scheduler writes about runs
carries the epoch by which it leads: once another one has taken over, the write fails as a whole (I-1).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from muster_server.systems.fleet.questions import Draw, TaskRow
from muster_server.systems.fleet.runs import RunName
from muster_server.systems.fleet.wheel import Class, DueRun, Every, MissedRuns, PerHour, Task, TaskError

State = Literal["due", "running", "done", "missed"]
"""due: handed out, nobody is asked yet. missed: nobody was ever asked; `reason` says why."""
OPEN: Final = ("due", "running")
VALUE_BYTES_MAX: Final = 16_384
"""Of a result; a longer one is kept without its value."""


KIND_MAX: Final = 64
"""Characters of a kind of task."""
TARGET_MAX: Final = 1_024
"""Characters of a target."""
CUSTOMERS: Final = {customer.name.lower(): customer for customer in Class}


class StoreError(Exception):
    """The store does not answer, or refuses. One line."""


class Unstored(msgspec.Struct, frozen=True):
    """A run, or a client's result, that the store cannot hold, and why."""

    run: RunName
    client: str
    """Empty: it is the run itself."""
    reason: str


class Fenced(StoreError):
    """Another scheduler leads by now."""


class Lead(msgspec.Struct, frozen=True):
    """Which scheduler leads, and that it lives: `beat` moves."""

    epoch: int
    beat: int
    holder: str
    last_minute: int
    """All up to it is handed out or missed; 0: nothing ever was."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, with all that it takes to go on with it elsewhere."""

    task: str
    minute: int
    kind: str
    target: str
    selector: str
    options: dict[str, Any] = {}
    wanted: int
    delay_ms: int = 0
    state: State = "due"
    started_ms: int = 0
    """Since 1970, by the clock of its scheduler; for people."""
    draws: list[Draw] = []
    asked: list[list[tuple[str, int]]] = []
    """Of each draw, clients and their epochs."""
    replaced: list[str] | None = None
    """The silent ones that the second draw replaced; None: there was none yet."""
    done: int = 0
    missed: int = 0
    reason: str = ""

    @property
    def name(self) -> RunName:
        return self.task, self.minute


class ResultRow(msgspec.Struct, frozen=True):
    """A client's result in a run; there is one at most."""

    task: str
    minute: int
    client: str
    ok: bool
    value: bytes
    """JSON."""
    error: str
    at_ms: int


class Store(Protocol):
    """Every call may raise `StoreError`, and those with an `epoch` raise `Fenced`."""

    async def lead(self) -> Lead | None:
        """Which scheduler leads; None: none ever did."""

    async def take(self, seen: Lead | None, holder: str) -> Lead | None:
        """Lead from now on, unless anything happened since `seen`; None then."""

    async def beat(self, epoch: int) -> None:
        """Still here."""

    async def resign(self, epoch: int) -> None:
        """Another one need not wait."""

    async def tasks(self) -> list[TaskRow]:
        """All, by name. Those that cannot be read have a reason in `refused`."""

    async def put_task(self, task: TaskRow, new: bool) -> bool:
        """Write it; False if it is `new` and there already."""

    async def drop_task(self, name: str) -> bool:
        """Whether it was there."""

    async def turn(
        self, epoch: int, before: int, after: int, runs: Sequence[RunRow], missed: Sequence[MissedRuns]
    ) -> Sequence[Unstored]:
        """One transaction: these runs are handed out, these are missed, and the last minute is `after`, not `before`.

        A row that the store cannot hold is returned, and keeps no other row back; so it is for `write`.
        """

    async def write(self, epoch: int, runs: Sequence[RunRow], results: Sequence[ResultRow]) -> Sequence[Unstored]:
        """Runs anew (clients that are about to be asked, ends), and results, each kept once, in one transaction."""

    async def open_runs(self) -> list[RunRow]:
        """Those that nobody ended."""

    async def run(self, task: str, minute: int | None) -> RunRow | None:
        """A run; without a minute a task's last one."""

    async def results_of(self, run: RunName) -> list[ResultRow]:
        """In the order in which they came."""

    async def sent(self, first: int, last: int) -> Mapping[int, int]:
        """Clients asked in each of these minutes, by continuous tasks."""

    async def heal(self, epoch: int, before: int, after: int) -> None:
        """The last minute is `after`, which is earlier than `before`: the clock was ahead. One transaction.

        What was missed after it is not; tasks that were to begin by then begin now.
        """

    async def missed(self, first: int, last: int) -> list[MissedRuns]:
        """What was missed in these minutes, by task and first minute."""

    async def handed(self, first: int, last: int) -> set[RunName]:
        """Runs of continuous tasks that were handed out in these minutes."""

    async def last_run(self) -> int:
        """The last minute of all runs; 0: there is none."""

    async def prune(self, before_ms: int) -> None:
        """Delete runs that started earlier, with their results."""

    async def close(self) -> None:
        """Close the connections."""


def scheduled(row: TaskRow) -> Task:
    """As the wheel takes it. Raises `TaskError`."""
    if (row.every_minutes is None) == (row.per_hour is None):
        raise TaskError(f"task {row.name}: one of every_minutes and per_hour is wanted")
    if row.customer not in CUSTOMERS:
        raise TaskError(f"task {row.name}: customer is {row.customer!r:.40}; {', '.join(CUSTOMERS)} are possible")
    of = PerHour(row.per_hour or 0) if row.every_minutes is None else Every(row.every_minutes, row.pick or 0)
    return Task(row.name, of, CUSTOMERS[row.customer], row.since_minute, row.slip_ms)


def unfit(kind: str, target: str, selector: str) -> str | None:
    """Why an order with these cannot be stored; None: it can."""
    for name, text, most in (("kind", kind, KIND_MAX), ("target", target, TARGET_MAX)):
        if len(text) > most:
            return f"{name}: {len(text)} characters; {most} are allowed"
    for name, text in (("kind", kind), ("target", target), ("selector", selector)):
        if "\0" in text:
            return f"{name}: the character NUL is not allowed"
    return None


def handed_out(due: DueRun, task: TaskRow) -> RunRow:
    """A run of a task that is due."""
    return RunRow(
        task=due.task,
        minute=due.minute,
        kind=task.kind,
        target=task.target,
        selector=task.selector,
        options=task.options,
        wanted=due.pick,
        delay_ms=due.delay_ms,
    )

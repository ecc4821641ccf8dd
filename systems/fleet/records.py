"""The stored data of a fleet: tasks, runs with their draws, results, and the leading scheduler. Knows no database.

One scheduler at a time writes to a `Store`, and any process reads. Each write about runs carries the epoch by which the
scheduler leads: once another one has taken over, the write fails as a whole (I-1).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from muster_server.systems.fleet.questions import Draw, Kept, MinuteRow, RunBrief, TaskRow
from muster_server.systems.fleet.runs import RunName
from muster_server.systems.fleet.wheel import Class, DueRun, Every, MissedRuns, PerHour, Task, TaskError

State = Literal["due", "running", "done", "missed"]
"""`due`: handed out, no client is asked yet. `missed`: no client was ever asked; `reason` tells why."""
OPEN: Final = ("due", "running")
VALUE_BYTES_MAX: Final = 16_384
"""Limit of a result's value; a longer one is stored without its value."""


KIND_MAX: Final = 64
"""Limit of characters of a kind of task."""
TARGET_MAX: Final = 1_024
"""Limit of characters of a target."""
CUSTOMERS: Final = {customer.name.lower(): customer for customer in Class}


class Unstored(msgspec.Struct, frozen=True):
    """A run, or a client's result, that the store cannot hold, with the reason."""

    run: RunName
    client: str
    """Empty: the run itself."""
    reason: str


class Lead(msgspec.Struct, frozen=True):
    """The leading scheduler; `beat` changes while it is alive."""

    epoch: int
    beat: int
    holder: str
    last_minute: int
    """All minutes up to this one are handed out or missed; 0: none yet."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, with everything needed to continue it in another process."""

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
    """In ms since 1970, by the clock of its scheduler; for people."""
    draws: list[Draw] = []
    asked: list[list[tuple[str, int]]] = []
    """For each draw, clients and their epochs."""
    marks: list[list[str]] = []
    """For each draw, the mark of each client; empty: not known."""
    replaced: list[str] | None = None
    """The silent clients that the second draw replaced; None: there was none yet."""
    done: int = 0
    missed: int = 0
    reason: str = ""

    @property
    def name(self) -> RunName:
        return self.task, self.minute

    @property
    def mark_of(self) -> dict[str, str]:
        """The mark of each client, as far as it is known."""
        pairs = zip(self.asked, self.marks, strict=False)
        return {client: mark for draw, marks in pairs for (client, _), mark in zip(draw, marks, strict=False)}


class ResultRow(msgspec.Struct, frozen=True):
    """A client's result in a run; at most one."""

    task: str
    minute: int
    client: str
    ok: bool
    value: bytes
    """The result in JSON."""
    error: str
    at_ms: int
    mark: str = ""
    """Where the client was when it was picked; empty: not known."""
    ms: float | None = None
    """The number that stands for the value; None: it has none."""


class Rolled(msgspec.Struct, frozen=True):
    """The rows written with the end of a run, beside its own."""

    run: RunName
    minutes: list[MinuteRow]
    out: bool
    """True: its results go to a topic."""


After = tuple[int, str]
"""The minute, and the client or mark, of the last row of a page."""
RunPlace = tuple[int, str, int]
"""The place of a run in the history: its start in ms since 1970, its task, its minute."""


class Store(Protocol):
    """Every call may raise `StoreError`, and those with an `epoch` raise `Fenced`."""

    async def lead(self) -> Lead | None:
        """The leading scheduler; None: none ever led."""

    async def claim(self, seen: Lead | None, holder: str) -> Lead | None:
        """Lead from now on, unless the lead has changed since `seen`; returns None then."""

    async def beat(self, epoch: int) -> None:
        """Show that the lead is alive."""

    async def resign(self, epoch: int) -> None:
        """Give up the lead, so that another scheduler need not wait."""

    async def tasks(self) -> list[TaskRow]:
        """All tasks, by name. Unreadable ones have a reason in `refused`."""

    async def put_task(self, task: TaskRow, new: bool) -> bool:
        """Write a task; returns False if it is `new` and exists already."""

    async def drop_task(self, name: str) -> bool:
        """Remove a task; returns whether it existed."""

    async def turn(
        self, epoch: int, before: int, after: int, runs: Sequence[RunRow], missed: Sequence[MissedRuns]
    ) -> Sequence[Unstored]:
        """In one transaction: hand out `runs`, record `missed`, and move the last minute from `before` to `after`.

        A row that the store cannot hold is returned, and does not keep others from being written; the same applies to
        `write`.
        """

    async def write(
        self, epoch: int, runs: Sequence[RunRow], results: Sequence[ResultRow], ends: Sequence[Rolled] = ()
    ) -> Sequence[Unstored]:
        """Write new states of runs (clients that are about to be asked, ends), results, each stored once, and what
        follows from the ends of runs, in one transaction."""

    async def results_in(self, task: str, first: int, last: int, limit: int, after: After | None) -> list[Kept]:
        """The results of a task in these minutes, by minute and client."""

    async def minutes_of(
        self, task: str, first: int, last: int, mark: str | None, limit: int, after: After | None
    ) -> list[MinuteRow]:
        """The roll-ups of a task in these minutes, by minute and mark."""

    async def outbox(self, limit: int) -> tuple[list[RunName], int]:
        """The ended runs whose results wait for their topic, by minute, and the number of all that wait."""

    async def handed_over(self, epoch: int, runs: Sequence[RunName]) -> None:
        """The topic has the results of these runs."""

    async def open_runs(self) -> list[RunRow]:
        """The runs that have not ended."""

    async def run(self, task: str, minute: int | None) -> RunRow | None:
        """A run; without a minute the task's last one."""

    async def runs(self, limit: int, after: RunPlace | None) -> list[tuple[RunPlace, RunBrief]]:
        """The started runs before a place, the newest first."""

    async def results_of(self, run: RunName) -> list[ResultRow]:
        """The results in the order of arrival."""

    async def sent(self, first: int, last: int) -> Mapping[int, int]:
        """Number of clients asked in each of these minutes, by continuous tasks."""

    async def heal(self, epoch: int, before: int, after: int) -> None:
        """Set the last minute to `after`, earlier than `before`, because the clock was ahead. One transaction.

        Runs missed after it are not missed any more; tasks that were to begin by then begin now.
        """

    async def missed(self, first: int, last: int) -> list[MissedRuns]:
        """The missed runs of these minutes, by task and first minute."""

    async def handed(self, first: int, last: int) -> set[RunName]:
        """Runs of continuous tasks that were handed out in these minutes."""

    async def last_run(self) -> int:
        """The last minute of all runs; 0: there is none."""

    async def prune(self, before_ms: int, before_minute: int) -> None:
        """Delete runs that started before a time, with their results, and roll-ups of minutes before another one."""

    async def close(self) -> None:
        """Close the connections."""


def scheduled(row: TaskRow) -> Task:
    """The task of the wheel for a row. Raises `TaskError`."""
    if (row.every_minutes is None) == (row.per_hour is None):
        raise TaskError(f"task {row.name}: set exactly one of every_minutes and per_hour")
    if row.customer not in CUSTOMERS:
        raise TaskError(
            f"task {row.name}: invalid customer {row.customer!r:.40} (expected one of {', '.join(CUSTOMERS)})"
        )
    of = PerHour(row.per_hour or 0) if row.every_minutes is None else Every(row.every_minutes, row.pick or 0)
    return Task(row.name, of, CUSTOMERS[row.customer], row.since_minute, row.slip_ms)


def unfit(kind: str, target: str, selector: str) -> str | None:
    """Why an order with these texts cannot be stored; None: it can."""
    for name, text, most in (("kind", kind, KIND_MAX), ("target", target, TARGET_MAX)):
        if len(text) > most:
            return f"{name}: too long: {len(text)} characters (limit {most})"
    for name, text in (("kind", kind), ("target", target), ("selector", selector)):
        if "\0" in text:
            return f"{name}: the character NUL is not allowed"
    return None


def handed_out(due: DueRun, task: TaskRow) -> RunRow:
    """The row of a due run."""
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

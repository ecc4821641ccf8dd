"""Runs in flight: the clients that were asked, answered, were silent, or replaced silent ones.

Owns the state of each run from its sending to its end. It must not know a clock, a socket, a store or how clients are
picked: times in ms of any steady clock come in, and actions go out. Each (run, client) is counted exactly once: `done`,
`replaced` (silent, and another client was asked in its place) or `missed`. A run ends when all its clients have, at the
latest `receipt_ms + result_ms` after it began: there is one draw of replacements, at the deadline of receipts.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final

import msgspec

RUNS_MAX: Final = 65_536  # limit in flight; 1,000 per minute that end within a minute are 1,000
CLIENTS_MAX: Final = 1 << 22  # limit over all runs in flight: about 0.5 GB

RunName = tuple[str, int]
"""(task, minute); for an instant measurement (its id, 0)."""


class Outcome(StrEnum):
    """The outcome of one client in one run."""

    DONE = "done"
    REPLACED = "replaced"
    MISSED = "missed"


class Verdict(StrEnum):
    """The verdict on a client's message; all but the first change nothing and are counted."""

    TAKEN = "taken"
    DOUBLE = "double"
    LATE = "late"
    STRANGER = "stranger"
    """From a client that was not asked, or for a run that is not in flight (any more)."""


class RunsError(Exception):
    """A run cannot begin: a duplicate name or client, or a limit is reached. The text is one line."""


class Replacement(msgspec.Struct, frozen=True):
    """Pick `len(silent)` other clients and call `replaced` with those that were found."""

    run: RunName
    silent: list[str]
    asked: list[str]
    """All clients of the run, none of which may be picked again."""


class RunEnd(msgspec.Struct, frozen=True):
    """A run's account: each asked client is in exactly one list."""

    run: RunName
    wanted: int
    done: list[str]
    replaced: list[str]
    missed: list[str]


Action = Replacement | RunEnd


class _Assignment(msgspec.Struct):
    until_ms: int
    """The deadline of its receipt, then of its result."""
    received: bool = False
    outcome: Outcome | None = None


class _Run(msgspec.Struct):
    name: RunName
    wanted: int
    clients: dict[str, _Assignment]
    open: int
    may_replace: bool = True
    waits: list[str] = []
    """Silent clients whose replacement is being picked."""


class Runs:
    def __init__(self, *, receipt_ms: int, result_ms: int) -> None:
        """A client has `receipt_ms` to confirm a task, and `result_ms` from the sending to return a result."""
        if not 0 < receipt_ms <= result_ms:
            raise ValueError(
                f"invalid receipt_ms {receipt_ms} and result_ms {result_ms} (expected 0 < receipt_ms <= result_ms)"
            )
        self.counts: dict[Outcome | Verdict, int] = dict.fromkeys([*Outcome, *Verdict], 0)
        self._receipt_ms = receipt_ms
        self._result_ms = result_ms
        self._runs: dict[RunName, _Run] = {}
        self._deadlines: list[tuple[int, RunName]] = []
        self._clients = 0

    @property
    def in_flight(self) -> int:
        return len(self._runs)

    @property
    def deadline_ms(self) -> int | None:
        """The earliest time at which `expire` has something to do; None: no run is in flight."""
        return self._deadlines[0][0] if self._deadlines else None

    def begin(
        self, now_ms: int, run: RunName, clients: Sequence[str], wanted: int, replaced: Sequence[str] | None = None
    ) -> RunEnd | None:
        """Begin a run with these clients, fewer than `wanted` if no others were found. Returns the end of a run without
        clients.

        For a run that is resumed after its scheduler died, and had its draw of replacements, `replaced` names the
        replaced clients. Raises `RunsError`, and changes nothing then.
        """
        if len({*clients, *(replaced or ())}) < len(clients) + len(replaced or ()):
            raise RunsError(f"run {run[0]} of minute {run[1]} has a client twice")
        self.check(run, len(clients))
        started = _Run(run, wanted, {}, 0, may_replace=replaced is None)
        for client in replaced or ():
            started.clients[client] = _Assignment(now_ms, outcome=Outcome.REPLACED)
        self._clients += len(started.clients)
        self._runs[run] = started
        self._ask(now_ms, started, clients)
        return self._end(started) if not clients else None

    def check(self, run: RunName, clients: int) -> None:
        """Check whether a run with this many clients can begin now. Raises `RunsError`."""
        if run in self._runs:
            raise RunsError(f"run {run[0]} of minute {run[1]} is in flight already")
        if len(self._runs) >= RUNS_MAX or self._clients + clients > CLIENTS_MAX:
            raise RunsError(f"too many runs in flight: {len(self._runs)} runs of {self._clients} clients")

    def receipt(self, now_ms: int, run: RunName, client: str) -> Verdict:
        """A client confirms the task."""
        asked = self._asked(run, client)
        if asked is None:
            return self._count(Verdict.STRANGER)
        if asked.outcome is Outcome.DONE or asked.received:
            return self._count(Verdict.DOUBLE)
        if asked.outcome is not None or now_ms > asked.until_ms:
            return self._count(Verdict.LATE)
        asked.received = True
        asked.until_ms += self._result_ms - self._receipt_ms
        heappush(self._deadlines, (asked.until_ms, run))
        return self._count(Verdict.TAKEN)

    def result(self, now_ms: int, run: RunName, client: str) -> tuple[Verdict, RunEnd | None]:
        """A client's result, which counts as its receipt too. Also returns the run's account if it was the last."""
        asked = self._asked(run, client)
        if asked is None:
            return self._count(Verdict.STRANGER), None
        if asked.outcome is Outcome.DONE:
            return self._count(Verdict.DOUBLE), None
        if asked.outcome is not None or now_ms > asked.until_ms:
            return self._count(Verdict.LATE), None
        self._settle(self._runs[run], asked, Outcome.DONE)
        return self._count(Verdict.TAKEN), self._end(self._runs[run])

    def expire(self, now_ms: int) -> list[Action]:
        """The actions for all deadlines that have passed."""
        actions: list[Action] = []
        late: dict[RunName, None] = {}
        while self._deadlines and self._deadlines[0][0] < now_ms:
            late[heappop(self._deadlines)[1]] = None
        for name in late:
            run = self._runs.get(name)
            if run is not None:
                actions += self._expire(now_ms, run)
        return actions

    def replaced(self, now_ms: int, run: RunName, clients: Sequence[str]) -> RunEnd | None:
        """Record the clients asked in place of the silent ones of a `Replacement`; fewer if no others were found.

        Raises `RunsError` if there was no such `Replacement`, for more clients than it asked for, or for a client asked
        before.
        """
        known = self._runs.get(run)
        if known is None or not known.waits:
            raise RunsError(f"run {run[0]} of minute {run[1]} needs no replacements")
        if len(clients) > len(known.waits) or len({*clients, *known.clients}) < len(clients) + len(known.clients):
            raise RunsError(
                f"run {run[0]} of minute {run[1]}: too many replacements, or clients that were asked before"
            )
        waits, known.waits = known.waits, []
        self._ask(now_ms, known, clients)
        for number, client in enumerate(waits):
            outcome = Outcome.REPLACED if number < len(clients) else Outcome.MISSED
            self._settle(known, known.clients[client], outcome)
        return self._end(known)

    def _ask(self, now_ms: int, run: _Run, clients: Sequence[str]) -> None:
        until = now_ms + self._receipt_ms
        run.clients.update((client, _Assignment(until)) for client in clients)
        run.open += len(clients)
        self._clients += len(clients)
        if clients:
            heappush(self._deadlines, (until, run.name))

    def _expire(self, now_ms: int, run: _Run) -> Iterable[Action]:
        late = [
            (client, asked)
            for client, asked in run.clients.items()
            if asked.outcome is None and asked.until_ms < now_ms and client not in run.waits
        ]
        silent = [client for client, asked in late if not asked.received] if run.may_replace else []
        if silent:
            run.may_replace = False
            run.waits = silent
            yield Replacement(run.name, silent, list(run.clients))
        for client, asked in late:
            if client not in silent:
                self._settle(run, asked, Outcome.MISSED)
        ended = self._end(run)
        if ended is not None:
            yield ended

    def _asked(self, run: RunName, client: str) -> _Assignment | None:
        known = self._runs.get(run)
        return None if known is None else known.clients.get(client)

    def _settle(self, run: _Run, asked: _Assignment, outcome: Outcome) -> None:
        assert asked.outcome is None, "a client's part in a run is counted once"
        asked.outcome = outcome
        run.open -= 1
        self.counts[outcome] += 1

    def _end(self, run: _Run) -> RunEnd | None:
        if run.open:
            return None
        del self._runs[run.name]
        self._clients -= len(run.clients)
        by: dict[Outcome | None, list[str]] = {outcome: [] for outcome in Outcome}
        for client, asked in run.clients.items():
            by[asked.outcome].append(client)
        return RunEnd(run.name, run.wanted, by[Outcome.DONE], by[Outcome.REPLACED], by[Outcome.MISSED])

    def _count(self, verdict: Verdict) -> Verdict:
        self.counts[verdict] += 1
        return verdict

"""The scheduler of a fleet: hands out due runs, asks clients over MQTT, counts and stores their results.

Connects the wheel, runs and the store to the broker, the index nodes and callers. It must not know how clients are
picked, nor a database. Of several schedulers one leads: the store names it, and the lead's beat changes there. A
scheduler that sees the beat unchanged for `TAKE_S`, by its own steady clock, takes over and continues all open runs.
Each write about runs carries the lead's epoch, so that a lead that had only stalled can write, and pick, nothing more.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from muster.clock import now_ms
from muster.instance import start_time
from muster_server.plane import ways
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, password, secret
from muster_server.plane.ways import Way
from muster_server.systems.fleet import replay, schema
from muster_server.systems.fleet.dispatcher import SEED_STEP, Answer, Dispatcher
from muster_server.systems.fleet.index_nodes import IndexNodes, running
from muster_server.systems.fleet.mqtt import Link, LinkError
from muster_server.systems.fleet.options import FleetSettings
from muster_server.systems.fleet.outbox import Outbox
from muster_server.systems.fleet.questions import (
    RUN_PLACE,
    Averages,
    DropTask,
    Event,
    Explain,
    Explained,
    Heal,
    Healed,
    Hour,
    MinutesOf,
    MinutesPage,
    PastRuns,
    Picked,
    PickOne,
    Ping,
    Pong,
    PutTask,
    Refresh,
    Refreshed,
    Release,
    ResultsIn,
    ResultsOf,
    ResultsPage,
    RunNow,
    RunPage,
    Slot,
    TaskRow,
    Tasks,
    Watch,
    WheelShown,
)
from muster_server.systems.fleet.records import (
    OPEN,
    VALUE_BYTES_MAX,
    Lead,
    ResultRow,
    Rolled,
    RunRow,
    Store,
    Unstored,
    handed_out,
    scheduled,
    unfit,
)
from muster_server.systems.fleet.rollups import Sample, measured, rolled
from muster_server.systems.fleet.runs import Replacement, RunEnd, RunName, Runs, RunsError
from muster_server.systems.fleet.schema import NAME, SchemaError
from muster_server.systems.fleet.selector import SelectorError, parse
from muster_server.systems.fleet.watching import WATCHED_MAX, Queue, SeenEvents, Watching
from muster_server.systems.fleet.wheel import PICK_MAX, TASKS_MAX, Task, TaskError, Turn, Wheel, due

ROLE: Final = "scheduler"
LOOK_S: Final = 0.5
BEAT_S: Final = 1.0
TAKE_S: Final = 3.0
TAKE_CALL_S: Final = 1.5
TICK_S: Final = 0.1
WRITE_S: Final = 0.02
"""Results that arrive within this many seconds are written together."""
WRITE_S_MAX: Final = 0.1
"""The pause before a write is as long as the last one took, up to this many seconds: under load writes are fewer and
larger."""
PRUNE_S: Final = 600.0
STEP_S: Final = 60.0
TRUSTED_S: Final = 3_600.0
"""A clock without a step of `STEP_S` for this many seconds is reliable enough to delete by age."""
ANSWERS_MAX: Final = 200_000
"""Limit of results that wait for the store; further ones are dropped, and their clients are missed: 20 s of the largest
load."""
REFUSED_SHOWN: Final = 20
"""Limit of refused tasks in one line of the log, and in the status."""
MINUTE: Final = re.compile(r"[0-9]{1,18}")
PLACE: Final = re.compile(RUN_PLACE)
HISTORY_MAX: Final = 200
"""Limit of runs in a page of the history, at most 1.3 KiB each in JSON: 256 KiB."""
PAGE_MAX: Final = 1_000
"""Limit of results or roll-ups in an answer: at most 20 MB, as of clients that send all they may."""
INSTANT: Final = 0
"""The minute of an instant run."""


class _Tally:
    """Where the clients of a run in flight are, and their answers so far."""

    def __init__(self, marks: dict[str, str], results: Sequence[ResultRow] = ()) -> None:
        self.marks = marks
        self.samples = [Sample(each.mark, each.ok, each.ms) for each in results]


class Leading:
    """One period as the lead: from taking over to being fenced. `work` runs until then."""

    def __init__(
        self,
        lead: Lead,
        store: Store,
        nodes: IndexNodes,
        settings: FleetSettings,
        link: Callable[[Callable[[str, bytes], None]], Link],
        log: Any,
        way: Way | None = None,
    ) -> None:
        """`way` leads into topics, where `fleet.results_topic` names one."""
        fleet = settings.fleet
        self.lead, self.fleet = lead, fleet
        self.link = link(self._heard)
        self.runs = Runs(receipt_ms=fleet.receipt_ms, result_ms=fleet.result_ms)
        self.dispatcher = Dispatcher(
            self.runs,
            receipt_ms=fleet.receipt_ms,
            result_ms=fleet.result_ms,
            send=self.link.send,
            answered=self._answered,
            ended=self._ended,
        )
        self.table: dict[str, TaskRow] = {}
        self.wheel = Wheel(lead.last_minute)
        self.handed_out = self.missed = self.taken_up = 0
        self._store, self._nodes, self._log = store, nodes, log
        self.outbox = None if way is None else Outbox(store, lead.epoch, way, fleet.results_topic, log)
        self._rows: dict[RunName, RunRow] = {}
        self._tallies: dict[RunName, _Tally] = {}
        self.watching = Watching()
        self.refused: dict[str, str] = {}
        """Tasks of the table that cannot be scheduled, with the reason."""
        self.unstored = 0
        """Runs and results that the store could not hold."""
        self._lost: dict[RunName, str] = {}
        """Runs that the store recently could not hold, with the reason."""
        self._known_until = lead.last_minute
        """Up to this minute some runs may have been handed out before: the clock was ahead."""
        self._ahead_since: float | None = None
        self._offset, self._steps_since = time.time() - time.monotonic(), time.monotonic()
        """Difference of the wall clock from the steady one; and since when it has made no step."""
        self.overflowed = 0
        """Messages of clients that were dropped because the store is too slow."""
        self._answers: list[ResultRow] = []
        self._puts: dict[RunName, RunRow] = {}
        self._ends: list[Rolled] = []
        self._written: list[asyncio.Future[None]] = []
        self._some = asyncio.Event()
        self._starting: set[asyncio.Task[None]] = set()
        self._refreshing = asyncio.Lock()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def work(self, began: Callable[[], None]) -> None:
        """Lead until another scheduler does. Raises `StoreError` then, or when the store does not answer."""
        await self.refresh()
        self._nodes.on_alive = self.tell_averages
        await self._connect()
        self._known_until = max(self._known_until, await self._store.last_run())
        opened = await self._store.open_runs()
        began()
        for row in opened:
            self._spawn(self._take_up(row))
        loops = [
            asyncio.create_task(each)
            for each in (self._beat(), self._turns(), self._ticks(), self._write(), self._prune())
        ]
        if self.outbox is not None:
            loops.append(asyncio.create_task(self.outbox.run()))
        try:
            await asyncio.wait([*loops, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for task in (*loops, self._failed):
                if task.done():
                    await task
        finally:
            for each in (*loops, *self._starting):
                each.cancel()
            await asyncio.gather(*loops, *self._starting, return_exceptions=True)
            self._failed.cancel()
            for written in self._written:
                if not written.done():
                    written.set_exception(Fenced("this scheduler does not lead any more"))
            self.watching.end()
            await self.link.close()

    async def end(self) -> None:
        """Write what waits, and let another scheduler lead at once; it continues the open runs."""
        with contextlib.suppress(StoreError):
            await self._flush()
            await self._store.resign(self.lead.epoch)

    async def _connect(self) -> None:
        said = ""
        while True:
            try:
                await self.link.open()
                return
            except LinkError as error:
                if str(error) != said:
                    self._log.warning("waiting for the MQTT broker", cause=str(error))
                    said = str(error)
                await self._store.beat(self.lead.epoch)
                await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        while True:
            await self._store.beat(self.lead.epoch)
            await asyncio.sleep(BEAT_S)

    async def _ticks(self) -> None:
        while True:
            for each in self.dispatcher.tick(_now()):
                self._spawn(self._replace(each))
            await asyncio.sleep(TICK_S)

    async def _prune(self) -> None:
        while True:
            if self.trusts_clock:
                minute = now_ms() // 60_000 - self.fleet.minutes_keep_h * 60
                await self._store.prune(now_ms() - self.fleet.keep_h * 3_600_000, minute)
            await asyncio.sleep(PRUNE_S)

    def _spawn(self, work: Any) -> None:
        """Run a task in the background; a store that fails ends the lead."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # an internal error ends the process, as one in the loops would
                if not self._failed.done():
                    self._failed.set_exception(error)

        task = asyncio.create_task(guarded())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def refresh(self) -> Refreshed:
        """Read the table. A task that cannot be scheduled does not run, and is named."""
        async with self._refreshing:
            table = {row.name: row for row in await self._store.tasks()}
            self.refused = self._judged(table.values())
            if self.refused:
                few = dict(list(self.refused.items())[:REFUSED_SHOWN])
                self._log.warning("tasks cannot be scheduled", count=len(self.refused), refused=few)
            self.table = table
            self.wheel.refresh(self._running())
        self.tell_averages()
        return Refreshed(len(table), self.refused)

    def _judged(self, rows: Iterable[TaskRow]) -> dict[str, str]:
        """The tasks that cannot be scheduled, with the reason. A bad row does not affect others."""
        refused: dict[str, str] = {}
        running = 0
        for row in rows:
            try:
                check(row)
                running += not row.paused
                if running > TASKS_MAX:
                    raise CallError("task", f"too many tasks (limit {TASKS_MAX})")
            except CallError as error:
                refused[row.name] = str(error)
            except Exception as error:
                self._log.exception("a task could not be checked", task=row.name)
                refused[row.name] = f"{type(error).__name__}: {error}"[:300]
        return refused

    def _running(self) -> list[Task]:
        rows = self.table.values()
        return [scheduled(row) for row in rows if not row.paused and row.name not in self.refused]

    def tell_averages(self) -> None:
        """Send the averages to the index nodes, for the penalty."""
        averages = self.wheel.averages()
        self._nodes.tell(Averages(self.lead.epoch, averages.picked_per_task, averages.tasks_per_minute))

    async def _turns(self) -> None:
        """Hand out each minute once, in one transaction, before any of its runs starts."""
        while True:
            minute = int(time.time() // 60)
            offset = time.time() - time.monotonic()
            if abs(offset - self._offset) > STEP_S:
                self._offset, self._steps_since = offset, time.monotonic()
            if minute > self.wheel.last_minute:
                async with self._refreshing:
                    before = self.wheel.last_minute
                    turn = self.wheel.advance(minute) if before else self._first(minute)
                    rows = [handed_out(due, self.table[due.task]) for due in turn.runs]
                    last = self.wheel.last_minute
                    if rows and rows[0].minute <= self._known_until:  # the clock passed this minute before
                        known = await self._store.handed(rows[0].minute, last)
                        rows = [row for row in rows if row.name not in known]
                    unstored = await self._store.turn(self.lead.epoch, before, last, rows, turn.missed)
                lost = {each.run for each in self._noted(unstored)}
                rows = [row for row in rows if row.name not in lost]
                self.handed_out += len(rows)
                for missed in turn.missed:
                    self.missed += missed.runs
                    self._log.warning("runs are missed: no scheduler ran", **msgspec.to_builtins(missed))
                self._spawn(self._start_all(rows))
                self.tell_averages()  # for nodes that have come since, too
            await self._look_at_clock()
            await asyncio.sleep(min(1.0, 60 - time.time() % 60 + 0.001))

    @property
    def ahead(self) -> int:
        """Minutes by which the clock is behind the minutes that were handed out: it was ahead before."""
        return self.wheel.minutes_ahead(int(time.time() // 60))

    @property
    def trusts_clock(self) -> bool:
        """Whether the wall clock has agreed with the steady one for long enough."""
        return self.ahead <= 1 and time.monotonic() - self._steps_since >= TRUSTED_S

    async def _look_at_clock(self) -> None:
        """Limit the time in which nothing runs because the clock was ahead."""
        if self.ahead <= 1:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = time.monotonic()
            self._log.warning(
                "the clock was ahead: no task runs until it has caught up, or until muster fleet heal",
                minutes=self.ahead,
                at_most_s=self.fleet.clock_wait_s,
            )
        if self._ahead_since is not None and time.monotonic() - self._ahead_since >= self.fleet.clock_wait_s:
            await self.heal()

    async def heal(self) -> int:
        """Follow the clock again; returns the minutes by which it was ahead. Runs handed out meanwhile are not handed
        out again."""
        async with self._refreshing:
            before, minute = self.wheel.last_minute, int(time.time() // 60)
            if minute >= before:
                return 0
            await self._store.heal(self.lead.epoch, before, minute)
            self._known_until = max(self._known_until, before)
            self.wheel = Wheel(minute, self._running())
        self._ahead_since = None
        self._log.warning("tasks follow the clock again, which was ahead", minutes=before - minute)
        await self.refresh()
        return before - minute

    def _first(self, minute: int) -> Turn:
        """The first turn ever: tasks begin with the next minute."""
        self.wheel = Wheel(minute)
        self.wheel.refresh(self._running())
        return Turn([], [])

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def instant(self, question: RunNow) -> tuple[RunName, Queue]:
        """Begin an instant run. Raises `CallError`."""
        try:
            parse(question.selector)
        except SelectorError as error:
            raise CallError("selector", str(error)) from None
        if not 1 <= question.pick <= PICK_MAX:
            raise CallError("pick", f"invalid pick {question.pick} (expected 1 to {PICK_MAX} clients)")
        if self.watching.full:
            raise CallError("busy", f"too many watched runs (limit {WATCHED_MAX})")
        if why := unfit(question.kind, question.target, question.selector):
            raise CallError("run", why)
        row = RunRow(
            task=f"run-{secrets.token_hex(6)}",
            minute=INSTANT,
            kind=question.kind,
            target=question.target,
            selector=question.selector,
            options=question.options,
            wanted=question.pick,
        )
        try:
            self.dispatcher.order(row.name, row.kind, row.target, row.options)
        except SchemaError as error:
            raise CallError("order", str(error)) from None
        queue = self.watching.open(row.name)
        self._spawn(self._start(row, 0.0))
        return row.name, queue

    async def _start_all(self, rows: Sequence[RunRow]) -> None:
        """Start the runs of a turn, in the order of their classes; a run with a slip starts separately."""
        for row in rows:
            wait_s = row.minute * 60 + row.delay_ms / 1000 - time.time()
            if wait_s > 0:
                self._spawn(self._start(row, wait_s))
            else:
                await self._draw(row)

    async def _start(self, row: RunRow, wait_s: float) -> None:
        await asyncio.sleep(max(0.0, wait_s))
        await self._draw(row)

    async def _draw(self, row: RunRow) -> None:
        """Pick the clients of a run; the steps after it need no order."""
        try:
            order = self.dispatcher.order(row.name, row.kind, row.target, row.options)
            self.runs.check(row.name, row.wanted)
            picked = await self._nodes.pick(self._pick(row, row.wanted, secrets.randbits(64)))
        except (CallError, RunsError, SchemaError, SelectorError) as error:
            self._spawn(self._miss(row, str(error)))
            return
        self._spawn(self._ask(row, order, picked))

    async def _ask(self, row: RunRow, order: bytes, picked: Picked) -> None:
        """Store which clients are asked, and only then ask them."""
        begun = msgspec.structs.replace(
            row,
            state="running",
            started_ms=now_ms(),
            draws=[picked.draw],
            asked=[picked.clients],
            marks=[picked.marks],
        )
        if why := await self._put(begun):
            self._nodes.tell(Release(self.lead.epoch, _text(row.name)))
            await self._miss(row, f"the database cannot hold this run: {why}")
            return
        self._rows[row.name], self._tallies[row.name] = begun, _Tally(begun.mark_of)
        names, text = [client for client, _ in picked.clients], _text(row.name)
        self.watching.say(row.name, Event("asked", text, names, wanted=row.wanted, members=picked.draw.members))
        self.dispatcher.begin(_now(), row.name, order, picked.clients, row.wanted)

    async def _miss(self, row: RunRow, reason: str) -> None:
        missed = msgspec.structs.replace(row, state="missed", started_ms=now_ms(), reason=reason)
        self.missed += 1
        self._log.warning("a run is missed", run=_text(row.name), cause=reason)
        await self._end(missed, Rolled(row.name, [], self.outbox is not None))
        self.watching.say(row.name, Event("ended", _text(row.name), wanted=row.wanted, error=reason))
        self.watching.over(row.name)

    async def _take_up(self, row: RunRow) -> None:
        """A run of the previous lead: begin it, or ask again for what is missing."""
        self.taken_up += 1
        if row.reason:  # unreadable, but it must not stop other runs
            await self._miss(row, row.reason)
            return
        if row.state == "due":
            if row.minute == INSTANT or row.minute < int(time.time() // 60) - 1:
                await self._miss(row, "its scheduler died before the run began")
                return
            await self._start(row, row.minute * 60 + row.delay_ms / 1000 - time.time())
            return
        results = await self._store.results_of(row.name)
        replaced = row.replaced
        gone = set(replaced or ())
        asked = [each for draw in row.asked for each in draw if each[0] not in gone]
        self._rows[row.name], self._tallies[row.name] = row, _Tally(row.mark_of, results)
        try:
            order = self.dispatcher.order(row.name, row.kind, row.target, row.options)
            self.dispatcher.begin(
                _now(), row.name, order, asked, row.wanted, replaced=replaced, done=[each.client for each in results]
            )
        except (RunsError, SchemaError) as error:
            await self._miss(row, str(error))

    async def _replace(self, wanted: Replacement) -> None:
        row = self._rows[wanted.run]
        seed = (row.draws[0].seed + SEED_STEP) % (1 << 64)
        try:
            picked = await self._nodes.pick(self._pick(row, len(wanted.silent), seed, wanted.asked))
            found, draws, marks = picked.clients, [*row.draws, picked.draw], picked.marks
        except CallError as error:
            self._log.warning("silent clients are not replaced", run=_text(wanted.run), cause=str(error))
            found, draws, marks = [], row.draws, []
        silent = wanted.silent[: len(found)]
        begun = msgspec.structs.replace(
            row, draws=draws, asked=[*row.asked, found], marks=[*row.marks, marks], replaced=silent
        )
        if await self._put(begun):
            found, silent = [], []  # no client may be asked that the database does not know
        else:
            self._rows[wanted.run] = begun
            self._tallies[wanted.run].marks |= begun.mark_of
        self.watching.say(wanted.run, Event("replaced", _text(wanted.run), silent))
        if found:
            self.watching.say(wanted.run, Event("asked", _text(wanted.run), [client for client, _ in found]))
        self.dispatcher.replaced(_now(), wanted.run, found)

    def _pick(self, row: RunRow, wanted: int, seed: int, without: Sequence[str] = ()) -> PickOne:
        hold = self.fleet.receipt_ms + self.fleet.result_ms + 5_000
        return PickOne(self.lead.epoch, _text(row.name), row.selector, wanted, seed, hold, list(without))

    def _heard(self, topic: str, payload: bytes) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self.overflowed += 1
            return
        self.dispatcher.receive(_now(), topic, payload)

    def _answered(self, answer: Answer) -> None:
        result = answer.result
        value = bytes(result.value)
        value = value if len(value) <= VALUE_BYTES_MAX else b"null"
        error = result.error[:1_000]
        tally = self._tallies[answer.run]
        mark, ms = tally.marks.get(answer.client, ""), measured(value)
        row = ResultRow(*answer.run, answer.client, result.ok, value, error, now_ms(), mark, ms)
        tally.samples.append(Sample(mark, result.ok, ms))
        self._answers.append(row)
        self._some.set()
        if self.watching.anyone(answer.run):
            event = Event("result", _text(answer.run), client=row.client, ok=row.ok, value=value, error=error)
            self.watching.say(answer.run, event)

    def _ended(self, ended: RunEnd) -> None:
        row, tally = self._rows.pop(ended.run), self._tallies.pop(ended.run)
        self._nodes.tell(Release(self.lead.epoch, _text(ended.run)))
        over = msgspec.structs.replace(row, state="done", done=len(ended.done), missed=len(ended.missed))
        absent = [tally.marks.get(client, "") for client in ended.missed]
        minutes = [] if row.minute == INSTANT else rolled(over, tally.samples, absent)
        self._spawn(self._finish(over, ended, Rolled(ended.run, minutes, self.outbox is not None)))

    async def _finish(self, row: RunRow, ended: RunEnd, end: Rolled) -> None:
        """Watchers are told of the end once it is written, with all results."""
        await self._end(row, end)
        over = Event(
            "ended",
            _text(ended.run),
            wanted=ended.wanted,
            done=ended.done,
            replaced=ended.replaced,
            missed=ended.missed,
        )
        self.watching.say(ended.run, over)
        self.watching.over(ended.run)

    async def _end(self, row: RunRow, end: Rolled) -> None:
        """Write the end of a run, with what follows from it."""
        self._ends.append(end)
        await self._put(row)
        if self.outbox is not None:
            self.outbox.wake()

    async def _put(self, row: RunRow) -> str:
        """Write a run; returns once it is written, with the reason if the store cannot hold it."""
        self._puts[row.name] = row
        await self.settled()
        return self._lost.pop(row.name, "")

    def _noted(self, unstored: Sequence[Unstored] | None) -> list[Unstored]:
        """Count and log what the store could not hold."""
        for each in unstored or ():
            self.unstored += 1
            self._log.error(
                "the database cannot hold a row", run=_text(each.run), client=each.client, cause=each.reason
            )
        return list(unstored or ())

    async def settled(self) -> None:
        """Return once everything received so far is written."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.append(written)
        self._some.set()
        await written

    async def _write(self) -> None:
        """Write what arrives within a short time together."""
        took = 0.0
        while True:
            await self._some.wait()
            await asyncio.sleep(min(WRITE_S_MAX, max(WRITE_S, took)))
            began = time.monotonic()
            await self._flush()
            took = time.monotonic() - began

    async def _flush(self) -> None:
        self._some.clear()
        answers, self._answers = self._answers, []
        puts, self._puts = self._puts, {}
        written, self._written = self._written, []
        ends, self._ends = self._ends, []
        try:
            if answers or puts:
                unstored = self._noted(await self._store.write(self.lead.epoch, list(puts.values()), answers, ends))
                self._lost |= {each.run: each.reason for each in unstored if not each.client}
                if stand_ins := [_stand_in(each) for each in unstored if each.client]:
                    await self._store.write(self.lead.epoch, [], stand_ins)
        except BaseException:
            self._written += written
            raise
        for each in written:
            if not each.done():
                each.set_result(None)


class Scheduler:
    """The `plane.service.Service` of a scheduler."""

    take_trust: Final = None

    def __init__(
        self, spec: Spec, settings: FleetSettings, context: Context, user: str, opened: Callable[[], Store]
    ) -> None:
        """`opened` makes the store, in a thread: importing its library takes a second. Raises `SpecError`."""
        assert spec.bind is not None
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._bind, self._settings, self._opened = spec.bind, settings, opened
        self._made: Store | None = None
        self._log = context.log
        # Identifies the same node of the same installation, of which one process runs at a time.
        self._place = f"{spec.instance}/{spec.node}/{socket.gethostname()}:{settings.folder}"[:200]
        self._holder = f"{self._place}#{os.getpid()}.{start_time(os.getpid())}"
        self._in_file = settings.database.startswith("sqlite")
        self._user, self._password, self._node = user, password(settings.password_file), spec.node
        self._name = f"muster-{ROLE}-{spec.node}" if settings.user else ""
        key = key_of(secret(spec.cluster_secret_file, 32))
        self._nodes = IndexNodes(running(context.snapshot), key, context.log)
        serve: dict[type[msgspec.Struct], Any] = {
            Ping: self._ping,
            RunNow: self._run_now,
            Watch: self._watch,
            Refresh: self._refresh,
            PutTask: self._put_task,
            DropTask: self._drop_task,
            Tasks: self._tasks,
            Hour: self._hour,
            Heal: self._heal,
            Explain: self._explain,
            ResultsOf: self._results_of,
            ResultsIn: self._results_in,
            MinutesOf: self._minutes_of,
            PastRuns: self._past_runs,
        }
        self._server = Server(key, serve)
        self._way: Way | None = None
        if settings.fleet.results_topic and (path := ways.outlet()):
            self._way = ways.made(path, spec, context, settings.folder)
        self._leading: Leading | None = None
        self._leads = 0
        self._trouble = ""

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set."""
        await self._server.start(*self._bind)
        await self._nodes.start()
        work = asyncio.create_task(self._contend())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            leading = self._leading
            for task in (work, stopped):
                task.cancel()
            await asyncio.wait([work, stopped])
            if leading is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.5, drain_s)):
                        await leading.end()
            await self._server.stop()
            await self._nodes.stop()
            if self._made is not None:
                await self._made.close()
            if self._way is not None:
                await self._way.close()
            self.closed = True
        if not work.cancelled():
            work.result()

    async def _contend(self) -> None:
        """Lead whenever no other scheduler does."""
        store = self._made = await asyncio.to_thread(self._opened)
        seen: Lead | None = None
        since = time.monotonic()
        while True:
            try:
                lead = await store.lead()
                if lead != seen:
                    seen, since = lead, time.monotonic()
                self._is_ready()
                mine = lead is None or lead.holder.partition("#")[0] in {"", self._place}
                if mine or time.monotonic() - since >= TAKE_S:
                    taken = await self._claim(store, lead)
                    if taken is not None:
                        await self._lead(taken, store)
                    seen, since = None, time.monotonic()
            except StoreError as error:
                self._is_troubled(error)
            await asyncio.sleep(LOOK_S)

    async def _claim(self, store: Store, lead: Lead | None) -> Lead | None:
        """Take over. A stalled lead that holds the lock of the database's file is killed: otherwise no process could
        write."""
        try:
            async with asyncio.timeout(TAKE_CALL_S):
                return await store.claim(lead, self._holder)
        except (StoreError, TimeoutError) as error:
            life = (lead.holder if lead is not None and self._in_file else "").rpartition("#")[2]
            pid, _, started = life.partition(".")
            if pid.isdigit() and int(pid) != os.getpid() and str(start_time(int(pid))) == started:
                self._log.warning("killing the leading scheduler, which has stalled", pid=int(pid), cause=str(error))
                os.kill(int(pid), signal.SIGKILL)
            raise StoreError(str(error) or "the database did not answer in time") from None

    async def _lead(self, lead: Lead, store: Store) -> None:
        self._leads += 1
        self._log.info("leads", epoch=lead.epoch, last_minute=lead.last_minute)
        leading = Leading(lead, store, self._nodes, self._settings, self._link, self._log, self._way)
        try:
            await leading.work(lambda: setattr(self, "_leading", leading))
        except Fenced:
            self._log.warning("another scheduler leads", epoch=lead.epoch)
        finally:
            self._leading = None

    def _link(self, heard: Callable[[str, bytes], None]) -> Link:
        settings = self._settings

        def answered(topic: str, payload: bytes) -> None:
            """A stored result may be one that a watcher waits for; it is sent once."""
            heard(topic, payload)
            link.clear(topic)

        link = Link(
            settings.brokers,
            self._user,
            self._password,
            schema.ANSWERS,
            heard,
            name=self._name,
            tls=settings.tls,
            first=self._node,
            on_retained=answered,
        )
        return link

    def _is_ready(self) -> None:
        self._trouble = ""
        if not self.ready:
            self.ready = True
            self.on_ready(True)

    def _is_troubled(self, error: StoreError) -> None:
        if str(error) != self._trouble:
            self._log.warning("the store does not answer; no run is handed out", cause=str(error))
        self._trouble = str(error)
        if self.ready:
            self.ready = False
            self.on_ready(False)

    # --- requests -----------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        """The open store. Raises `CallError` before it is loaded."""
        if self._made is None:
            raise CallError("store", "the store is not open yet")
        return self._made

    def _lead_or_refuse(self) -> Leading:
        if self._leading is None:
            raise CallError("follows", self._trouble or "another scheduler leads")
        return self._leading

    async def _ping(self, _: Ping) -> Pong:
        return Pong(self._lead_or_refuse()._nodes.online)

    def _run_now(self, question: RunNow) -> AsyncIterator[Event]:
        async def events() -> AsyncIterator[Event]:
            leading = self._lead_or_refuse()
            run, queue = await leading.instant(question)
            try:
                while (event := await queue.get()) is not None:
                    yield event
                    if event.what == "ended" or not question.wait:
                        return
            finally:
                leading.watching.close(run, queue)
            raise CallError("moved", f"another scheduler continues {_text(run)}; see muster fleet explain {run[0]}")

        return events()

    def _watch(self, question: Watch) -> AsyncIterator[Event]:
        async def events() -> AsyncIterator[Event]:
            leading, told = self._lead_or_refuse(), SeenEvents()
            run = (await self._run_of(question.run)).name
            if leading.watching.full:
                raise CallError("busy", f"too many watched runs (limit {WATCHED_MAX})")
            queue = leading.watching.open(run)
            try:
                with _told():
                    await leading.settled()
                for past in await self._past(run):
                    if (new := told.new(past)) is not None:
                        yield new
                while not told.over and (event := await queue.get()) is not None:
                    if (new := told.new(event)) is not None:
                        yield new
            finally:
                leading.watching.close(run, queue)
            if not told.over:
                raise CallError("moved", f"another scheduler continues {_text(run)}")

        return events()

    async def _past(self, run: RunName) -> list[Event]:
        """The stored part of a run, as events."""
        with _told():
            row, rows = await self._store.run(*run), await self._store.results_of(run)
        if row is None or row.state == "due":
            return []
        name = _text(run)
        past = [
            Event("asked", name, [client for client, _ in asked], wanted=row.wanted, members=draw.members)
            for draw, asked in zip(row.draws, row.asked, strict=False)
        ]
        past.append(Event("replaced", name, row.replaced or []))
        past += [
            Event("result", name, client=each.client, ok=each.ok, value=each.value, error=each.error) for each in rows
        ]
        if row.state not in OPEN:
            done, replaced, missed = outcomes(row, rows)
            past.append(
                Event("ended", name, wanted=row.wanted, done=done, replaced=replaced, missed=missed, error=row.reason)
            )
        return past

    async def _refresh(self, _: Refresh) -> Refreshed:
        with _told():
            return await self._lead_or_refuse().refresh()

    async def _put_task(self, question: PutTask) -> TaskRow:
        leading, task = self._lead_or_refuse(), question.task
        check(task)
        known = leading.table.get(task.name)
        since = known.since_minute if known is not None and not question.new else int(time.time() // 60) + 1
        task = msgspec.structs.replace(task, since_minute=since)
        with _told():
            if not await self._store.put_task(task, question.new):
                raise CallError("exists", f"task {task.name} exists already")
            await leading.refresh()
        return task

    async def _drop_task(self, question: DropTask) -> bool:
        leading = self._lead_or_refuse()
        with _told():
            there = await self._store.drop_task(question.name)
            await leading.refresh()
        return there

    async def _tasks(self, _: Tasks) -> list[TaskRow]:
        self._lead_or_refuse()
        with _told():
            rows = await self._store.tasks()
        refused = self._lead_or_refuse()._judged(rows)
        return [msgspec.structs.replace(row, refused=refused.get(row.name, "")) for row in rows]

    async def _heal(self, _: Heal) -> Healed:
        with _told():
            return Healed(await self._lead_or_refuse().heal())

    async def _hour(self, _: Hour) -> WheelShown:
        leading = self._lead_or_refuse()
        wheel = leading.wheel
        last, averages = wheel.last_minute, wheel.averages()
        with _told():
            sent = await self._store.sent(last - 59, last)
            missed = await self._store.missed(last - 59, last)
        slots = [
            Slot(
                minute,
                wheel.samples(minute),
                sent.get(minute, 0),
                {},
                sum(each.first <= minute <= each.last for each in missed),
            )
            for minute in range(last - 59, last + 1)
        ]
        for minute, by_class in wheel.hour():
            tasks = {customer.name.lower(): names for customer, names in by_class.items()}
            slots.append(Slot(minute, wheel.samples(minute), 0, tasks))
        return WheelShown(last, slots, averages.picked_per_task, averages.tasks_per_minute)

    async def _run_of(self, name: str) -> RunRow:
        """A run by its name, or a task's last run. Raises `CallError`."""
        task, at, minute = name.rpartition("@")
        row = None
        with _told():
            if not at and NAME.fullmatch(name):
                row = await self._store.run(name, None)
            elif NAME.fullmatch(task) and MINUTE.fullmatch(minute):
                row = await self._store.run(task, int(minute))
        if row is None:
            raise CallError("unknown", f"there is no run {name[:100]}")
        return row

    async def _past_runs(self, question: PastRuns) -> RunPage:
        place = PLACE.fullmatch(question.after)
        if question.after and place is None:
            raise CallError("run", f"invalid after {question.after[:100]!r} (expected the `next` of a page)")
        after = None if place is None else (int(place[1]), place[2], int(place[3]))
        limit = max(1, min(question.limit, HISTORY_MAX))
        with _told():
            found = await self._store.runs(limit + 1, after)
        page = found[:limit]
        following = page[-1][0] if len(found) > limit else None
        return RunPage(
            [brief for _, brief in page],
            "" if following is None else "{}-{}@{}".format(*following),
        )

    async def _results_of(self, question: ResultsOf) -> list[ResultRow]:
        row = await self._run_of(question.run)
        with _told():
            return await self._store.results_of(row.name)

    async def _results_in(self, question: ResultsIn) -> ResultsPage:
        limit = _page(question)
        with _told():
            rows = await self._store.results_in(question.task, question.first, question.last, limit + 1, question.after)
        return ResultsPage(rows[:limit], len(rows) > limit)

    async def _minutes_of(self, question: MinutesOf) -> MinutesPage:
        limit = _page(question)
        if question.mark is not None and "\0" in question.mark:
            raise CallError("task", "mark: the character NUL is not allowed")
        with _told():
            rows = await self._store.minutes_of(
                question.task, question.first, question.last, question.mark, limit + 1, question.after
            )
        return MinutesPage(rows[:limit], len(rows) > limit)

    async def _explain(self, question: Explain) -> Explained:
        try:
            row = await self._run_of(question.run)
        except CallError as error:
            return await self._explain_none(question.run, error)
        with _told():
            results = await self._store.results_of(row.name)
        done, replaced, missed = outcomes(row, results)
        asked = [[client for client, _ in draw] for draw in row.asked]
        kept = [draw for draw in row.draws if draw.replay]
        replayed = all(replay.again(draw.replay, draw.seed) for draw in kept) if kept else None
        draws = [msgspec.structs.replace(draw, replay=b"") for draw in row.draws]
        return Explained(
            _text(row.name),
            row.kind,
            row.target,
            row.selector,
            row.state,
            row.wanted,
            row.started_ms,
            draws,
            asked,
            done,
            replaced,
            missed,
            replayed,
            row.reason,
        )

    async def _explain_none(self, name: str, unknown: CallError) -> Explained:
        """Why a task has no run in a minute: it was missed, was not due, or is not due yet. Raises `CallError`."""
        name, _, text = name.rpartition("@")
        if not (NAME.fullmatch(name) and MINUTE.fullmatch(text)):
            raise unknown
        minute = int(text)
        with _told():
            missed = [each for each in await self._store.missed(minute, minute) if each.task == name]
        leading = self._leading
        row = None if leading is None else leading.table.get(name)
        if missed:
            kind, target, selector = ("", "", "") if row is None else (row.kind, row.target, row.selector)
            first, last = missed[0].first, missed[0].last
            why = f"no scheduler ran in the minutes {first} to {last}, so {missed[0].runs} runs of this task are missed"
            return Explained(
                _text((name, minute)),
                kind,
                target,
                selector,
                "missed",
                0,
                minute * 60_000,
                [],
                [],
                [],
                [],
                [],
                None,
                why,
            )
        if leading is None or row is None:
            raise unknown
        if name in leading.refused:
            raise CallError("unknown", f"task {name} cannot be scheduled: {leading.refused[name]}")
        if row.paused:
            raise CallError("unknown", f"task {name} is paused, and had no run in minute {minute}")
        if minute > leading.wheel.last_minute:
            raise CallError(
                "unknown", f"minute {minute} has not been handed out yet; the last one is {leading.wheel.last_minute}"
            )
        if not due(scheduled(row), minute):
            raise CallError("unknown", f"no run of task {name} was due in minute {minute}")
        raise CallError("unknown", f"task {name} had no run in minute {minute}: it was paused, or was created later")

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state for `muster status`."""
        leading = self._leading
        said: dict[str, Any] = {
            "state": "draining" if self.draining else "ready" if self.ready else "not ready",
            "leads": leading is not None,
            "index_nodes": list(self._nodes.alive),
            "store": self._trouble or "answers",
        }
        if leading is not None and leading.outbox is not None:
            said["results"] = leading.outbox.error or "go out"
        if leading is not None:
            said |= {
                "lead_epoch": leading.lead.epoch,
                "broker": "connected" if leading.link.connected else "away",
                "tasks": len(leading.table),
                "tasks_refused": len(leading.refused),
                "refused": dict(list(leading.refused.items())[:REFUSED_SHOWN]),
                "in_flight": leading.runs.in_flight,
                "last_minute": leading.wheel.last_minute,
                "clock_ahead_minutes": leading.ahead,
            }
        return said

    def counters(self) -> list[Figure]:
        """Counters since it leads."""
        leading = self._leading
        counts = {} if leading is None else {str(each): count for each, count in leading.runs.counts.items()}
        handed = (0, 0, 0) if leading is None else (leading.handed_out, leading.missed, leading.taken_up)
        dropped = {} if leading is None else {**leading.dispatcher.dropped, "overflow": leading.overflowed}
        out = None if leading is None else leading.outbox
        outcomes = [
            (f'fleet_outcomes{{outcome="{each}"}}', "Clients asked, by outcome", counts.get(each, 0))
            for each in ("done", "replaced", "missed")
        ]
        return [
            ("fleet_runs_handed_out", "Runs of tasks that were due", handed[0]),
            ("fleet_runs_missed", "Runs for which no client was asked", handed[1]),
            ("fleet_runs_taken_up", "Open runs continued from a previous lead", handed[2]),
            ("fleet_orders_sent", "Orders to clients", 0 if leading is None else leading.link.sent),
            (
                "fleet_orders_lost",
                "Orders lost while the broker did not answer",
                0 if leading is None else leading.link.lost,
            ),
            (
                "fleet_rows_unstored",
                "Runs and results that the database could not hold",
                0 if leading is None else leading.unstored,
            ),
            ("fleet_answers_received", "Receipts and results", 0 if leading is None else leading.link.received),
            ("fleet_results_out", "Messages with results that their topic has taken", 0 if out is None else out.sent),
            *outcomes,
            *(
                (
                    f'fleet_answers_dropped{{reason="{reason}"}}',
                    "Answers of clients that changed nothing",
                    dropped.get(reason, 0),
                )
                for reason in ("flood", "topic", "size", "form", "epoch", "double", "late", "stranger", "overflow")
            ),
        ]

    def gauges(self) -> list[Figure]:
        """The present gauges."""
        leading = self._leading
        out = None if leading is None else leading.outbox
        return [
            (
                "fleet_results_waiting",
                "Ended runs whose results wait for their topic",
                0 if out is None else out.waiting,
            ),
            (
                "fleet_results_stuck",
                "1 while the topic of results takes none",
                0.0 if out is None else float(bool(out.error)),
            ),
            ("fleet_leads", "1 while it leads", float(leading is not None)),
            ("fleet_index_nodes", "Index nodes that answer", len(self._nodes.alive)),
            ("fleet_runs_in_flight", "Runs in flight", 0 if leading is None else leading.runs.in_flight),
            (
                "fleet_clock_ahead_minutes",
                "Minutes for which no task runs because the clock was ahead",
                0 if leading is None else leading.ahead,
            ),
            ("fleet_tasks", "Continuous tasks", 0 if leading is None else len(leading.table)),
            (
                "fleet_tasks_refused",
                "Rows of the table of tasks that cannot be scheduled",
                0 if leading is None else len(leading.refused),
            ),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """The address for callers."""
        return [self._bind]

    def take(self, settings: FleetSettings) -> None:
        """Does nothing: no setting can change while it runs."""


@contextlib.contextmanager
def _told() -> Any:
    """Convert a store's errors for the caller."""
    try:
        yield
    except StoreError as error:
        raise CallError("store", str(error)) from None


def outcomes(row: RunRow, results: Sequence[ResultRow]) -> tuple[list[str], list[str], list[str]]:
    """Clients that are done, replaced and missed; while the run continues, none is missed yet."""
    done, replaced = [each.client for each in results], row.replaced or []
    over = {*done, *replaced}
    missed = [client for draw in row.asked for client, _ in draw if client not in over] if row.state == "done" else []
    return done, replaced, missed


def _stand_in(unstored: Unstored) -> ResultRow:
    """A substitute for a result that the store cannot hold: the client did answer."""
    why = f"the database cannot hold this result: {unstored.reason}"
    return ResultRow(*unstored.run, unstored.client, False, b"null", why, now_ms())


def _page(question: ResultsIn | MinutesOf) -> int:
    """The number of rows of a page. Raises `CallError` for a question that no database takes."""
    if not NAME.fullmatch(question.task):
        raise CallError("task", f"invalid name of a task {question.task[:80]!r}")
    minute, name = question.after or (0, "")
    if not all(0 <= each < 1 << 53 for each in (minute, question.first, question.last)) or "\0" in name:
        raise CallError("task", "invalid minutes or after (expected minutes since 1970, and the end of a page)")
    return max(1, min(question.limit, PAGE_MAX))


def check(task: TaskRow) -> None:
    """Check a task. Raises `CallError` if it cannot be scheduled."""
    if not NAME.fullmatch(task.name):
        raise CallError(
            "task", f"invalid name of a task {task.name[:80]!r} (expected 1 to 64 letters, digits, '_' and '-')"
        )
    if task.refused:
        raise CallError("task", task.refused)
    if why := unfit(task.kind, task.target, task.selector):
        raise CallError("task", f"task {task.name}: {why}")
    if not 0 <= task.since_minute < 1 << 53:
        raise CallError(
            "task", f"task {task.name}: invalid since_minute {task.since_minute} (expected minutes since 1970)"
        )
    try:
        parse(task.selector)
        Wheel(0, [scheduled(task)])
        msgspec.msgpack.encode(task.options)  # encode as runs are stored
        schema.written(schema.Order(schema.run_name(task.name, 0), task.kind, task.target, 0, 0, task.options))
    except (SelectorError, TaskError, SchemaError) as error:
        raise CallError("task", str(error)) from None
    except OverflowError:
        raise CallError("task", f"task {task.name}: options: a number does not fit into 64 bits") from None


def _text(run: RunName) -> str:
    return schema.run_name(*run)


def _now() -> int:
    return int(time.monotonic() * 1000)

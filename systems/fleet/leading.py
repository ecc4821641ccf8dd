"""The work of the leading scheduler of a fleet: hands out due runs, asks clients over MQTT, counts and stores results.

Connects the wheel, runs and the store to the broker and the index nodes. It must not know how clients are picked, who
leads, nor what callers ask: that is `scheduler.py`. Each write about runs carries the lead's epoch, so that a lead that
had only stalled can write, and pick, nothing more.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from muster.clock import now_ms
from muster_server.plane.calls import CallError
from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.plane.ways import Way
from muster_server.systems.fleet import schema
from muster_server.systems.fleet.dispatcher import SEED_STEP, Answer, Dispatcher
from muster_server.systems.fleet.index_nodes import IndexNodes
from muster_server.systems.fleet.mqtt import Link, LinkError
from muster_server.systems.fleet.options import FleetSettings
from muster_server.systems.fleet.outbox import Outbox
from muster_server.systems.fleet.questions import (
    Averages,
    Event,
    Picked,
    PickOne,
    Refreshed,
    Release,
    RunNow,
    TaskRow,
)
from muster_server.systems.fleet.records import (
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
from muster_server.systems.fleet.watching import WATCHED_MAX, Queue, Watching
from muster_server.systems.fleet.wheel import PICK_MAX, TASKS_MAX, Task, TaskError, Turn, Wheel

BEAT_S: Final = 1.0
TICK_S: Final = 0.1
WRITE_S: Final = 0.02
"""Results that arrive within this many seconds are written together."""
WRITE_S_MAX: Final = 0.1
"""The pause before a write is as long as the last one took, up to this many seconds: under load writes are fewer and
larger."""
PRUNE_S: Final = 600.0
TRUSTED_S: Final = 3_600.0
"""A clock without a step of `STEP_S` for this many seconds is reliable enough to delete by age."""
ANSWERS_MAX: Final = 200_000
"""Limit of results that wait for the store; further ones are dropped, and their clients are missed: 20 s of the largest
load."""
INSTANT: Final = 0
"""The minute of an instant run."""
STEP_S: Final = 60.0
REFUSED_SHOWN: Final = 20
"""Limit of refused tasks in one line of the log, and in the status."""


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
            for each in self.dispatcher.tick(now()):
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
            self._nodes.tell(Release(self.lead.epoch, run_text(row.name)))
            await self._miss(row, f"the database cannot hold this run: {why}")
            return
        self._rows[row.name], self._tallies[row.name] = begun, _Tally(begun.mark_of)
        names, text = [client for client, _ in picked.clients], run_text(row.name)
        self.watching.say(row.name, Event("asked", text, names, wanted=row.wanted, members=picked.draw.members))
        self.dispatcher.begin(now(), row.name, order, picked.clients, row.wanted)

    async def _miss(self, row: RunRow, reason: str) -> None:
        missed = msgspec.structs.replace(row, state="missed", started_ms=now_ms(), reason=reason)
        self.missed += 1
        self._log.warning("a run is missed", run=run_text(row.name), cause=reason)
        await self._end(missed, Rolled(row.name, [], self.outbox is not None))
        self.watching.say(row.name, Event("ended", run_text(row.name), wanted=row.wanted, error=reason))
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
                now(), row.name, order, asked, row.wanted, replaced=replaced, done=[each.client for each in results]
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
            self._log.warning("silent clients are not replaced", run=run_text(wanted.run), cause=str(error))
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
        self.watching.say(wanted.run, Event("replaced", run_text(wanted.run), silent))
        if found:
            self.watching.say(wanted.run, Event("asked", run_text(wanted.run), [client for client, _ in found]))
        self.dispatcher.replaced(now(), wanted.run, found)

    def _pick(self, row: RunRow, wanted: int, seed: int, without: Sequence[str] = ()) -> PickOne:
        hold = self.fleet.receipt_ms + self.fleet.result_ms + 5_000
        return PickOne(self.lead.epoch, run_text(row.name), row.selector, wanted, seed, hold, list(without))

    def _heard(self, topic: str, payload: bytes) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self.overflowed += 1
            return
        self.dispatcher.receive(now(), topic, payload)

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
            event = Event("result", run_text(answer.run), client=row.client, ok=row.ok, value=value, error=error)
            self.watching.say(answer.run, event)

    def _ended(self, ended: RunEnd) -> None:
        row, tally = self._rows.pop(ended.run), self._tallies.pop(ended.run)
        self._nodes.tell(Release(self.lead.epoch, run_text(ended.run)))
        over = msgspec.structs.replace(row, state="done", done=len(ended.done), missed=len(ended.missed))
        absent = [tally.marks.get(client, "") for client in ended.missed]
        minutes = [] if row.minute == INSTANT else rolled(over, tally.samples, absent)
        self._spawn(self._finish(over, ended, Rolled(ended.run, minutes, self.outbox is not None)))

    async def _finish(self, row: RunRow, ended: RunEnd, end: Rolled) -> None:
        """Watchers are told of the end once it is written, with all results."""
        await self._end(row, end)
        over = Event(
            "ended",
            run_text(ended.run),
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
                "the database cannot hold a row", run=run_text(each.run), client=each.client, cause=each.reason
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


def _stand_in(unstored: Unstored) -> ResultRow:
    """A substitute for a result that the store cannot hold: the client did answer."""
    why = f"the database cannot hold this result: {unstored.reason}"
    return ResultRow(*unstored.run, unstored.client, False, b"null", why, now_ms())


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


def run_text(run: RunName) -> str:
    return schema.run_name(*run)


def now() -> int:
    return int(time.monotonic() * 1000)

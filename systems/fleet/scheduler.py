"""The scheduler of a fleet: who leads, and the answers to callers. `leading.py` is what the leading one does.

It must not know a database. One of several schedulers leads: the store names it, and the lead's beat changes there. A
scheduler that sees the beat unchanged for `TAKE_S`, by its own steady clock, takes over and continues all open runs.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from muster.instance import start_time
from muster_server.plane import ways
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, password, secret
from muster_server.plane.ways import Way
from muster_server.systems.fleet import replay, schema
from muster_server.systems.fleet.index_nodes import IndexNodes, running
from muster_server.systems.fleet.leading import REFUSED_SHOWN, Leading, check, run_text
from muster_server.systems.fleet.mqtt import Link
from muster_server.systems.fleet.options import FleetSettings
from muster_server.systems.fleet.questions import (
    RUN_PLACE,
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
    Ping,
    Pong,
    PutTask,
    Refresh,
    Refreshed,
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
    Lead,
    ResultRow,
    RunRow,
    Store,
    scheduled,
)
from muster_server.systems.fleet.runs import RunName
from muster_server.systems.fleet.schema import NAME
from muster_server.systems.fleet.watching import WATCHED_MAX, SeenEvents
from muster_server.systems.fleet.wheel import due

ROLE: Final = "scheduler"
LOOK_S: Final = 0.5
TAKE_S: Final = 3.0
TAKE_CALL_S: Final = 1.5
MINUTE: Final = re.compile(r"[0-9]{1,18}")
PLACE: Final = re.compile(RUN_PLACE)
HISTORY_MAX: Final = 200
"""Limit of runs in a page of the history, at most 1.3 KiB each in JSON: 256 KiB."""
PAGE_MAX: Final = 1_000
"""Limit of results or roll-ups in an answer: at most 20 MB, as of clients that send all they may."""


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
            raise CallError("moved", f"another scheduler continues {run_text(run)}; see muster fleet explain {run[0]}")

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
                raise CallError("moved", f"another scheduler continues {run_text(run)}")

        return events()

    async def _past(self, run: RunName) -> list[Event]:
        """The stored part of a run, as events."""
        with _told():
            row, rows = await self._store.run(*run), await self._store.results_of(run)
        if row is None or row.state == "due":
            return []
        name = run_text(run)
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
            run_text(row.name),
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
                run_text((name, minute)),
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


def _page(question: ResultsIn | MinutesOf) -> int:
    """The number of rows of a page. Raises `CallError` for a question that no database takes."""
    if not NAME.fullmatch(question.task):
        raise CallError("task", f"invalid name of a task {question.task[:80]!r}")
    minute, name = question.after or (0, "")
    if not all(0 <= each < 1 << 53 for each in (minute, question.first, question.last)) or "\0" in name:
        raise CallError("task", "invalid minutes or after (expected minutes since 1970, and the end of a page)")
    return max(1, min(question.limit, PAGE_MAX))

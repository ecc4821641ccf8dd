"""The center as a process: its schedule in a folder, the questions of other nodes, the streams of workers."""

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from muster.clock import now_ms
from muster_server.control.errors import TRY_LATER, UserError
from muster_server.plane.log import connect
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, password
from muster_server.systems.messages.answers import Answers, LastAnswer
from muster_server.systems.messages.center import NO_FIRES, Center
from muster_server.systems.messages.figures import rows
from muster_server.systems.messages.leases import Busy
from muster_server.systems.messages.listener import Question
from muster_server.systems.messages.logged import LoggedSchedule
from muster_server.systems.messages.options import CenterOptions
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.schedule import (
    AGAIN_S,
    LISTS_MAX,
    EmbeddedSchedule,
    NewChange,
    OnFires,
    Overdue,
    Schedule,
    place,
)
from muster_server.systems.messages.service import LOOK_S, MessagesService, answering
from muster_server.systems.messages.shapes import (
    BACKLOG_MS,
    Fire,
    Found,
    HeldTarget,
    Holds,
    Join,
    Result,
    Results,
    Scrubbed,
    Which,
    has_tag,
)
from muster_server.systems.messages.system import MessagesSettings
from muster_server.systems.messages.topics import FILE as TOPICS
from muster_server.systems.messages.topics import Topic, Topics

LOCK_S: Final = 10.0
"""Seconds to wait for the former process of this node, which may still be ending."""
SWEEP_S: Final = 1.0
FORGET_S: Final = 3_600.0
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
SEGMENT_BYTES: Final = 64 << 20
HELD_TOLD: Final = 100
"""Limit of held targets in a status."""
LISTS_WAITING_MAX: Final = 256
"""Limit of lists that run or wait. One page of the console asks for five."""


class CenterService(MessagesService):
    """The `plane.service.Service` of the center."""

    malformed = (ValueError,)
    """The error for a request whose array has another shape, which compiled code reads."""

    def __init__(self, spec: Spec, settings: MessagesSettings, context: Context) -> None:
        super().__init__(spec, context, settings.folder, Topics(Path(settings.topics)))
        options = msgspec.convert(settings.options, CenterOptions)
        self._options = options
        folder = Path(settings.schedule)
        self._schedule = _schedule(settings, options, self._fires_claimed, context)
        self._folder, self._answers = folder, Answers(folder)
        self._center = Center(
            self._schedule, self.topics, self._answers, context.log, overdue_rate=options.overdue_rate
        )
        self._stats: dict[str, Any] = {}
        self._overdue: Overdue = {}
        self._lists, self._lists_waiting = asyncio.Semaphore(LISTS_MAX), 0
        self._steps = 0
        self._scrubs = self._faults = 0

    def _fires_claimed(self, worker: int, fires: bytes) -> None:
        self._center.on_fires(worker, fires)

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the schedule; waits for the former process of this node, and for a center that owns the schedule in
        Redis."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        until, told = time.monotonic() + LOCK_S, False
        while True:
            try:
                await self._schedule.open()
                break
            except BlockingIOError as error:
                if time.monotonic() > until and not self._options.schedule:
                    raise UserError(
                        f"{error}; another center owns this schedule, and only one may run", TRY_LATER
                    ) from None
                if time.monotonic() > until and not told:
                    told = True
                    self.log.info("waiting for another center to release the schedule")
                await asyncio.sleep(0.1)
            except OSError as error:
                if not self._options.schedule:
                    raise
                raise UserError(str(error), TRY_LATER) from None
        await asyncio.to_thread(self._answers.open)
        self._stats = await self._schedule.stats()

    async def work(self) -> None:
        """Sweep until the schedule fails: then the process ends, and the next one opens it again."""
        failed = asyncio.create_task(self._schedule.failed.wait())
        forgot = 0.0
        try:
            while not self._schedule.failed.is_set():
                await asyncio.wait([failed], timeout=SWEEP_S)
                if self._schedule.failed.is_set():
                    break
                self._center.sweep()
                for step in self._schedule.clock_steps():
                    self._steps += 1
                    self.log.warning("the wall clock was set", by_ms=step)
                with contextlib.suppress(StoreError):  # its failure is reported above
                    self._stats = await self._schedule.stats()
                    self._overdue = await self._schedule.overdue()
                if time.monotonic() - forgot > FORGET_S:
                    forgot = time.monotonic()
                    before = now_ms() - (self._options.dead_days + 1) * DAY_MS
                    await asyncio.to_thread(self._answers.forget, before)
        finally:
            failed.cancel()
        raise UserError(f"the schedule failed: {self._schedule.failure}")

    async def drain(self) -> None:
        """End the streams of workers."""
        await self._center.close()

    async def shut(self) -> None:
        """Close the schedule, which makes a checkpoint."""
        await self._schedule.close()

    def topics_changed(self) -> None:
        """Store a copy beside the messages, and spread credits again."""
        try:
            self.topics.keep_copy(self._folder / TOPICS)
        except OSError as error:
            self.log.warning("cannot store a copy of these topics with the schedule", reason=str(error))
        self._center.topics_changed()

    # --- questions ------------------------------------------------------------------------------------------------

    def questions(self) -> Mapping[str, Question]:
        """The questions of receivers, workers and operators."""
        return {
            "insert": answering(self._insert, msgspec.Raw),
            "change": answering(lambda asked: self._center.change(*asked), tuple[int, list[NewChange]]),
            "get": answering(self._schedule.get, list[int]),
            "list": answering(self._list, Which),
            "answers": answering(self._last_answers, list[int]),
            "figures": answering(self._figures, int),
            "scrub": answering(self._scrub, None),
            "results": answering(self._results, Results),
            "holds": answering(self._holds, Holds),
            "state": answering(self._state, Topic),
            "fires": Question(Join, pieces=self._fires),
            "lease": Question(tuple[int, int, float, float], answer=self._lease, waits=True),
            "end-leases": answering(self._center.end_leases, list[Result]),
            "extend-leases": answering(self._center.extend_leases, list[tuple[int, int, int]]),
        }

    async def _insert(self, messages: msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(await self._center.insert(bytes(messages)))

    async def _list(self, which: Which) -> Found:
        asked = which.topic, which.begin, which.end, which.states, which.limit, which.after
        if self._lists_waiting >= LISTS_WAITING_MAX:
            raise Refusal("busy", f"too many lists are being made (limit {LISTS_WAITING_MAX}); try again")
        self._lists_waiting += 1
        try:
            async with self._lists:
                said = await self._schedule.find(*asked)
                while said[0] == "busy":  # a list whose client has left is still being made
                    await asyncio.sleep(AGAIN_S)
                    said = await self._schedule.find(*asked)
        finally:
            self._lists_waiting -= 1
        _, messages, times, cut = said
        found = await self._schedule.get([message[0] for message, _ in messages])
        if which.tag:
            tagged = [list(each) for each in found if each[0] == "found" and has_tag(each[3], which.tag)]
            last = place(messages[-1][0]) if messages and len(messages) == which.limit else None
            return Found(tagged, len(tagged), [], last is not None, last, len(messages))
        now = now_ms()
        places = [bisect_left(times, now + bound) for bound in BACKLOG_MS]
        backlog = [end - begin for begin, end in zip([0, *places], [*places, len(times)], strict=True)]
        last = place(messages[-1][0]) if which.limit and len(messages) == which.limit else None
        return Found([list(each) for each in found if each[0] == "found"], len(times), backlog, cut, last)

    async def _last_answers(self, numbers: list[int]) -> list[LastAnswer]:
        return list((await asyncio.to_thread(self._answers.find, numbers)).values())

    async def _figures(self, topic: int) -> list[dict[str, Any]]:
        return list(rows(self._center.figures.of(topic)))

    async def _scrub(self, _: None) -> Scrubbed:
        found = await self._schedule.scrub()
        if found is None:
            raise Refusal("busy", "the schedule is being scrubbed already; try again when that has ended")
        self._scrubs += 1
        self._faults += found.fault_count
        for fault in found.faults:
            self.log.error("the schedule is damaged", fault=fault)
        self.log.info("the schedule was scrubbed", messages=found.messages, faults=found.fault_count)
        return found

    async def _results(self, asked: Results) -> bytes:
        return await self._center.results(asked.incarnation, asked.weight, bytes(asked.results))

    async def _holds(self, asked: Holds) -> None:
        self._center.holds(asked.incarnation, asked.held)

    async def _state(self, topic: Topic) -> tuple[int, int, list[HeldTarget]]:
        """Number of overdue messages of a topic, ms since the oldest was due, and the targets that get nothing now."""
        count, oldest = self._overdue.get(topic.number, (0, 0))
        held = [each for each in self._center.held if _concerns(each, topic)]
        return count, max(0, now_ms() - oldest) if count else 0, held

    async def _fires(self, join: Join) -> AsyncIterator[msgspec.Raw]:
        session = self._center.join(join.incarnation, join.held_max, join.name)
        if session is None:
            raise Refusal("conflict", "a later process of this worker is known")
        self.log.info("a worker joined", **session.peer, incarnation=join.incarnation)
        try:
            yield msgspec.Raw(NO_FIRES)  # so that the head of the answer is sent at once
            async for fires in session.pieces():
                yield msgspec.Raw(fires)
        finally:
            self._center.leave(session)
            self.log.info("a worker left", **session.peer, incarnation=join.incarnation)

    async def _lease(self, asked: tuple[int, int, float, float]) -> list[Fire]:
        number, most, wait_s, lease_s = asked
        topic = self.topics.numbered(number)
        if topic is None or not topic.is_leased:  # the center looks at the file of topics a little later
            await asyncio.sleep(min(wait_s, LOOK_S))
            return []
        try:
            return await self._center.lease(topic, most, wait_s, lease_s)
        except Busy:
            raise Refusal("busy", "too many requests wait for messages to lease") from None

    # --- status -------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """The schedule and the workers."""
        return {
            "schedule": self._stats,
            "workers": [
                {"node": each.node, "name": each.name, "held": len(each.claims), "weight": each.weight}
                for each in self._center.workers
            ],
            "clock_steps": self._steps,
            "behind_key": self._center.ordering.waiting,
            "above_key_rate": self._center.ordering.early,
            "overdue": {"messages": self._overdue_count, "oldest_s": self._overdue_s},
            "held": [
                {"topic": self._name(each.topic), "url": each.url, "why": each.why, "until": each.until}
                for each in self._center.held[:HELD_TOLD]
            ],
        }

    def _name(self, topic: int | None) -> str | None:
        found = None if topic is None else self.topics.numbered(topic)
        return None if found is None else found.name

    @property
    def _overdue_count(self) -> int:
        return sum(count for count, _ in self._overdue.values())

    @property
    def _overdue_s(self) -> float:
        """Seconds since the oldest overdue message was due."""
        oldest = min((oldest for _, oldest in self._overdue.values()), default=None)
        return 0.0 if oldest is None else max(0, now_ms() - oldest) / 1_000

    def counters(self) -> list[Figure]:
        """Counters of all topics together; `muster topic stats` has those of each topic."""
        totals, stats = self._center.figures.totals, self._stats
        return [
            *super().counters(),
            ("messages_accepted", "Messages made durable", float(totals.accepted)),
            ("messages_fired", "Messages whose callback succeeded", float(totals.fired)),
            ("messages_attempts", "Callbacks made", float(totals.attempts)),
            ("messages_retries", "Failed callbacks that are retried", float(totals.retries)),
            ("messages_dead", "Messages that became dead letters after their last answer", float(totals.dead)),
            ("messages_withdrawn", "Messages withdrawn", float(totals.withdrawn)),
            ("messages_expired", "Messages that expired before they fired", float(stats.get("expired", 0))),
            ("messages_buried", "Messages whose last claim ran out", float(stats.get("buried", 0))),
            ("messages_dead_forgotten", "Dead letters dropped after dead_days", float(stats.get("dead_forgotten", 0))),
            (
                "messages_claims_lost",
                "Results under a claim that was not the current one",
                float(self._center.lost_claims),
            ),
            ("messages_leased", "Messages given to programs that lease them", float(self._center.leases.leased)),
            (
                "messages_leases_extended",
                "Leases made longer",
                float(self._center.leases.extended),
            ),
            ("messages_workers_late", "Streams refused to a worker's former process", float(self._center.late_workers)),
            ("messages_schedule_back", "Times that Redis returned to an older state", float(stats.get("backs", 0))),
            ("messages_changes_lost", "Changes that Redis had lost then", float(stats.get("changes_lost", 0))),
            ("messages_clock_steps", "Times that the wall clock was set", float(self._steps)),
            ("messages_scrubs", "Scrubs of the schedule by `muster delay scrub`", float(self._scrubs)),
            ("messages_scrub_faults", "Faults of the schedule that scrubs found", float(self._faults)),
        ]

    def gauges(self) -> list[Figure]:
        """The present gauges."""
        stats = self._stats
        return [
            *super().gauges(),
            ("messages_pending", "Messages that have not ended", float(stats.get("live", 0))),
            ("messages_near", "Messages in memory", float(stats.get("near", 0))),
            ("messages_ready", "Messages that are due and not with a worker", float(stats.get("ready", 0))),
            (
                "messages_overdue",
                "Messages due for a second or more without an answer to the first attempt, or without the retry that is due",
                float(self._overdue_count),
            ),
            ("messages_overdue_seconds", "Seconds since the oldest overdue message was due", self._overdue_s),
            (
                "messages_targets_held",
                "Targets that get nothing now, because they failed or asked for a pause",
                float(len(self._center.held)),
            ),
            ("messages_leases_waiting", "Requests that wait for messages to lease", float(self._center.leases.waiting)),
            ("messages_known", "Known messages, including ended ones within the history", float(stats.get("known", 0))),
            ("messages_schedule_bytes", "Memory of the schedule", float(stats.get("memory_bytes", 0))),
            ("messages_log_records", "Records of the log before the schedule", float(stats.get("log_records", 0))),
            ("messages_workers", "Workers that take messages", float(len(self._center.workers))),
            (
                "messages_behind_key",
                "Due messages that wait behind others of their key",
                float(self._center.ordering.waiting),
            ),
            (
                "messages_above_key_rate",
                "Due messages that wait for the rate of their key",
                float(self._center.ordering.early),
            ),
        ]


def _concerns(held: HeldTarget, topic: Topic) -> bool:
    """Whether a topic's messages wait for this target: its own, or an origin that cannot be reached."""
    if held.topic is not None:
        return held.topic == topic.number
    parts = urlsplit(topic.callback)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return held.url == f"{parts.scheme}://{host}:{port}"


def _schedule(settings: MessagesSettings, options: CenterOptions, on_fires: OnFires, context: Context) -> Schedule:
    """The schedule that the configuration names. Raises `SpecError`."""
    history_ms, ahead_ms = options.history_hours * HOUR_MS, options.ahead_hours * HOUR_MS
    name = f"{settings.instance}.messages"
    schedule: Schedule
    if options.schedule:
        from muster_server.systems.messages.redis import RedisSchedule  # its library is an optional extra
        from muster_server.systems.messages.redis import connect as connected

        schedule = redis = RedisSchedule(
            connected(options.schedule, password(settings.password_file)),
            f"muster:{name}",
            on_fires,
            context.log,
            history_ms=history_ms,
            ahead_ms=ahead_ms,
            dead_days=options.dead_days,
            lasting=bool(options.log),
        )
    else:
        schedule = EmbeddedSchedule(
            Path(settings.schedule),
            on_fires,
            segment_bytes=SEGMENT_BYTES,
            near_ms=options.near_s * 1_000,
            history_ms=history_ms,
            ahead_ms=ahead_ms,
            dead_days=options.dead_days,
        )
    if not options.log:
        return schedule
    logs = connect(options.log, Path(settings.schedule), replicas=options.log_replicas)
    logged = LoggedSchedule(schedule, logs, name, context.log, ahead_ms=ahead_ms)
    if options.schedule:
        redis.on_back = logged.came_back
    return logged


def build(spec: Spec, settings: MessagesSettings, context: Context) -> CenterService:
    """Make the center. Raises `SpecError`."""
    return CenterService(spec, settings, context)

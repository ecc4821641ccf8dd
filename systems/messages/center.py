"""The center: lets workers take due messages, takes their results, and counts.

Owns how many messages of which topic each worker gets, and what is in progress at each. The schedule is the truth: a
claim is won there, and a result counts only under its claim. It must not know callbacks or sockets: fires leave through
a session's outbox, results come in. Both are arrays in MessagePack, which only compiled code reads: no object is made
for a fire.
A credit is the right to one due message of one topic. The topic's policy chooses the worker of each credit; a result
frees one. So a worker never holds more than `held_max` messages of a topic, and a topic with a slow target delays only
itself.
"""

import asyncio
import random
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server import _engines
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.answers import Answers, LastAnswer
from muster_server.systems.messages.bucket import Bucket
from muster_server.systems.messages.figures import BOUNDS_MS, Figures
from muster_server.systems.messages.leases import LOOK_S, Leases
from muster_server.systems.messages.ordering import DELIVERED, Ordering
from muster_server.systems.messages.schedule import NewChange, Reply, Schedule
from muster_server.systems.messages.shapes import Fire, HeldTarget, Result
from muster_server.systems.messages.topics import Topic, Topics

OVERDUE_MS: Final = 5_000
"""A message later than this at its claim waited for an outage to end, and counts towards `overdue_rate`."""
WAIT_MS: Final = 15_000
"""A claim outlasts the callback by this time: its transfer to the worker, a wait for its target's limit, and the
transfer of its result."""
AT_ONCE: Final = 0
"""Due time of a message whose callback was not made; a clock that was set does not delay it."""
SWEEP_MS: Final = 5_000
"""A claim that ran out this long ago has no result in transit."""
BURST_S: Final = 1.0
UNBOUNDED: Final = 1 << 31
"""Credits of a topic without a limit of its own."""
REMEMBERED_MAX: Final = 64
"""Limit of workers that left and whose claims are still known."""
ANSWER_BYTES_MAX: Final = 2_048
"""Limit of a target's last answer."""
LOST: Final = ord("x")
NO_FIRES: Final = msgspec.msgpack.encode([])
NOT_NOW: Final = ord("n")
TAKEN: Final = bytes(byte != NOT_NOW for byte in range(256))
"""Translates each byte of the schedule: whether it has the result."""


def lease_ms(topic: Topic) -> int:
    """Duration of a claim."""
    return int(topic.timeout_s * 1_000) + WAIT_MS


class Session:
    """One worker's life: its credits, its messages, and what is in transit to it."""

    def __init__(self, incarnation: int, held_max: int, name: str = "") -> None:
        self.incarnation, self.held_max, self.name = incarnation, held_max, name
        self.weight = 1_000
        self.credit: dict[int, int] = {}
        """By topic: number of due messages that it may still take."""
        self.claims = _engines.ClaimLedger()
        """The claims of the messages that it holds."""
        self.held: Sequence[HeldTarget] = ()
        """Targets to which it makes no callbacks now."""
        self.outbox: deque[bytes] = deque()
        """Arrays of `Fire`."""
        self.wake = asyncio.Event()
        self.streams = 0
        self.closed = False

    @property
    def node(self) -> int:
        """The number of its node."""
        return self.incarnation >> 32

    @property
    def peer(self) -> dict[str, Any]:
        """Its node, for the log."""
        return {"peer": self.node} | ({"peer_name": self.name} if self.name else {})

    def free(self, topic: int, part: float = 1.0) -> int:
        """Number of credits that it can still take, of this share of its limit."""
        return max(1, round(self.held_max * part)) - self.credit.get(topic, 0) - self.claims.held(topic)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Fires, array by array; an empty one now and then shows that the stream is alive."""
        while not self.closed:
            if not self.outbox:
                self.wake.clear()
                try:
                    async with asyncio.timeout(5.0):
                        await self.wake.wait()
                except TimeoutError:
                    yield NO_FIRES
                    continue
            if self.outbox:
                yield self.outbox.popleft()


class Center:
    """`schedule` is open. Everything runs in one loop; nothing here waits except for the schedule."""

    def __init__(
        self,
        schedule: Schedule,
        topics: Topics,
        answers: Answers,
        log: structlog.typing.FilteringBoundLogger,
        *,
        overdue_rate: int,
        wall: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule, self._topics, self._answers, self._log = schedule, topics, answers, log
        self._rate, self._wall, self._monotonic = overdue_rate, wall, monotonic
        self.figures = Figures()
        self.leases = Leases(schedule.serve, schedule.leave, self._given_back)
        self.ordering = Ordering(
            schedule, log, wall, monotonic, passed=self._begin, parked=self._parked, ready=self._resume
        )
        self._sessions: dict[int, Session] = {}
        self._left: dict[int, Session] = {}
        """Workers that left or were cut off, whose claims still stand."""
        self._policies: dict[int, tuple[str, _engines.WorkerDispatch]] = {}
        self._assigned: dict[int, frozenset[int]] = {}
        self._paused: dict[int, float] = {}
        """Topics that get no credits before this time, because they used up `overdue_rate`."""
        self._limits: dict[int, tuple[int, float]] = {}
        """By topic: the concurrency and the rate for which its credits are."""
        self._buckets: dict[int, Bucket] = {}
        """By topic with a rate."""
        self._full_at = 0.0
        """Time at which the bucket of overdue messages is full again."""
        self._dirty: set[int] = set()
        self._spread_soon = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.lost_claims = 0
        """Results that came after their claim had run out and another claim had been won."""
        self.late_workers = 0
        """Workers that returned with an epoch older than the known one."""

    # --- workers ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int, held_max: int, name: str = "") -> Session | None:
        """A worker's stream begins; `name`: of its node. None: a later life of the same node is known, and this one
        fires nothing (I-1)."""
        node = incarnation >> 32
        lives = [each for each in (*self._sessions, *self._left) if each >> 32 == node]
        if any(each > incarnation for each in lives):
            self.late_workers += 1
            return None
        session = self._sessions.get(incarnation) or self._left.pop(incarnation, None)
        if session is None:
            session = Session(incarnation, held_max, name)
        session.streams += 1
        session.closed = False
        self._sessions[incarnation] = session
        for each in lives:
            if each < incarnation:
                self._bury(each)
        self._reassign()
        return session

    def leave(self, session: Session) -> None:
        """One of its streams ended. Its claims stand until they run out, or its next life begins."""
        session.streams -= 1
        if session.streams or self._sessions.get(session.incarnation) is not session:
            return
        del self._sessions[session.incarnation]
        self._schedule.leave(session.incarnation)
        session.credit.clear()
        self._left[session.incarnation] = session
        while len(self._left) > REMEMBERED_MAX:
            del self._left[next(iter(self._left))]
        self._reassign()

    def _bury(self, incarnation: int) -> None:
        """The life of a worker is certainly over: its messages are due at once."""
        session = self._sessions.pop(incarnation, None)
        if session is not None:
            session.closed = True
            session.wake.set()
            self._schedule.leave(incarnation)
        session = self._left.pop(incarnation, session)
        if session is not None and len(session.claims):
            self._log.info("a worker ended; its messages are due again", **session.peer, held=len(session.claims))
            self._later([(number, "release", claim, AT_ONCE) for number, claim in session.claims.drain()])

    def _given_back(self, fires: Sequence[Fire]) -> None:
        """Nobody takes these: they are due again."""
        if fires:
            self._later([(each.number, "release", each.claim, AT_ONCE) for each in fires])

    def _later(self, changes: Sequence[NewChange]) -> None:
        task = asyncio.create_task(self._schedule.change(changes))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), StoreError):
            self._log.warning("cannot give back claims; they run out", why=str(error))

    @property
    def workers(self) -> Sequence[Session]:
        """The workers with a stream."""
        return tuple(self._sessions.values())

    # --- credits ------------------------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """Spread credits over the current topics."""
        self._policies = {
            number: found
            for number, found in self._policies.items()
            if (topic := self._topics.numbered(number)) is not None and topic.policy == found[0]
        }
        self.figures.forget([topic.number for topic in self._topics.all()])
        limits = {topic.number: (topic.concurrency, topic.rate) for topic in self._topics.all()}
        for number, before in self._limits.items():
            if limits.get(number, before) != before:
                self._unassign(number)  # its credits were for other limits
        self._limits = limits
        self.ordering.topics_changed(self._topics.all())
        for number, bucket in list(self._buckets.items()):
            topic = self._topics.numbered(number)
            if topic is None or topic.rate != bucket.rate:
                del self._buckets[number]
        self._reassign()

    def _reassign(self) -> None:
        """Choose the workers of each topic again; those that stay keep it."""
        there = frozenset(self._sessions)
        for topic in self._topics.all():
            if topic.is_leased or topic.paused:
                self._unassign(topic.number)
                if topic.paused:
                    self.leases.pause(topic.number)
                continue
            kept = self._assigned.get(topic.number, frozenset()) & there
            wanted = len(there) if not topic.workers else min(topic.workers, len(there))
            if len(kept) > wanted:
                kept = frozenset(sorted(kept)[:wanted])
            if len(kept) < wanted:
                others = [self._sessions[each] for each in sorted(there - kept)]
                among = [(each.incarnation, each.weight, len(each.claims)) for each in others]
                draws = [random.getrandbits(64) for _ in among]
                chosen = _engines.assign_workers("least-loaded", among, wanted - len(kept), draws)
                kept |= {others[place].incarnation for place in chosen}
            self._assigned[topic.number] = kept
            self._dirty.add(topic.number)
        for gone in self._assigned.keys() - {topic.number for topic in self._topics.all()}:
            del self._assigned[gone]
        self._soon()

    def _unassign(self, topic: int) -> None:
        """No worker fires its messages for now: programs lease them, or the topic is paused, or has new limits."""
        for each in self._assigned.pop(topic, ()):
            session = self._sessions.get(each)
            if session is not None:  # its credits of other topics are granted again
                self._schedule.leave(each)
                session.credit.clear()
                self._dirty.update(self._assigned)

    def _soon(self) -> None:
        if not self._spread_soon:
            self._spread_soon = True
            asyncio.get_running_loop().call_soon(self._spread)

    def _spread(self) -> None:
        """Give out the free credits."""
        self._spread_soon = False
        dirty, self._dirty = self._dirty, set()
        now = self._monotonic()
        for number in dirty:
            topic = self._topics.numbered(number)
            if topic is None or not self.ordering.is_ready(number):
                continue
            wait = self._paused.get(number, 0.0) - now
            if wait > 0:
                asyncio.get_running_loop().call_later(wait, self._resume, number)
                continue
            workers = [self._sessions[each] for each in self._assigned.get(number, ()) if each in self._sessions]
            for session, credit in self._shares(topic, workers).items():
                session.credit[number] = session.credit.get(number, 0) + credit
                self._schedule.serve(number, session.incarnation, lease_ms(topic), topic.attempts_max, credit)

    def _resume(self, topic: int) -> None:
        self._paused.pop(topic, None)
        self._dirty.add(topic)
        self._soon()

    def _shares(self, topic: Topic, workers: Sequence[Session]) -> dict[Session, int]:
        """The number of a topic's free credits for each worker."""
        # If all are busy, a worker gets a credit for each result, so its share is its limit.
        allowed = self._allowed(topic)
        if allowed <= 0:
            return {}
        most = max((session.weight for session in workers), default=0)
        weighs = topic.policy.startswith("weighted") and most > 0
        free = {session: session.free(topic.number, session.weight / most if weighs else 1.0) for session in workers}
        free = {session: count for session, count in free.items() if count > 0}
        if len(free) <= 1:
            return {session: min(count, allowed) for session, count in free.items()}
        known = self._policies.get(topic.number)
        if known is None:
            known = self._policies[topic.number] = topic.policy, _engines.WorkerDispatch(topic.policy)
        shares: dict[Session, int] = {}
        # As many as one worker takes: the rest is spread when results come.
        for _ in range(min(allowed, max(free.values()))):
            among = [session for session in free if shares.get(session, 0) < free[session]]
            if not among:
                break
            choices = [(each.incarnation, max(1, each.weight), len(each.claims)) for each in among]
            place = known[1].choose(choices, random.getrandbits(64))
            if place is None:
                break
            shares[among[place]] = shares.get(among[place], 0) + 1
        return shares

    def _allowed(self, topic: Topic) -> int:
        """The number of credits that the concurrency and the rate of a topic allow beside those that are out."""
        allowed = UNBOUNDED
        sessions = (*self._sessions.values(), *self._left.values())
        unused = sum(session.credit.get(topic.number, 0) for session in self._sessions.values())
        if topic.concurrency:
            allowed = topic.concurrency - unused - sum(session.claims.held(topic.number) for session in sessions)
        if topic.rate:
            now = self._monotonic()
            bucket = self._buckets.setdefault(topic.number, Bucket(topic.rate, now))
            may = bucket.left(now) - unused
            if may <= 0 < allowed and not unused:
                asyncio.get_running_loop().call_later(bucket.wait_s(), self._resume, topic.number)
            allowed = min(allowed, may)
        return allowed

    def sweep(self) -> None:
        """Free the credits of claims that ran out. Call it every second."""
        now = self._wall() - SWEEP_MS
        for session in (*self._sessions.values(), *self._left.values()):
            self._dirty.update(session.claims.sweep(now))
        if self._dirty:
            self._soon()
        self.ordering.sweep()

    # --- fires and results --------------------------------------------------------------------------------------

    def on_fires(self, worker: int, fires: bytes) -> None:
        """The schedule claimed messages for a worker: an array of `Fire`."""
        rest = self.ordering.take(worker, fires)
        if rest is not None:
            self._begin(worker, rest)

    def _parked(self, worker: int, topic: int, count: int) -> None:
        """Messages that were claimed for a worker wait behind others of their key: it may take others."""
        session = self._sessions.get(worker)
        if session is not None:
            session.credit[topic] = max(0, session.credit.get(topic, 0) - count)
            self._dirty.add(topic)
            self._soon()
        else:
            self.leases.serve_again(worker, count)

    def _begin(self, worker: int, fires: bytes) -> None:
        """A worker may fire these."""
        if self.leases.on_fires(worker, fires):
            return
        session, now = self._sessions.get(worker), self._wall()
        if session is None:  # it left while the claims were won
            self._given_back(msgspec.msgpack.decode(fires, type=list[Fire]))
            return
        for topic, count, overdue in session.claims.begin(fires, now, OVERDUE_MS):
            session.credit[topic] = max(0, session.credit.get(topic, 0) - count)
            self._pace(topic, overdue)
            if (bucket := self._buckets.get(topic)) is not None:
                bucket.take(count, self._monotonic())
                self._dirty.add(topic)
                self._soon()
        session.outbox.append(fires)
        session.wake.set()

    def _pace(self, topic: int, overdue: int) -> None:
        """Count overdue messages towards the rate."""
        if not overdue:
            return
        now = self._monotonic()
        self._full_at = max(self._full_at, now) + overdue / self._rate
        if self._full_at - now > BURST_S:
            self._paused[topic] = self._full_at - BURST_S

    async def results(self, incarnation: int, weight: int, results: bytes) -> bytes:
        """Take a worker's results: an array of `Result`. Returns a byte for each; 0: report it again later, nothing was
        changed."""
        session = self._sessions.get(incarnation) or self._left.get(incarnation)
        if session is not None:
            session.weight = weight
        return (await self._settled(session, results)).translate(TAKEN)

    async def _settled(self, session: Session | None, results: bytes) -> bytes:
        """What the schedule said of each result; `n`: nothing was changed, tell it again."""
        dying = _engines.dying_results(results)
        if not dying or await self._keep_answers(dying):
            return await self._take(session, results)
        # The others are taken nevertheless.
        told = msgspec.msgpack.decode(results, type=list[Result])
        waiting = {place for place, *_ in dying}
        others = [each for place, each in enumerate(told) if place not in waiting]
        taken = iter(await self._take(session, msgspec.msgpack.encode(others)))
        return bytes(NOT_NOW if place in waiting else next(taken) for place in range(len(told)))

    async def _keep_answers(self, dying: Sequence[tuple[int, int, str, int | None, bytes]]) -> bool:
        """Store the last answers of letters that are about to die. Returns False if they could not be stored."""
        now = self._wall()
        rows = [
            LastAnswer(number, now, outcome, status, answer[:ANSWER_BYTES_MAX])
            for _, number, outcome, status, answer in dying
        ]
        try:
            await asyncio.to_thread(self._answers.keep, rows)
        except sqlite3.Error as error:
            self._log.error("cannot store last answers; their messages wait", error=str(error))
            return False
        return True

    async def _take(self, session: Session | None, results: bytes) -> bytes:
        """What the schedule said, a byte for each."""
        said = await self._schedule.settle(results)
        self.ordering.settled(results, said)
        now = self._wall()
        self.lost_claims += said.count(b"x")
        claims = _engines.ClaimLedger() if session is None else session.claims
        for sums in claims.settle(results, said, now, SWEEP_MS, BOUNDS_MS):
            topic = sums[0]
            self.figures.results(topic, now // 60_000, sums)
            if session is not None and sums[-1]:
                self._dirty.add(topic)
        if self._dirty:
            self._soon()
        return said

    def holds(self, incarnation: int, held: Sequence[HeldTarget]) -> None:
        """A worker reports the targets that get nothing now."""
        session = self._sessions.get(incarnation)
        if session is not None:
            session.held = held

    @property
    def held(self) -> Sequence[HeldTarget]:
        """Targets to which some worker makes no callbacks now, each once, with the latest end."""
        found: dict[tuple[int | None, str, str], HeldTarget] = {}
        for session in self._sessions.values():
            for each in session.held:
                name = each.topic, each.url, each.why
                if name not in found or found[name].until < each.until:
                    found[name] = each
        return tuple(found.values())

    # --- leases -------------------------------------------------------------------------------------------------

    async def lease(self, topic: Topic, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        """Due messages of a topic for a program that asked for them. Raises `leases.Busy`."""
        if not self.ordering.is_ready(topic.number):
            await asyncio.sleep(min(wait_s, LOOK_S))
            return []
        return await self.leases.take(topic, most, wait_s, lease_s)

    async def end_leases(self, results: Sequence[Result]) -> bytes:
        """What the schedule said of each: a byte as `schedule.SAID`. Results of tasks are kept once they count."""
        now = [
            each
            if (claim := self.leases.claim(each.number, each.claim)) == each.claim
            else msgspec.structs.replace(each, claim=claim)
            for each in results
        ]
        said = bytearray(await self._settled(None, msgspec.msgpack.encode(now)))
        # An extension may have taken place meanwhile, and named another claim.
        moved = [
            (place, claim)
            for place, each in enumerate(now)
            if said[place] == LOST and (claim := self.leases.claim(each.number, each.claim)) != each.claim
        ]
        if moved:
            again = [msgspec.structs.replace(now[place], claim=claim) for place, claim in moved]
            for (place, _), byte in zip(moved, await self._settled(None, msgspec.msgpack.encode(again)), strict=True):
                said[place] = byte
        at = self._wall()
        rows = [
            LastAnswer(each.number, at, "done", None, each.answer)
            for each, byte in zip(now, said, strict=True)
            if byte == DELIVERED and each.answer
        ]
        if rows:
            try:
                await asyncio.to_thread(self._answers.keep, rows)
            except sqlite3.Error as error:
                self._log.error("results of tasks cannot be written", count=len(rows), error=str(error))
        return bytes(said)

    async def extend_leases(self, asked: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
        """Number, claim and new end of each: `done` and the claim from now on; or `lost`; or `busy`."""
        changes: list[NewChange] = [
            (number, "extend", self.leases.claim(number, claim), until) for number, claim, until in asked
        ]
        answers: list[tuple[str, int]] = []
        replies = await self._schedule.change(changes)
        for (number, _, before, _), reply in zip(changes, replies, strict=True):
            if reply[0] == "changed" and before is not None:
                claim = int(reply[1][1])
                self.leases.extended_to(number, before, claim)
                answers.append(("done", claim))
            else:
                answers.append(("busy" if reply[0] == "disk_full" else "lost", 0))
        self.lost_claims += sum(outcome == "lost" for outcome, _ in answers)
        return answers

    # --- messages -----------------------------------------------------------------------------------------------

    async def insert(self, messages: bytes) -> bytes:
        """Insert an array of `NewMessage` in MessagePack; returns an array of the schedule's replies."""
        replies, counts = await self._schedule.insert_packed(self.ordering.numbered(messages))
        minute = self._wall() // 60_000
        for topic, count in counts.items():
            self.figures.count(topic, minute, "accepted", count)
        return replies

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Schedule.change`; the topic is for the figures."""
        replies = await self._schedule.change(changes)
        self.ordering.changed(topic, replies)
        withdrawn = sum(reply[0] == "changed" and reply[2] == "cancelled" for reply in replies)
        if withdrawn:
            self.figures.count(topic, self._wall() // 60_000, "withdrawn", withdrawn)
        return replies

    async def close(self) -> None:
        """End all streams, and wait for changes in progress."""
        for session in self._sessions.values():
            session.closed = True
            session.wake.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.ordering.close()

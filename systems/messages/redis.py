"""The schedule in Redis: the same answers as in a folder, for centers on several machines.

Owns the lease of the center that may write, when Redis is asked for what is due, and how a Redis that came back older is
noticed. What may happen to a message is decided by `_engines`; scripts compare and set (`redis_scripts`). It must not know
topics' settings, callbacks, or what a body means.

Never early: a message is due when the time by the center's trusted clock and the time of Redis have both come. As durable
as that Redis is: an answer leaves after Redis has it, and `open` refuses one that writes nothing to its disk, unless a log
before it keeps what is answered (`logged`).
"""

import asyncio
import contextlib
import secrets
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server import _engines
from muster_server.plane.ownership.errors import Away, Fenced, Full, StoreError, WentBack
from muster_server.plane.ownership.redis import RedisStore
from muster_server.systems.messages import redis_scripts as scripts
from muster_server.systems.messages.schedule import (
    LISTS_MAX,
    Fields,
    NewChange,
    NewMessage,
    OnFires,
    Overdue,
    PendingChange,
    Reply,
    packed,
    settled,
)
from muster_server.systems.messages.shapes import Fire, Scrubbed

CALL_S: Final = 5.0
LEASE_MS: Final = 5_000
"""A center that is silent for this many ms is replaced."""
EVERY_S: Final = 1.0
"""Interval in seconds at which the lease is renewed, and ended messages are forgotten."""
AGAIN_S: Final = 0.2
AT_ONCE: Final = 250
"""Limit of messages in one call: it blocks Redis for about a millisecond."""
CLAIMS_MAX: Final = 500
"""Limit of claims of a topic in one turn."""
FORGET_MAX: Final = 500
BODY_BYTES_MAX: Final = 1 << 20
ROUNDS_MAX: Final = 100
LISTED_MAX: Final = 200_000
"""Limit of messages that one list reads: a second or two. Beyond it the list is marked as cut."""
LOOK_S: Final = 2.0
"""Seconds between two searches for overdue messages."""
LOOKED_MAX: Final = 20_000
"""Limit of messages that one search reads; beyond it the count is a lower bound."""
CLAIM_MS_MAX: Final = 90_000
"""Longest duration of a claim, and of a pause of a target."""
GRACE_MS: Final = 1_000
"""A message counts as overdue if it has been due for this long."""
FAULTS_MAX: Final = 100
"""Limit of faults that a scrub describes; all are counted."""
DAY_MS: Final = 86_400_000
SKEW_MS: Final = 500
"""A larger difference of the two clocks is logged."""
WITHDRAWN: Final = {"cancelled", "expired"}
ENDED: Final = {"done", "dead", *WITHDRAWN}


class _Service:
    """A worker and a topic: the credits that are left."""

    def __init__(self, worker: int) -> None:
        self.worker, self.lease_ms, self.attempts_max, self.credit = worker, 0, 0, 0


class _Write:
    """One entry to set."""

    def __init__(self, place: int, id: int, there: bytes, new: bytes, body: bytes | None, reply: Reply) -> None:
        self.place, self.id, self.there, self.new, self.body, self.reply = place, id, there, new, body, reply


def connect(url: str, password: str) -> RedisStore:
    """The Redis of a schedule. Nothing is opened yet."""
    return RedisStore(url, password, "the Redis of the schedule", CALL_S)


class RedisSchedule:
    """The `systems.messages.schedule.Schedule` in Redis. `lasting`: a log stores what is answered."""

    def __init__(
        self,
        place: RedisStore,
        prefix: str,
        on_fires: OnFires,
        log: structlog.typing.FilteringBoundLogger,
        *,
        history_ms: int,
        ahead_ms: int,
        dead_days: int,
        lasting: bool = False,
        wall: Callable[[], int] = now_ms,
        monotonic: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.on_fires, self.failed, self.failure = on_fires, asyncio.Event(), ""
        self.on_back: Callable[[int], Awaitable[None]] | None = None
        """Called with the number of lost changes when Redis returned to an older state; nothing fires until it returns."""
        self._place, self._log, self._lasting = place, log, lasting
        self._prefix = f"{{{prefix}}}:".encode()
        self._history_ms, self._ahead_ms, self._dead_ms = history_ms, ahead_ms, dead_days * DAY_MS
        self._wall, self._monotonic = wall, monotonic
        self._clock = _engines.FiringClock(wall(), monotonic())
        self._owner = secrets.token_hex(8).encode()
        self._seen = 0
        """Highest number of changes that Redis reported."""
        self._mark = ""
        self._steps: list[int] = []
        self._services: dict[int, list[_Service]] = {}
        self._next: int | None = None
        """Time before which nothing is due, as far as is known."""
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._back = False
        self._away = ""
        self._skew = False
        self._lists = 0
        self._scrubs = False
        self._overdue: Overdue = {}
        self.lost = self.backs = 0
        """Changes that Redis had lost when it returned to an older state, and the number of such returns."""
        self._counts = {"dead_forgotten": 0, "expired": 0, "buried": 0}

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the lease. Raises `BlockingIOError` if another center has it, `OSError` if Redis does not answer or
        writes nothing to disk."""
        try:
            status, count = await self._run(scripts.LEASE, LEASE_MS)
            if status:
                raise BlockingIOError("another center owns the schedule in Redis")
            if not self._lasting:
                await self._need_disk()
        except StoreError as error:
            raise OSError(str(error)) from None
        self._seen = count
        for each in (self._fire(), self._keep(), self._look()):
            self._begin(each)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; an unexpected error ends the schedule."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"the schedule in Redis: {error or type(error).__name__}")

    async def _need_disk(self) -> None:
        forgets = await self._place.forgets()
        if forgets is None:
            self._log.warning("this Redis does not tell whether it writes to a disk; make sure that it does")
        elif forgets:
            raise OSError(
                "the Redis of the schedule has appendonly=no, so it loses accepted messages when it ends; set "
                "appendonly yes there, or set center.log"
            )

    async def close(self) -> None:
        """Give the lease back."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failure:
            with contextlib.suppress(StoreError, TimeoutError):
                await self._run(scripts.LEAVE)
        self._fail("closed")
        await self._place.close()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.failed.set()
        self._wake.set()

    async def marked(self) -> tuple[int, int] | None:
        """As `Schedule`."""
        (mark,) = await self._asked(scripts.MARKED)
        if not mark:
            return None
        place, epoch = mark.split()
        return int(place), int(epoch)

    async def mark(self, place: int, epoch: int) -> None:
        """As `Schedule.mark`; it is written with the lease."""
        self._mark = f"{place} {epoch}"

    async def start_anew(self) -> bool:
        """As `Schedule.start_anew`: does nothing, because all centers share this schedule."""
        return False

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _run(self, script: str, *arguments: Any) -> Any:
        return await self._place.finish(script, [self._prefix.decode()], [self._prefix, self._owner, *arguments])

    async def _asked(self, script: str, *arguments: Any) -> list[Any]:
        """The values after status and count. Raises `WentBack`, `Fenced`, `Away` and `Full`."""
        if self.failure:
            raise StoreError(self.failure)
        seen, backs = self._seen, self.backs
        try:
            said: list[Any] = await self._run(script, seen, *arguments)
        except Away as error:
            self._is_away(str(error))
            raise
        status, count, *rest = said
        if count < seen:
            self._came_back(seen, count)
            raise WentBack("the Redis of the schedule returned to an older state")
        if backs != self.backs:  # the answer is from a state that is lost
            raise WentBack("the Redis of the schedule returned to an older state meanwhile")
        if status:
            self._fail("another center has taken over the schedule in Redis")
            raise Fenced(self.failure)
        self._is_there()
        self._seen = max(self._seen, count)
        return rest

    def _is_away(self, why: str) -> None:
        if not self._away:
            self._log.warning(
                "the Redis of the schedule does not answer; nothing is accepted and nothing fires", why=why
            )
        self._away = why

    def _is_there(self) -> None:
        if self._away:
            self._log.info("the Redis of the schedule answers again")
            self._away = ""

    def _came_back(self, seen: int, count: int) -> None:
        if self._back:
            return
        self._back = True
        self.backs += 1
        self.lost += seen - count
        self._log.error(
            "the Redis of the schedule returned to an older state; see docs/messages.md",
            changes_lost=seen - count,
            changes=count,
        )
        self._begin(self._repair(seen - count))

    async def _repair(self, lost: int) -> None:
        """Take the lease again, then restore the log's records. A center that took over meanwhile keeps the lease."""
        until = self._monotonic() + LEASE_MS + 1_000
        while True:
            try:
                status, count = await self._run(scripts.LEASE, LEASE_MS)
                if not status:
                    self._seen = count
                    if self.on_back is not None:
                        await self.on_back(lost)
                    break
                if self._monotonic() > until:
                    self._fail("another center has taken over the schedule in Redis")
                    return
            except (Away, Full) as error:
                self._is_away(str(error))
                until = self._monotonic() + LEASE_MS + 1_000
            except StoreError as error:  # it continues when Redis answers
                self._log.warning("the schedule in Redis is not complete yet", why=str(error))
            await asyncio.sleep(AGAIN_S)
        self._back = False
        self._wake.set()

    def _now(self) -> int:
        now, step = self._clock.read(self._wall(), self._monotonic())
        if step is not None:
            self._steps.append(step)
        return now

    # --- changes --------------------------------------------------------------------------------------------------

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `Schedule`."""
        replies: list[Reply] = [()] * len(messages)
        writes: list[_Write] = []
        for place, (id, topic, due_at, expires_at, body) in enumerate(messages):
            new = _engines.stored_new(id, topic, due_at, expires_at)
            if len(body) > BODY_BYTES_MAX:
                replies[place] = ("body_too_long",)
            elif new is None:
                replies[place] = ("refused", "bad_time", None)
            else:
                message = _engines.stored_read(new)[0]
                writes.append(_Write(place, id, b"", new, body, ("inserted", message)))
        for _ in range(ROUNDS_MAX):
            if not writes:
                return replies
            again: list[_Write] = []
            for write, there in zip(writes, await self._set(writes), strict=True):
                if there is True:
                    replies[write.place] = write.reply
                    continue
                if isinstance(there, tuple):
                    replies[write.place] = there
                    continue
                found = _engines.stored_read(there)[0] if there else None
                if found is not None:
                    replies[write.place] = ("before", found)
                    continue
                # A change waited for it; or that was forgotten meanwhile.
                asked = messages[write.place]
                new = _engines.stored_new(*asked[:4])
                assert new is not None, "its time was checked"
                write.there, write.new = there, _engines.stored_meet(there, new) if there else new
                write.reply = ("inserted", _engines.stored_read(write.new)[0])
                again.append(write)
            writes = again
        raise StoreError("the entries of these messages change too often; try again")

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Schedule`."""

        def made(place: int, there: bytes, now: int) -> tuple[bytes | None, Reply]:
            return _engines.stored_change(there or None, now, changes[place], self._ahead_ms)

        return await self._changed([each[0] for each in changes], made)

    async def insert_packed(self, messages: bytes) -> tuple[bytes, Mapping[int, int]]:
        """As `Schedule`."""
        groups, told = _engines.stored_inserts(messages, BODY_BYTES_MAX, AT_ONCE)
        counts, known = Counter[int](), list[int]()
        for topic, soonest, places, values in groups:
            try:
                (found,) = await self._asked(scripts.INSERT, topic, *values)
            except Full:  # existing messages are reported nevertheless
                found = range(1, len(places) + 1)
            counts[topic] += len(places) - len(found)
            known += [places[each - 1] for each in found]
            self._falls_due(soonest)
        if not known:
            return told, counts
        given = msgspec.msgpack.decode(messages, type=list[NewMessage])
        replies = msgspec.msgpack.decode(told, type=list[Reply])
        for place, reply in zip(known, await self.insert([given[place] for place in known]), strict=True):
            replies[place] = reply
        return packed(given, replies)

    async def settle(self, results: bytes) -> bytes:
        """As `Schedule`."""
        return await settled(self.change, results)

    async def put_ahead(self, asked: Sequence[PendingChange]) -> list[Reply]:
        """As `Schedule`."""

        def made(place: int, there: bytes, now: int) -> tuple[bytes | None, Reply]:
            new = _engines.stored_put_ahead(there or None, now, asked[place], self._ahead_ms)
            return new, ("before",) if new is None else ("put",)

        return await self._changed([each[0] for each in asked], made)

    async def put(self, messages: Sequence[Fields]) -> list[Reply]:
        """As `Schedule`."""

        def made(place: int, there: bytes, _: int) -> tuple[bytes | None, Reply]:
            if not there or _engines.stored_read(there)[0] is None:
                return None, ("refused", "unknown", None)
            new = _engines.stored_put(there, messages[place])
            return new, ("before",) if new is None else ("put", messages[place][:7])

        return await self._changed([each[0] for each in messages], made)

    async def _changed(
        self, ids: Sequence[int], made: Callable[[int, bytes, int], tuple[bytes | None, Reply]]
    ) -> list[Reply]:
        """Read, decide, and set if nothing else was set meanwhile; the rest is decided again, in order."""
        replies: list[Reply] = [()] * len(ids)
        todo: Sequence[int] = range(len(ids))
        for _ in range(ROUNDS_MAX):
            if not todo:
                return replies
            there = await self._entries({ids[place] for place in todo}, whole=False)
            now, writes = self._now(), list[_Write]()
            for place in todo:
                id = ids[place]
                new, reply = made(place, there[id], now)
                replies[place] = reply
                if new is not None:
                    writes.append(_Write(place, id, there[id], new, None if there[id] else b"", reply))
                    there[id] = new
            missed: set[int] = set()
            for write, done in zip(writes, await self._set(writes), strict=True):
                if isinstance(done, tuple):
                    replies[write.place] = done
                elif done is not True:
                    missed.add(write.id)
            todo = [place for place in todo if ids[place] in missed]
        raise StoreError("the entries of these messages change too often; try again")

    async def _set(self, writes: Sequence[_Write]) -> list[Any]:
        """For each write True; or the existing entry, and nothing was set; or a reply."""
        done: list[Any] = []
        for first in range(0, len(writes), AT_ONCE):
            some = writes[first : first + AT_ONCE]
            arguments: list[Any] = []
            soonest: int | None = None
            for write in some:
                message, topic, wake_at, _ = _engines.stored_read(write.new)
                mode, score, kept_ms = self._where(write, message, wake_at)
                if mode in {"waits", "again"} and (soonest is None or score < soonest):
                    soonest = score
                body = b"" if write.body is None else b"+" + write.body
                arguments += (_key(write.id), write.there, write.new, body, topic, mode, score, kept_ms)
            try:
                found = await self._asked(scripts.WRITE, *arguments)
            except Full:
                done += [("disk_full",)] * len(some)
                continue
            done += [True if each == 1 else each for each in found]
            if soonest is not None:
                self._falls_due(soonest)
        return done

    def _falls_due(self, at: int) -> None:
        """Check at this time, unless a check is planned earlier."""
        if self._next is None or at < self._next:
            self._next = at
            self._wake.set()

    def _where(self, write: _Write, message: Any, wake_at: int | None) -> tuple[str, int, int]:
        """Mode, score, and lifetime."""
        if message is None:
            return "ahead", 0, self._ahead_ms
        if wake_at is None:
            kept = self._dead_ms if message[5] == "dead" else self._history_ms
            return "ended", message[2], kept
        if not write.there:
            return "waits", wake_at, 0
        before, _, woke_at, _ = _engines.stored_read(write.there)
        return ("again" if before is None or woke_at is None else "waits"), wake_at, 0

    # --- reads ----------------------------------------------------------------------------------------------------

    async def _entries(self, ids: Iterable[int], *, whole: bool) -> dict[int, bytes]:
        """Entries by id; empty if there is none."""
        asked = list(ids)
        found: dict[int, bytes] = {}
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            there = await self._asked(scripts.READ, "1" if whole else "0", *map(_key, some))
            found |= zip(some, there, strict=True)
        return found

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `Schedule`."""
        found = await self._entries(set(ids), whole=True)
        return [_found(found[id]) for id in ids]

    async def find(
        self,
        topic: int | None,
        begin: int,
        end: int,
        states: Sequence[str],
        limit: int,
        after: tuple[int, int] | None = None,
    ) -> Reply:
        """As `Schedule.find`, with the messages as they are while they are read."""
        if self._lists >= LISTS_MAX:
            return ("busy",)
        self._lists += 1
        try:
            return await self._find(topic, begin, end, frozenset(states), limit, after)
        finally:
            self._lists -= 1

    async def _find(
        self,
        topic: int | None,
        begin: int,
        end: int,
        states: frozenset[str],
        limit: int,
        after: tuple[int, int] | None,
    ) -> Reply:
        topics = [topic] if topic is not None else [int(each) for each in (await self._asked(scripts.TOPICS))[0]]
        sets = ["w"] * bool(states & {"scheduled", "firing"}) + ["e"] * bool(states & {"done", "dead", "withdrawn"})
        found: dict[int, tuple[int, Any, int]] = {}
        looked, cut = 0, False
        for number in topics:
            for name in sets:
                rank = 0
                while not cut:
                    rows = await self._asked(scripts.LIST, f"{name}:{number}", rank, rank + AT_ONCE - 1)
                    for key, there in zip(rows[::2], rows[1::2], strict=True):
                        if there and (each := _taken(there, begin, end, states)) is not None:
                            found[int.from_bytes(key, "big")] = (*each, number)
                    looked += len(rows) // 2
                    cut = looked >= LISTED_MAX
                    if len(rows) < 2 * AT_ONCE:
                        break
                    rank += AT_ONCE
        order = sorted(found.values(), key=lambda each: (each[0], each[1][0]))
        first = 0 if after is None else bisect_right(order, after, key=lambda each: (each[0], each[1][0]))
        page = order[first : first + limit]
        return "listed", [(message, number) for _, message, number in page], [each[0] for each in order], cut

    async def overdue(self) -> Overdue:
        """As `Schedule.overdue`, as of the last search."""
        return self._overdue

    async def _look(self) -> None:
        """Search for overdue messages repeatedly, until cancelled; each search reads a limited number of messages."""
        while not self.failure:
            await asyncio.sleep(LOOK_S)
            if self._back:
                continue
            with contextlib.suppress(StoreError):
                self._overdue = await self._looked(self._now())

    async def _looked(self, now: int) -> Overdue:
        found: dict[int, tuple[int, int]] = {}
        looked = 0
        for topic in map(int, (await self._asked(scripts.TOPICS))[0]):
            rank, there = 0, True
            while there and looked < LOOKED_MAX:
                rows = await self._asked(scripts.LIST, f"w:{topic}", rank, rank + AT_ONCE - 1)
                rank, looked = rank + AT_ONCE, looked + AT_ONCE
                there = len(rows) == 2 * AT_ONCE
                for entry in rows[1::2]:
                    message, _, wake_at, _ = _engines.stored_read(entry) if entry else (None, 0, None, 0)
                    if message is None or wake_at is None:
                        continue
                    if wake_at > now + CLAIM_MS_MAX:  # later ones wake later
                        there = False
                        break
                    _, _, due_at, _, attempts, state, _ = message
                    again = (state == "retry" and attempts > 0) or (state == "firing" and attempts > 1)
                    since = wake_at if again else due_at
                    if state in {"scheduled", "retry", "firing"} and since + GRACE_MS <= now:
                        count, oldest = found.get(topic, (0, since))
                        found[topic] = count + 1, min(oldest, since)
        return found

    async def stats(self) -> dict[str, Any]:
        """As `Schedule.stats`. While Redis does not answer: without its figures."""
        figures = {
            "whole": not (self._away or self._back),
            "backs": self.backs,
            "changes_lost": self.lost,
            **self._counts,
        }
        try:
            live, ready, ended = await self._asked(scripts.STATS, self._now())
        except StoreError:
            if self.failure:
                raise
            return {**figures, "away": self._away}
        return {"live": live, "near": 0, "ready": ready, "known": live + ended, "applied": self._seen, **figures}

    async def scrub(self) -> Scrubbed | None:
        """As `Schedule.scrub`: every entry against its checksum and its indexes by time, and each index against the
        entries.

        Redis has no checksum of a body."""
        if self._scrubs:
            return None
        self._scrubs = True
        try:
            return await self._scrub()
        finally:
            self._scrubs = False

    async def _scrub(self) -> Scrubbed:
        faults: list[str] = []
        messages, topics, cursor = 0, set[int](), b"0"
        pattern = b"".join(b"\\" * (byte in b"*?[]\\") + bytes([byte]) for byte in self._prefix) + b"m:*"
        while True:
            cursor, *page = await self._asked(scripts.SCRUB, cursor, pattern, AT_ONCE)
            for key, there, *scores in zip(*(page[place::5] for place in range(5)), strict=True):
                topic, wrong = _misplaced(key, there, [int(float(each)) if each else None for each in scores])
                messages += 1
                topics |= set() if topic is None else {topic}
                faults += [] if wrong is None else [f"message {key.hex()}: {wrong}"]
            if int(cursor) == 0:
                break
        listed = {int(each) for each in (await self._asked(scripts.TOPICS))[0]}
        faults += [f"topic {each} is not among the topics" for each in sorted(topics - listed)]
        for name in ("x", *(f"{kind}:{topic}" for topic in sorted(listed | topics) for kind in "we")):
            rank = 0
            while rows := await self._asked(scripts.LIST, name, rank, rank + AT_ONCE - 1):
                lost = [key for key, there in zip(rows[::2], rows[1::2], strict=True) if not there]
                faults += [f"message {key.hex()}: {name} lists it, but it is missing" for key in lost]
                rank += AT_ONCE
        return Scrubbed(messages, messages, len(faults), faults[:FAULTS_MAX])

    def clock_steps(self) -> Sequence[int]:
        """As `Schedule`."""
        steps, self._steps = self._steps, []
        return steps

    # --- what is due ----------------------------------------------------------------------------------------------

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """As `Schedule`."""
        services = self._services.setdefault(topic, [])
        service = next((each for each in services if each.worker == worker), None)
        if service is None:
            service = _Service(worker)
            services.append(service)
        service.lease_ms, service.attempts_max = lease_ms, attempts_max
        service.credit += credit
        self._next = 0
        self._wake.set()

    def leave(self, worker: int) -> None:
        """As `Schedule`."""
        for topic, services in list(self._services.items()):
            services[:] = [each for each in services if each.worker != worker]
            if not services:
                del self._services[topic]

    async def _fire(self) -> None:
        """Claim due messages, until cancelled."""
        while not self.failure:
            self._wake.clear()
            wait = None if self._next is None else (self._next - self._now()) / 1_000
            if self._back or not self._services:
                wait = None
            if wait is None or wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S if wait is None else min(wait, EVERY_S)):
                        await self._wake.wait()
                if self._back or self._next is None or self._next > self._now():
                    continue
            try:
                await self._claim()
            except StoreError:
                self._next = 0
                await asyncio.sleep(AGAIN_S)

    async def _claim(self) -> None:
        """One turn: due messages, claimed for the services that take them, one after another."""
        open_topics = {
            topic: min(CLAIMS_MAX, sum(each.credit for each in services)) for topic, services in self._services.items()
        }
        asked = [(topic, limit) for topic, limit in open_topics.items() if limit > 0]
        self._next = None
        if not asked:
            return
        now = self._now()
        here, *topics = await self._asked(scripts.DUE, now, *(word for pair in asked for word in pair))
        self._told_skew(here - now)
        now = min(now, here)
        soonest: int | None = None
        for (topic, limit), (following, *rows) in zip(asked, topics, strict=True):
            due = list(zip(rows[::2], rows[1::2], strict=True))
            at = now if len(due) == limit else int(following) if following else None
            if at is not None and (soonest is None or at < soonest):
                soonest = at
            if due:
                await self._claim_for(topic, due, now)
        if soonest is not None and (self._next is None or soonest < self._next):
            self._next = soonest

    async def _claim_for(self, topic: int, due: Sequence[tuple[bytes, bytes]], now: int) -> None:
        services = self._services.get(topic, [])
        takers = [each for each in services for _ in range(each.credit)]
        writes: list[_Write] = []
        fires: list[tuple[_Service, int, bytes]] = []
        for key, value in due:
            if len(fires) == len(takers):
                break
            there, service = value[:64], takers[len(fires)]
            until = now + service.lease_ms
            new, reply = _engines.stored_claim(there, now, service.worker, until, service.attempts_max)
            if new is None:
                continue
            if reply[2] == "claimed":
                fires.append((service, until, value[64:]))
                service.credit -= 1
            writes.append(_Write(len(fires) - 1 if reply[2] == "claimed" else -1, _id(key), there, new, None, reply))
        try:
            done = await self._set(writes)
        except BaseException:
            for service, _, _ in fires:
                service.credit += 1
            raise
        won: dict[int, list[Fire]] = {}
        for write, is_done in zip(writes, done, strict=True):
            kind = write.reply[2]
            if kind in self._counts and is_done is True:
                self._counts[kind] += 1
            if write.place < 0:
                continue
            service, until, body = fires[write.place]
            if is_done is not True:  # changed meanwhile, or no room
                service.credit += 1
                continue
            number, claim, due_at, _, attempts, _, _ = write.reply[1]
            won.setdefault(service.worker, []).append(Fire(number, topic, claim, until, due_at, attempts, body))
        for worker, some in won.items():
            self.on_fires(worker, msgspec.msgpack.encode(some))
        if services:
            services.append(services.pop(0))

    def _told_skew(self, by_ms: int) -> None:
        if (abs(by_ms) > SKEW_MS) != self._skew:
            self._skew = not self._skew
            if self._skew:
                self._log.warning("the clocks of the center and of Redis differ; using the later one", by_ms=by_ms)

    async def _keep(self) -> None:
        """Renew the lease, and forget ended messages, until cancelled."""
        while not self.failure:
            await asyncio.sleep(EVERY_S)
            if self._back:
                continue
            with contextlib.suppress(StoreError):
                await self._asked(scripts.KEEP, LEASE_MS, self._mark)
                forgotten, dead = FORGET_MAX, 0
                while forgotten == FORGET_MAX:
                    forgotten, dead = await self._asked(scripts.FORGET, FORGET_MAX)
                    self._counts["dead_forgotten"] += dead


def _key(id: int) -> bytes:
    return id.to_bytes(8, "big")


def _id(key: bytes) -> int:
    return int.from_bytes(key, "big")


def _found(value: bytes) -> Reply:
    message, topic, _, _ = _engines.stored_read(value[:64]) if value else (None, 0, None, 0)
    return ("unknown",) if message is None else ("found", message, topic, value[64:])


def _misplaced(key: bytes, there: bytes, scores: Sequence[int | None]) -> tuple[int | None, str | None]:
    """The topic of an entry, and its fault. `scores`: in `w:`, `e:` and `x`."""
    try:
        message, topic, wake_at, _ = _engines.stored_read(there)
    except OSError as error:
        return None, str(error)
    waits, ended, over = scores
    if message is None:
        return None, None if over is not None else "a change ahead of its message that is never forgotten"
    if message[0] != _id(key):
        return topic, f"its entry belongs to {_key(message[0]).hex()}"
    if wake_at is None:
        right = waits is None and ended == message[2] and over is not None
    else:
        right = waits == wake_at and ended is None and over is None
    state, at = message[5], (message[2] if wake_at is None else wake_at)
    return topic, None if right else f"{state}, by {at}; w {waits}, e {ended}, x {over}"


def _taken(there: bytes, begin: int, end: int, states: frozenset[str]) -> tuple[int, Any] | None:
    """The time by which a list sorts it, and the message."""
    message, _, wake_at, _ = _engines.stored_read(there)
    if message is None:
        return None
    state = message[5]
    named = {"retry": "scheduled", "cancelled": "withdrawn", "expired": "withdrawn"}.get(state, state)
    at = wake_at if state == "retry" and wake_at is not None else message[2]
    return (at, message) if named in states and begin <= at < end else None

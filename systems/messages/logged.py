"""A schedule behind a log, for example in Kafka: a schedule that is lost, or returned to an older state, is rebuilt
from the log.

Owns the log's records of a message, which of them go to the schedule again, and which are carried forward so that the
log stays short. It must not know the kind of log and of schedule.
The schedule decides, then the log gets the new state, then the answer leaves; a claim is in the log before its message
fires. So the log has everything that was ever answered or fired. A record names the version of its message, and only a
greater version changes a message (I-2), so reading records twice does no harm. A refusal, too, is answered after the
refusing state is in the log: the answer that made this state may never have been sent.
The schedule stores the offset in the log up to which it has all records. Opening reads the log from there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server.plane.log import BATCH_BYTES_MAX, Batch, Log, LogError, Logs, Trimmed
from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.systems.messages.schedule import (
    Fields,
    NewChange,
    NewMessage,
    OnFires,
    Overdue,
    PendingChange,
    Reply,
    Schedule,
    inserted,
    settled,
)
from muster_server.systems.messages.shapes import EVER, Fire, Scrubbed

MESSAGE: Final = 0
"""`MESSAGE, fields, topic, body`."""
STATE: Final = 1
"""`STATE, …` as `schedule.Fields`."""
AHEAD: Final = 2
"""`AHEAD, time, …` as `schedule.PendingChange`."""
CLAIM: Final = 3
"""`CLAIM, id, claim, due_at, attempts, until, worker`."""
MARK_S: Final = 1.0
RECORDS_MIN: Final = 20_000
"""A log with fewer records is never shortened."""
CARRIED_MAX: Final = 2_000
"""Limit of records that one pass takes from the log's beginning, except one batch."""
SEEDED_MAX: Final = 1_000_000
STATES: Final = ("scheduled", "firing", "done", "dead", "withdrawn")
ASIDE_MAX: Final = 1_000_000
PUT_AT_ONCE: Final = 1_000

_FIRES: Final = msgspec.msgpack.Decoder(list[Fire])


class LoggedSchedule:
    """A `systems.messages.schedule.Schedule` with a log. Nobody else calls `inside`."""

    def __init__(
        self,
        inside: Schedule,
        logs: Logs,
        name: str,
        log: structlog.typing.FilteringBoundLogger,
        *,
        ahead_ms: int,
        records_min: int = RECORDS_MIN,
        wall: Callable[[], int] = now_ms,
    ) -> None:
        self.on_fires: OnFires = inside.on_fires
        inside.on_fires = self._on_fires
        self._inside, self._logs, self._name, self._tell = inside, logs, name, log
        self._ahead_ms, self._records_min, self._wall = ahead_ms, records_min, wall
        self.failed, self.failure = asyncio.Event(), ""
        self._log: Log | None = None
        self._whole = asyncio.Event()
        """Set while the schedule has everything that the log has."""
        self._waiting: list[tuple[list[bytes], asyncio.Future[None]]] = []
        self._appending: asyncio.Task[None] | None = None
        self._life = 0
        """Life of the schedule: grows when it returned to an older state. Answers of an earlier life are void."""
        self._claims: list[tuple[int, bytes]] = []
        self._firing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._known = self._begin = 0
        self.read = self.carried = 0
        """Numbers of records read back from the log, and of messages carried forward in it."""

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """As `Schedule.open`. Fences an earlier owner of the log, and reads the records that the schedule lacks."""
        await self._inside.open()
        try:
            self._log = await self._logs.open(self._name, 0)
            await self._catch_up()
        except (LogError, Fenced) as error:
            raise OSError(f"the log of the schedule: {error}") from None
        self._tasks = [asyncio.create_task(each) for each in (self._watch(), self._mark())]

    async def close(self) -> None:
        """As `Schedule`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._log is not None and self._whole.is_set() and not self.failure:
            with contextlib.suppress(StoreError):
                await self._inside.mark(self._place(), self._log.epoch)
        await self._inside.close()
        for running in (self._firing, self._appending):
            if running is not None:
                await asyncio.gather(running, return_exceptions=True)
        if self._log is not None:
            await self._log.close()
        await self._logs.close()
        self._fail("closed")

    async def _watch(self) -> None:
        await self._inside.failed.wait()
        self._fail(self._inside.failure)

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.failed.set()
        self._whole.set()
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(StoreError(self.failure))

    async def marked(self) -> tuple[int, int] | None:
        """As `Schedule`."""
        return await self._inside.marked()

    async def mark(self, place: int, epoch: int) -> None:
        """Does nothing: only this file sets marks."""
        raise NotImplementedError

    async def start_anew(self) -> bool:
        """Does nothing: only this file does it."""
        raise NotImplementedError

    # --- the log --------------------------------------------------------------------------------------------------

    async def _append(self, records: Sequence[tuple[Any, ...]]) -> None:
        """Make records durable, together with those of concurrent calls. Raises `StoreError`."""
        if not records:
            return
        if self.failure:
            raise StoreError(self.failure)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(([msgspec.msgpack.encode(each) for each in records], done))
        if self._appending is None:
            self._appending = asyncio.create_task(self._append_all())
        await done

    async def _append_all(self) -> None:
        assert self._log is not None
        while self._waiting:
            some, self._waiting = self._waiting, []
            try:
                for batch in _batches([each for records, _ in some for each in records]):
                    await self._log.append(batch)
            # the schedule may have changes that the log lacks: the next owner reads what there is
            except StoreError as error:
                self._fail(f"the log of the schedule: {error}")
            for _, done in some:
                if done.done():
                    continue
                if self.failure:
                    done.set_exception(StoreError(self.failure))
                else:
                    done.set_result(None)
        self._appending = None

    def _place(self) -> int:
        """Offset below which the schedule has all records: it had them before the log."""
        assert self._log is not None
        return self._log.end

    async def _mark(self) -> None:
        """Store the offset, and keep the log short, until cancelled."""
        assert self._log is not None
        while True:
            await asyncio.sleep(MARK_S)
            if not self._whole.is_set():
                continue
            try:
                await self._inside.mark(self._place(), self._log.epoch)
                self._known = int((await self._inside.stats()).get("known", self._known))
                await self._shorten()
            except LogError as error:
                self._tell.warning("cannot shorten the log of the schedule", why=str(error))
            except StoreError:  # its failure is watched; one that does not answer is asked again
                continue

    # --- recovery -----------------------------------------------------------------------------------------------

    async def came_back(self, lost: int) -> None:
        """The schedule returned to an older state: give it the log's records. Nothing is answered meanwhile."""
        self._whole.clear()
        self._life += 1
        self._claims.clear()
        while self._appending is not None:  # records that are being appended are read as well
            await asyncio.gather(self._appending, return_exceptions=True)
        before = self.read
        await self._catch_up()
        self._tell.warning("repaired the schedule from its log", changes_lost=lost, records=self.read - before)

    async def _catch_up(self) -> None:
        """Read the log from the schedule's own mark on."""
        assert self._log is not None
        marked = await self._inside.marked()
        if marked is None:
            await self._seed()
        begin, epoch = marked or (0, self._log.epoch)
        # Another center owned the log meanwhile: decisions here that were never answered differ from its own.
        if epoch not in {self._log.epoch, self._log.epoch - 1} and await self._inside.start_anew():
            self._tell.warning("another center owned the log; rebuilding the schedule from it", epoch=epoch)
            begin = 0
        if marked is not None and begin < self._log.start:
            self._tell.warning("the log begins after the schedule's mark; reading all of it", mark=begin)
        aside: dict[int, Fields] = {}
        try:
            async for _, batch in self._log.read(min(max(begin, self._log.start), self._log.end)):
                await self._restore([msgspec.msgpack.decode(each) for each in batch.records()], aside)
                self.read += batch.count
        except Trimmed as error:
            raise StoreError(str(error)) from None
        await self._inside.mark(self._place(), self._log.epoch)
        self._whole.set()

    async def _seed(self) -> None:
        """Give the log the content of a schedule without a mark, which existed before the log."""
        said = await self._inside.find(None, 0, EVER, STATES, SEEDED_MAX)
        if said[0] != "listed" or said[3]:
            raise OSError("the schedule has too many messages to copy them into a log; start with an empty schedule")
        ids = [message[0] for message, _ in said[1]]
        for first in range(0, len(ids), CARRIED_MAX):
            await self._append(_whole(await self._inside.get(ids[first : first + CARRIED_MAX])))
        if ids:
            self._tell.info("copied the existing schedule into its log", messages=len(ids))

    async def _restore(self, records: Sequence[list[Any]], aside: dict[int, Fields]) -> None:
        """Apply records to the schedule in their order. `aside`: states of messages that come later."""
        run: list[list[Any]] = []
        for record in [*records, [-1]]:
            if run and record[0] != run[0][0]:
                await self._restore_run(run[0][0], run, aside)
                run = []
            run.append(record)

    async def _restore_run(self, kind: int, run: Sequence[list[Any]], aside: dict[int, Fields]) -> None:
        if kind == AHEAD:
            since = self._wall() - self._ahead_ms
            await self._inside.put_ahead([_asked(each[2:]) for each in run if each[1] >= since])
            return
        states: list[Fields] = []
        if kind == STATE:
            states = [_fields(each[1:]) for each in run]
        elif kind == CLAIM:
            found = await self._inside.get([each[1] for each in run])
            for (_, id, claim, due_at, attempts, until, worker), there in zip(run, found, strict=True):
                expires_at = there[1][3] if there[0] == "found" else aside[id][3] if id in aside else None
                states.append((id, claim, due_at, expires_at, attempts, "firing", until, worker))
        else:
            states = [_fields(each[1]) for each in run]
            new = [
                (fields[0], each[2], fields[2], fields[3], each[3]) for fields, each in zip(states, run, strict=True)
            ]
            for reply in await self._inside.insert(new):
                if reply[0] not in {"inserted", "before"}:
                    raise StoreError(f"the schedule refuses a message of its log: {reply[0]}")
            states += [aside.pop(id) for id, *_ in new if id in aside]
        for first in range(0, len(states), PUT_AT_ONCE):
            some = states[first : first + PUT_AT_ONCE]
            for fields, reply in zip(some, await self._inside.put(some), strict=True):
                if reply[0] == "disk_full":
                    raise StoreError("the schedule has no room for the records of its log")
                if reply[0] == "refused" and len(aside) < ASIDE_MAX:
                    before = aside.get(fields[0])
                    if before is None or before[1] < fields[1]:
                        aside[fields[0]] = fields

    # --- shortening ---------------------------------------------------------------------------------------------

    async def _shorten(self) -> None:
        """Carry the known messages of the log's oldest records to its end, then drop those records. The log has at most
        twice as many records as messages are known, or `records_min`."""
        log = self._log
        assert log is not None
        begin = max(log.start, self._begin)  # a log may keep records that it was told to drop
        if log.end - begin <= max(self._records_min, 2 * self._known):
            return
        until, ids, asked = begin, list[int](), list[tuple[Any, ...]]()
        async for first, batch in log.read(begin):
            for record in map(msgspec.msgpack.decode, batch.records()):
                if record[0] == AHEAD:
                    asked.append(tuple(record))
                elif record[0] == MESSAGE:
                    ids.append(record[1][0])
            until = first + batch.count
            if until - begin >= CARRIED_MAX:
                break
        found = await self._inside.get([each[2] for each in asked])
        since = self._wall() - self._ahead_ms
        waits = [each for each, there in zip(asked, found, strict=True) if there[0] == "unknown" and each[1] >= since]
        whole = _whole(await self._inside.get(ids))
        await self._append([*whole, *waits])
        self.carried += len(whole)
        self._begin = until
        await log.truncate(until)

    # --- calls ----------------------------------------------------------------------------------------------------

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `Schedule`."""
        life = await self._is_whole()
        replies = await self._inside.insert(messages)
        records: list[tuple[Any, ...]] = []
        doubtful: list[int] = []
        for (id, topic, _, _, body), reply in zip(messages, replies, strict=True):
            if reply[0] == "inserted":
                records.append((MESSAGE, (*reply[1], 0), topic, body))
            elif reply[0] == "before":
                doubtful.append(id)
        if doubtful:
            records += _whole(await self._inside.get(doubtful))
        self._lives(life)
        await self._append(records)
        return replies

    async def insert_packed(self, messages: bytes) -> tuple[bytes, Mapping[int, int]]:
        """As `Schedule`."""
        return await inserted(self.insert, messages)

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Schedule`."""
        life = await self._is_whole()
        replies = await self._inside.change(changes)
        records: list[tuple[Any, ...]] = []
        doubtful: list[int] = []
        for (id, *_), reply in zip(changes, replies, strict=True):
            if reply[0] == "changed":
                records.append((STATE, *reply[1], 0))
            elif reply[0] == "ahead":
                records.append((AHEAD, self._wall(), id, *reply[1:]))
            elif reply[0] == "refused":
                doubtful.append(id)
        if doubtful:
            found = await self._inside.get(doubtful)
            records += [(STATE, *each[1], 0) for each in found if each[0] == "found"]
        self._lives(life)
        await self._append(records)
        return replies

    async def settle(self, results: bytes) -> bytes:
        """As `Schedule`."""
        return await settled(self.change, results)

    async def put(self, messages: Sequence[Fields]) -> list[Reply]:
        """As `Schedule`."""
        life = await self._is_whole()
        replies = await self._inside.put(messages)
        self._lives(life)
        await self._append([(STATE, *each) for each, reply in zip(messages, replies, strict=True) if reply[0] == "put"])
        return replies

    async def put_ahead(self, asked: Sequence[PendingChange]) -> list[Reply]:
        """As `Schedule`."""
        life = await self._is_whole()
        replies = await self._inside.put_ahead(asked)
        self._lives(life)
        now = self._wall()
        await self._append(
            [(AHEAD, now, *each) for each, reply in zip(asked, replies, strict=True) if reply[0] == "put"]
        )
        return replies

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `Schedule`."""
        await self._is_whole()
        return await self._inside.get(ids)

    async def find(
        self,
        topic: int | None,
        begin: int,
        end: int,
        states: Sequence[str],
        limit: int,
        after: tuple[int, int] | None = None,
    ) -> Reply:
        """As `Schedule`."""
        await self._is_whole()
        return await self._inside.find(topic, begin, end, states, limit, after)

    async def overdue(self) -> Overdue:
        """As `Schedule`."""
        return await self._inside.overdue()

    async def stats(self) -> dict[str, Any]:
        """As `Schedule`, with figures of the log."""
        assert self._log is not None
        said = await self._inside.stats()
        return {
            **said,
            "log_records": self._log.end - max(self._log.start, self._begin),
            "log_read": self.read,
            "log_carried": self.carried,
        }

    async def scrub(self) -> Scrubbed | None:
        """As `Schedule.scrub`; the log is left out: each record has its own checksum there."""
        await self._is_whole()
        return await self._inside.scrub()

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """As `Schedule`."""
        if not self.failure:
            self._inside.serve(topic, worker, lease_ms, attempts_max, credit)

    def leave(self, worker: int) -> None:
        """As `Schedule`."""
        if not self.failure:
            self._inside.leave(worker)

    def clock_steps(self) -> Sequence[int]:
        """As `Schedule`."""
        return self._inside.clock_steps()

    async def _is_whole(self) -> int:
        """Wait until the schedule is whole. Returns its life."""
        await self._whole.wait()
        if self.failure:
            raise StoreError(self.failure)
        return self._life

    def _lives(self, life: int) -> None:
        if life != self._life:
            raise StoreError("the schedule returned to an older state meanwhile")

    # --- fires ----------------------------------------------------------------------------------------------------

    def _on_fires(self, worker: int, fires: bytes) -> None:
        self._claims.append((worker, fires))
        if self._firing is None:
            self._firing = asyncio.create_task(self._fire())

    async def _fire(self) -> None:
        """Let claimed messages go; those that were claimed together go after one append."""
        try:
            while self._claims:
                some, self._claims = self._claims, []
                try:
                    await self._append(
                        [_claim(worker, each) for worker, fires in some for each in _FIRES.decode(fires)]
                    )
                except StoreError:  # it has failed; the claims run out
                    return
                for worker, fires in some:
                    self.on_fires(worker, fires)
        finally:
            self._firing = None


def _batches(records: Sequence[bytes]) -> list[Batch]:
    """Group records into as few batches as the log allows."""
    batches: list[Batch] = []
    some: list[bytes] = []
    length = 0
    for each in records:
        if some and length + len(each) + 4 > BATCH_BYTES_MAX:
            batches.append(Batch.of(some))
            some, length = [], 0
        some.append(each)
        length += len(each) + 4
    return [*batches, Batch.of(some)]


def _fields(record: Sequence[Any]) -> Fields:
    id, version, due_at, expires_at, attempts, state, at, worker = record
    return id, version, due_at, expires_at, attempts, state, at, worker


def _asked(record: Sequence[Any]) -> PendingChange:
    id, cancelled, at, by, *bound = record  # records of versions before 0.3 have exact times
    return id, cancelled, at, by, bound[0] if bound else "exact"


def _whole(found: Sequence[Reply]) -> list[tuple[Any, ...]]:
    return [(MESSAGE, (*each[1], 0), each[2], each[3]) for each in found if each[0] == "found"]


def _claim(worker: int, fire: Fire) -> tuple[Any, ...]:
    return CLAIM, fire.number, fire.claim, fire.due_at, fire.attempts, fire.until, worker

"""A node of inboxes: answers requests about them, writes what comes together, and tells of what is new.

Connects the store to callers, the writer, hints and mails. An answer about a change leaves once the change is durable.
It must not know SQL, HTTP or topics.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from muster.clock import now_ms
from muster_server.control.cluster.own_client import OwnClient
from muster_server.control.cluster.places import Places
from muster_server.plane import ways
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.database.errors import BadValue
from muster_server.plane.ownership.errors import Full, StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError, password, secret
from muster_server.systems.inbox.hints import Hints
from muster_server.systems.inbox.mails import Mails
from muster_server.systems.inbox.options import DAY_MS, InboxOptions, InboxSettings
from muster_server.systems.inbox.records import Limits, Store, Told
from muster_server.systems.inbox.shapes import (
    ALL,
    DATA_BYTES_MAX,
    ID,
    KIND,
    MARKED_MAX,
    PAGE_MAX,
    TEXT_CHARS_MAX,
    USERS_MAX,
    Broadcast,
    Changes,
    Choose,
    Chosen,
    Count,
    Counts,
    Done,
    Entry,
    Join,
    Mark,
    New,
    Noted,
    Notify,
    Numbered,
    Page,
    Read,
    Stats,
    Totals,
    Watch,
)
from muster_server.systems.inbox.writer import Busy, Writer

QUIET_S: Final = 1.0
"""Longest interval between two answers of a watch."""
WATCHES_MAX: Final = 1_000
CHANGES_MAX: Final = 1_000
"""Limit of changes that wait for a watch; one that is slower is ended, and its reader reads again."""
SWEEP_S: Final = 60.0
SWEEP_ROWS: Final = 5_000
AGAIN_S: Final = 1.0
UNREADABLE_SHOWN: Final = 20
"""Limit of unreadable rows in the status."""
A = TypeVar("A")
OUTCOMES: Final = ("new", "grown", "same", "off", "conflict")


class InboxNode:
    """The `plane.service.Service` of a node."""

    take_trust: Final = None

    def __init__(
        self, spec: Spec, settings: InboxSettings, context: Context, opened: Callable[[Limits], Store]
    ) -> None:
        """Raises `SpecError`."""
        assert spec.bind is not None
        options = msgspec.convert(settings.options, InboxOptions)
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._bind, self._log, self._options = spec.bind, context.log, options
        self._store = opened(limits(options))
        self._writer = Writer(self._store, self._told)
        places = Places(spec, context, settings.folder)
        self._client = OwnClient(settings.folder, spec, context, places)
        self._hints = Hints(self._client.opened, self._store.unread, context.log, pushes=settings.pushes)
        self._way: ways.Way | None = None
        self._mails: Mails | None = None
        if options.mail_topic and (path := ways.outlet()):
            self._way = ways.made(path, spec, context, settings.folder)
            self._mails = Mails(self._store, self._way, options.mail_topic, context.log)
        self._watches: set[asyncio.Queue[Changes | None]] = set()
        self._noted = dict.fromkeys(OUTCOMES, 0)
        self._broadcasts = self._reads = self._marks = self._failed = self._refused = 0
        self._error = ""
        """Why the store cannot be used; empty: it can."""
        self._server = Server(
            key_of(secret(spec.cluster_secret_file, 32)),
            {
                Notify: self._notify,
                Broadcast: self._broadcast,
                Read: self._read,
                Count: self._count,
                Mark: self._mark,
                Join: self._join,
                Choose: self._choose,
                Watch: self._watch,
                Stats: self._stats,
            },
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set."""
        await self._server.start(*self._bind)
        loops = [self._writer.run(), self._hints.run(), self._sweep()]
        if self._mails is not None:
            loops.append(self._mails.run())
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (stop.wait(), *loops)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    while self._writer.waiting and not tasks[1].done():  # noqa: ASYNC110 - it is another task's queue
                        await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.stop()
            await self._client.close()
            if self._way is not None:
                await self._way.close()
            await self._store.close()
            self.closed = True
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _sweep(self) -> None:
        """Open the store, and drop what is old, until cancelled."""
        options = self._options
        while True:
            try:
                dropped = await self._store.sweep(
                    now_ms(), options.keep_days * DAY_MS, options.ids_days * DAY_MS, SWEEP_ROWS
                )
            except StoreError as error:
                self._lost(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._found()
            await asyncio.sleep(AGAIN_S if dropped == SWEEP_ROWS else SWEEP_S)

    def _found(self) -> None:
        if self._error:
            self._log.info("the database answers again")
            self._error = ""
        if not self.ready:
            self.ready = True
            self.on_ready(True)

    def _lost(self, error: StoreError) -> None:
        if str(error) != self._error:
            self._log.warning("the database does not answer", cause=str(error))
            self._error = str(error)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _notify(self, asked: Notify) -> list[Noted]:
        """Raises `CallError`: `question`, `store`, `busy`."""
        check(asked.new)
        check_users(asked.users)
        try:
            said = await self._writer.write([(user, asked.new) for user in asked.users])
        except Busy as error:
            self._refused += len(asked.users)
            raise CallError("busy", str(error)) from None
        except BadValue as error:
            raise CallError("question", str(error)) from None
        except StoreError as error:
            raise self._failure(error) from None
        for each in said:
            self._noted[each.outcome] += 1
        return said

    def _told(self, told: Sequence[Told]) -> None:
        """Tell of entries that are durable now."""
        if not told:
            return
        for each in told:
            self._hints.entry(each)
        self._tell(Changes(users=list({each.user for each in told})))

    async def _broadcast(self, asked: Broadcast) -> Numbered:
        now = now_ms()
        check(asked.new)
        if asked.until <= now:
            raise CallError("question", "the broadcast ends before it begins: give a later `until`")
        said = await self._kept(self._store.broadcast(asked, now))
        if said.outcome == "new":
            self._broadcasts += 1
            new = asked.new
            entry = Entry(f"b{said.number}", new.kind, "", new.actor, 1, now, new.data, False, asked.audience)
            self._hints.broadcast(said.number, entry)
            self._tell(Changes(broadcasts=[(said.number, entry)]))
        return said

    async def _read(self, asked: Read) -> Page:
        if not 1 <= asked.limit <= PAGE_MAX:
            raise CallError("question", f"invalid limit of a page: {asked.limit} (expected 1 to {PAGE_MAX})")
        self._reads += 1
        return await self._kept(self._store.read(asked, now_ms()))

    async def _count(self, asked: Count) -> Counts:
        self._reads += 1
        return await self._kept(self._store.count(asked, now_ms()))

    async def _mark(self, asked: Mark) -> Done:
        if len(asked.entries) > MARKED_MAX:
            raise CallError("question", f"too many entries: {len(asked.entries)} (limit {MARKED_MAX})")
        self._marks += 1
        return await self._kept(self._store.mark(asked, now_ms()))

    async def _join(self, asked: Join) -> Done:
        check_users(asked.users)
        if asked.leave and asked.audience == ALL:
            raise CallError(
                "question", f"users cannot leave the audience {ALL}; they can turn kinds off in their settings"
            )
        done = await self._kept(self._store.join(asked))
        self._tell(Changes(users=asked.users))
        return done

    async def _choose(self, asked: Choose) -> Chosen:
        chosen = await self._kept(self._store.choose(asked))
        if asked.kinds is not None:
            self._tell(Changes(users=[asked.user]))
        return chosen

    async def _stats(self, _: Stats) -> Totals:
        return await self._kept(self._store.totals(now_ms()))

    async def _watch(self, _: Watch) -> AsyncIterator[Changes]:
        if len(self._watches) >= WATCHES_MAX:
            raise CallError("busy", f"too many watches (limit {WATCHES_MAX})")
        queue: asyncio.Queue[Changes | None] = asyncio.Queue(CHANGES_MAX)
        self._watches.add(queue)
        try:
            yield Changes()
            while True:
                try:
                    async with asyncio.timeout(QUIET_S):
                        told = await queue.get()
                except TimeoutError:
                    told = Changes()
                if told is None:
                    raise CallError("slow", "the reader of this watch is too slow; read again")
                yield told
        finally:
            self._watches.discard(queue)

    def _tell(self, told: Changes) -> None:
        for queue in list(self._watches):
            if queue.full():
                self._watches.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(told)

    async def _kept(self, work: Awaitable[A]) -> A:
        """Raises `CallError`: `store`, `full`."""
        try:
            return await work
        except Full as error:
            self._refused += 1
            raise CallError("full", str(error)) from None
        except BadValue as error:
            raise CallError("question", str(error)) from None
        except StoreError as error:
            raise self._failure(error) from None

    def _failure(self, error: StoreError) -> CallError:
        self._failed += 1
        self._lost(error)
        return CallError("store", str(error))

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state, and what waits."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        said: dict[str, Any] = {"state": state, "waiting": self._writer.waiting, "hints_waiting": self._hints.waiting}
        said |= {"watches": len(self._watches), "entries": sum(self._noted.values())}
        if self._error:
            said["store"] = self._error
        if self._mails is not None and self._mails.error:
            said["mails"] = self._mails.error
        if rows := self._store.unreadable:
            said["unreadable"] = len(rows)
            said["unreadable_rows"] = dict(islice(rows.items(), UNREADABLE_SHOWN))
        return said

    def counters(self) -> list[Figure]:
        """Entries, reads, hints, mails."""
        text = "Entries for users, by outcome; new and grown ones are durable"
        return [
            *((f'inbox_entries{{outcome="{name}"}}', text, float(count)) for name, count in self._noted.items()),
            ("inbox_broadcasts", "Broadcasts, each one row", float(self._broadcasts)),
            ("inbox_reads", "Pages and counts that were read", float(self._reads)),
            ("inbox_marks", "Marks of read or seen entries", float(self._marks)),
            (
                "inbox_dropped",
                "Entries dropped: the oldest beyond a user's limit, and old ones",
                float(self._store.dropped),
            ),
            ("inbox_refused", "Entries and other requests refused, as a limit is reached", float(self._refused)),
            ("inbox_store_failures", "Requests that failed, as the database did not answer", float(self._failed)),
            ("inbox_strangers", "Connections that did not prove the cluster's secret", float(self._server.refused)),
            *self._hints.counters(),
            *(
                self._mails.counters()
                if self._mails is not None
                else [("inbox_mails", "Mails handed over to their topic", 0.0)]
            ),
        ]

    def gauges(self) -> list[Figure]:
        """Counts of waiting work."""
        return [
            ("inbox_waiting", "Entries that wait for the database", float(self._writer.waiting)),
            ("inbox_hints_waiting", "Hints that wait", float(self._hints.waiting)),
            ("inbox_watches", "Watches of HTTP faces", float(len(self._watches))),
            (
                "inbox_unreadable",
                "Rows left out because they are damaged or were written wrongly, at most 1000; the status lists some",
                float(len(self._store.unreadable)),
            ),
            ("inbox_mails_stuck", "1 while mails wait because their topic does not take them", float(self._stuck())),
        ]

    def _stuck(self) -> bool:
        return self._mails is not None and bool(self._mails.error)

    def addresses(self) -> list[tuple[str, int]]:
        """The address that it listens on."""
        return [self._bind]

    def take(self, settings: Any) -> None:
        """Does nothing: no setting can change while it runs."""


def check_users(users: Sequence[int]) -> None:
    """Raises `CallError` for too many users, and for numbers that no user has."""
    if not 1 <= len(users) <= USERS_MAX:
        raise CallError("question", f"invalid number of users: {len(users)} (expected 1 to {USERS_MAX})")
    if wrong := next((user for user in users if not 0 <= user < 1 << 64), None):
        raise CallError("question", f"invalid user {wrong} (expected a number from 0 to 2^64-1)")


def check(new: New) -> None:
    """Raises `CallError` for an entry that no store can take."""
    for name, text, pattern in (("kind", new.kind, KIND), ("id", new.id, f"(?:{ID})?")):
        if not re.fullmatch(pattern, text, re.ASCII):
            raise CallError("question", f"invalid {name} {text!a:.80} (expected {pattern})")
    for name, text in (("group", new.group), ("actor", new.actor)):
        if len(text) > TEXT_CHARS_MAX or not text.isprintable():
            raise CallError(
                "question", f"invalid {name} {text!a:.80} (expected at most {TEXT_CHARS_MAX} printable characters)"
            )
    if b"\n" in new.data or b"\r" in new.data:
        raise CallError("question", "data of an entry has several lines (expected JSON in one line)")
    if len(new.data) > DATA_BYTES_MAX:
        raise CallError("question", f"data of an entry too long: {len(new.data)} bytes (limit {DATA_BYTES_MAX})")


def limits(options: InboxOptions) -> Limits:
    """The options that the store needs."""
    return Limits(
        entries_max=options.entries_max,
        broadcasts_max=options.broadcasts_max,
        required=frozenset(filter(None, options.required.split(","))),
        mail=options.mail,
        mails=bool(options.mail_topic),
        mail_wait_ms=options.mail_wait_s * 1_000,
        daily_ms=options.mail_daily_minute * 60_000,
    )


def build(spec: Spec, settings: InboxSettings, context: Context) -> InboxNode:
    """Make a node. Raises `SpecError`. The library of the store is imported here, and only in this process."""
    from muster_server.plane.database.url import location
    from muster_server.systems.inbox.database.store import SqlStore

    try:
        where = location(settings.database)
        word = password(settings.database_password_file)
    except (ImportError, ValueError) as error:
        raise SpecError(f"database: {error}") from None
    where = where.identified(word) if word else where
    return InboxNode(spec, settings, context, lambda limits: SqlStore(where, settings.instance, limits))

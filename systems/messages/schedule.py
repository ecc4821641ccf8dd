"""The durable schedule as the event loop uses it: one protocol, and the store in a folder of this machine.

Owns the matching of requests and replies. It must not know topics' settings, callbacks, or the meaning of a body.
"""

import asyncio
import itertools
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from muster_server import _engines
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.shapes import Result, Scrubbed

Reply = tuple[Any, ...]
"""A reply of `_engines.ScheduleKeeper`, without the number."""
NewMessage = tuple[int, int, int, int | None, bytes]
"""Id, topic, due_at, expires_at, body."""
NewChange = tuple[int, str, int | None, int | None]
"""Id, verb, version or claim, time."""
Fields = tuple[int, int, int, int | None, int, str, int | None, int]
"""A message of a reply, and the worker that holds it (0: none)."""
PendingChange = tuple[int, bool, int | None, int, str]
"""Id, and the change that waits for its message: whether cancelled, its due time (None: its own), ms to add, and
whether that time is `exact`, or applies only if it is `later` or `sooner` than the message's own."""
Overdue = Mapping[int, tuple[int, int]]
"""By topic: how many messages are due for at least a second without an answer to their first attempt, or to their due
retry; and when the oldest was due."""
OnFires = Callable[[int, bytes], None]
"""Called with a worker, and an array of `Fire` in MessagePack: messages that were claimed for it."""

LISTS_MAX: Final = 4
"""Limit of concurrent lists of one schedule; `find` answers a further one with `busy`."""
MARK: Final = "mark"
AGAIN_S: Final = 0.02
"""Seconds after which a store that still reads its index is asked again."""
SAID: Final = {"delivered": b"d", "retrying": b"r", "buried": b"b", "released": b"l"}
"""The outcome of a result, by its step. `x`: refused, its claim is not the current one. `n`: not now, report it again."""
WORKERS_KEPT: Final = 4_096
"""Limit of workers that left whose fires may still be in transit."""


class Schedule(Protocol):
    """A store of messages by due time. Every positive answer is durable (I-6). Call `open` once and `close` once."""

    failed: asyncio.Event
    """Set when it accepts nothing more; `failure` has the reason."""
    failure: str
    on_fires: OnFires

    async def open(self) -> None:
        """Open or create it. Raises `BlockingIOError` if another process has it, and `OSError`."""

    async def close(self) -> None:
        """Close it. Every waiting call raises `StoreError`."""

    async def marked(self) -> tuple[int, int] | None:
        """The last value of `mark`, or an earlier one after a return to an older state; None: there is none."""

    async def mark(self, place: int, epoch: int) -> None:
        """Store with the messages the offset of a log up to which they are here, and its owner at that time."""

    async def start_anew(self) -> bool:
        """Start without messages, if no other center has had this schedule meanwhile. It is open before and after."""

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """`inserted` or `before`, the message; or `refused`, `disk_full`, `body_too_long`."""

    async def insert_packed(self, messages: bytes) -> tuple[bytes, Mapping[int, int]]:
        """The same for an array of `NewMessage` in MessagePack: returns an array of replies, and the number of inserted
        messages by topic."""

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """`changed`, the message, step; `ahead`, all changes that wait for it; or `refused`, reason, value;
        `disk_full`."""

    async def settle(self, results: bytes) -> bytes:
        """Take an array of `Result` in MessagePack. Returns one byte for each, see `SAID`."""

    async def put(self, messages: Sequence[Fields]) -> list[Reply]:
        """Apply states of messages from another record. `put`, the message; `before`: not newer (I-2); or `refused`."""

    async def put_ahead(self, asked: Sequence[PendingChange]) -> list[Reply]:
        """Apply waiting changes from another record. `put`; `before`: the message is here."""

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """`found`, the message, topic, body; or `unknown`."""

    async def find(
        self,
        topic: int | None,
        begin: int,
        end: int,
        states: Sequence[str],
        limit: int,
        after: tuple[int, int] | None = None,
    ) -> Reply:
        """`listed`, messages with their topics, times of all, whether cut; or `busy`. `after`: the time and id of the
        last message of the previous page."""

    async def overdue(self) -> Overdue:
        """The overdue messages, as of some seconds ago."""

    async def stats(self) -> dict[str, Any]:
        """Figures of the store."""

    async def scrub(self) -> Scrubbed | None:
        """Check that all its data agree, beside all other work: reads everything. None: a scrub is in progress."""

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """Let a worker take `credit` more due messages of a topic."""

    def leave(self, worker: int) -> None:
        """Void the credits of a worker."""

    def clock_steps(self) -> Sequence[int]:
        """Milliseconds by which the wall clock was set, each step once."""


def place(message: Sequence[Any]) -> tuple[int, int]:
    """The time by which a list sorts a message, and its number: the `after` of the next page."""
    number, _, due_at, _, _, state, time, *_ = message
    return (time if state == "retry" else due_at), number


async def inserted(
    insert: Callable[[Sequence[NewMessage]], Awaitable[list[Reply]]], messages: bytes
) -> tuple[bytes, Mapping[int, int]]:
    """`Schedule.insert_packed` for a store in Python, by its `insert`."""
    given = msgspec.msgpack.decode(messages, type=list[NewMessage])
    return packed(given, await insert(given))


def packed(messages: Sequence[NewMessage], replies: Sequence[Reply]) -> tuple[bytes, Mapping[int, int]]:
    """An array of the replies, and the number of inserted messages by topic."""
    counts = Counter(each[1] for each, reply in zip(messages, replies, strict=True) if reply[0] == "inserted")
    return msgspec.msgpack.encode(replies), counts


async def settled(change: Callable[[Sequence[NewChange]], Awaitable[list[Reply]]], results: bytes) -> bytes:
    """`Schedule.settle` for a store in Python, by its `change`."""
    told = msgspec.msgpack.decode(results, type=list[Result])
    replies = await change([(each.number, each.verb, each.claim, each.next) for each in told])
    return b"".join(map(_said, replies))


def _said(reply: Reply) -> bytes:
    if reply[0] == "changed":
        return SAID[reply[2]]
    return b"n" if reply[0] == "disk_full" else b"x"


class _Batch:
    """Requests that are answered together."""

    def __init__(self, count: int, done: "asyncio.Future[list[Reply]]") -> None:
        self.replies: list[Reply] = [()] * count
        self.left, self.done = count, done

    def take(self, place: int, reply: Reply) -> None:
        self.replies[place] = reply
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.replies)


class EmbeddedSchedule:
    """The schedule in a folder, run by the engine's own thread."""

    def __init__(self, folder: Path, on_fires: OnFires, *, segment_bytes: int, **settings: int) -> None:
        self._folder, self.on_fires = folder, on_fires
        self._segment_bytes, self._settings = segment_bytes, msgspec.json.encode(settings)
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[_Batch, int]] = {}
        self._number_of: dict[int, int] = {}
        """For each worker, the number of all its fires."""
        self._worker_of: dict[int, int] = {}
        self._steps: list[int] = []
        self._keeper: _engines.ScheduleKeeper | None = None
        self.failed = asyncio.Event()
        self.failure = ""

    async def open(self) -> None:
        """As `Schedule`; reads what is due soon."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._keeper = _engines.ScheduleKeeper(
                self._settings, path=str(self._folder), segment_bytes=self._segment_bytes
            )
        except BlockingIOError:  # another center has it open
            raise
        except OSError as error:
            raise OSError(f"{self._folder}: {error}") from None
        asyncio.get_running_loop().add_reader(self._keeper.fd(), self._take)

    async def close(self) -> None:
        """As `Schedule`; makes a checkpoint, and blocks until it is made."""
        if self._keeper is not None:
            asyncio.get_running_loop().remove_reader(self._keeper.fd())
            self._keeper.close()
            self._keeper = None
        self._fail("closed")

    async def marked(self) -> tuple[int, int] | None:
        """As `Schedule`."""
        try:
            place, epoch = (self._folder / MARK).read_text().split()
            return int(place), int(epoch)
        except FileNotFoundError:
            return None
        except ValueError:  # the machine crashed while it was written
            return 0, -1

    async def start_anew(self) -> bool:
        """As `Schedule`. The former folder stays beside it."""
        assert self._keeper is not None
        asyncio.get_running_loop().remove_reader(self._keeper.fd())
        self._keeper.close()
        beside = self._folder.with_name(f"{self._folder.name}-former")
        await asyncio.to_thread(shutil.rmtree, beside, ignore_errors=True)
        self._folder.rename(beside)
        await self.open()
        return True

    async def mark(self, place: int, epoch: int) -> None:
        """As `Schedule.mark`. It is older than the messages, never newer: they are durable before it is called."""
        beside = self._folder / f"{MARK}.new"
        beside.write_text(f"{place} {epoch}\n")
        beside.replace(self._folder / MARK)

    @property
    def asked(self) -> int:
        """Number of requests without an answer."""
        return len(self._asked)

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled(messages, lambda keeper, numbered: keeper.insert(numbered))

    async def insert_packed(self, messages: bytes) -> tuple[bytes, Mapping[int, int]]:
        """As `Schedule`."""
        reply = await self._one(lambda keeper, number: keeper.insert_packed(number, messages))
        told, counts, again = reply[1:]
        if not again:
            return told, counts
        # Some may exist: the store still reads its index.
        replies = msgspec.msgpack.decode(told, type=list[Reply])
        places = [place for place, reply in enumerate(replies) if reply[0] == "rebuilding"]
        given = msgspec.msgpack.decode(messages, type=list[NewMessage])
        for place, reply in zip(places, await self.insert([given[place] for place in places]), strict=True):
            replies[place] = reply
        return packed(given, replies)

    async def settle(self, results: bytes) -> bytes:
        """As `Schedule`."""
        return bytes((await self._one(lambda keeper, number: keeper.settle(number, results)))[1])

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled(changes, lambda keeper, numbered: keeper.change(numbered))

    async def put(self, messages: Sequence[Fields]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled([(each,) for each in messages], lambda keeper, numbered: keeper.put(numbered))

    async def put_ahead(self, asked: Sequence[PendingChange]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled([(each,) for each in asked], lambda keeper, numbered: keeper.put_ahead(numbered))

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled([(each,) for each in ids], lambda keeper, numbered: keeper.get(numbered))

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
        return await self._one(lambda keeper, number: keeper.find(number, topic, begin, end, states, limit, after))

    async def overdue(self) -> Overdue:
        """As `Schedule.overdue`: a search of the messages in memory runs all the time."""
        _, found = await self._one(lambda keeper, number: keeper.overdue(number))
        return {topic: (count, oldest) for topic, count, oldest in found}

    async def stats(self) -> dict[str, Any]:
        """As `Schedule`."""
        figures: dict[str, Any] = (await self._one(lambda keeper, number: keeper.stats(number)))[1]
        return figures

    async def scrub(self) -> Scrubbed | None:
        """As `Schedule.scrub`: checksums of all operations and bodies, counts of each hour, and the index, in both
        directions."""
        while True:
            reply = await self._one(lambda keeper, number: keeper.scrub(number))
            if reply[0] != "rebuilding":
                return None if reply[0] == "busy" else Scrubbed(*reply[1:])
            await asyncio.sleep(AGAIN_S)

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """As `Schedule`."""
        number = self._number_of.get(worker)
        if number is None:
            number = self._number_of[worker] = next(self._numbers)
            self._worker_of[number] = worker
            if len(self._worker_of) > WORKERS_KEPT:
                del self._worker_of[next(iter(self._worker_of))]
        self._whole().serve(number, topic, worker, lease_ms, attempts_max, credit)

    def leave(self, worker: int) -> None:
        """As `Schedule`."""
        self._whole().leave(worker)
        self._number_of.pop(worker, None)  # its fires may still be in transit

    def clock_steps(self) -> Sequence[int]:
        """As `Schedule`."""
        steps, self._steps = self._steps, []
        return steps

    def _whole(self) -> _engines.ScheduleKeeper:
        if self._keeper is None or self.failure:
            raise StoreError(self.failure or "not open")
        return self._keeper

    async def _settled(
        self, asked: Sequence[tuple[Any, ...]], submit: Callable[[_engines.ScheduleKeeper, list[Any]], None]
    ) -> list[Reply]:
        """Ask, and ask again for entries that the store did not know yet."""
        replies = await self._once(asked, submit)
        while waiting := [place for place, reply in enumerate(replies) if reply[0] == "rebuilding"]:
            await asyncio.sleep(AGAIN_S)
            again = await self._once([asked[place] for place in waiting], submit)
            for place, reply in zip(waiting, again, strict=True):
                replies[place] = reply
        return replies

    async def _once(
        self, asked: Sequence[tuple[Any, ...]], submit: Callable[[_engines.ScheduleKeeper, list[Any]], None]
    ) -> list[Reply]:
        if not asked:
            return []
        keeper = self._whole()
        batch = _Batch(len(asked), asyncio.get_running_loop().create_future())
        numbered = [(next(self._numbers), *each) for each in asked]
        submit(keeper, numbered)
        self._asked.update((each[0], (batch, place)) for place, each in enumerate(numbered))
        replies = await batch.done
        if any(reply[0] == "failed" for reply in replies):
            raise StoreError(self.failure or "the store failed")
        return replies

    async def _one(self, submit: Callable[[_engines.ScheduleKeeper, int], None]) -> Reply:
        """Ask one question that has one answer."""
        keeper = self._whole()
        number = next(self._numbers)
        batch = _Batch(1, asyncio.get_running_loop().create_future())
        submit(keeper, number)
        self._asked[number] = batch, 0
        (reply,) = await batch.done
        if reply[0] == "failed":
            raise StoreError(self.failure or "the store failed")
        return reply

    def _take(self) -> None:
        assert self._keeper is not None
        try:
            replies = self._keeper.take()
        except OSError as error:
            self._fail(str(error))
            return
        asked, workers = self._asked, self._worker_of
        for number, *reply in replies:
            found = asked.pop(number, None)
            if found is not None:
                found[0].take(found[1], tuple(reply))
            elif number in workers:
                self.on_fires(workers[number], reply[1])
        self._steps += self._keeper.clock_steps()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.failed.set()
        for batch, _ in self._asked.values():
            if not batch.done.done():
                batch.done.set_exception(StoreError(why))
        self._asked.clear()

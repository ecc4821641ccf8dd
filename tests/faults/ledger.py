"""The whole account of some rooms: what was acknowledged where, what each member received, which gaps it was told.

Owns members and publishers, through the public library only, and the rules that hold for them, written as plain sets.
Every payload is unique: number of the publisher, its own number, when it was published, and padding made of both.
"""

import asyncio
import contextlib
import gc
import math
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import muster
from tests.slowness import Slowness
from tests.waiting import PATIENT_S

HEAD: Final = struct.Struct("<IQQ")
PADDING: Final = bytes(range(256)) * 4
AHEAD_MAX: Final = 1_000
UNANSWERED_S: Final = 10.0
TURN_S: Final = 0.05
CATCH_UP: Final = 2.0
"""Times the rate: so fast what could not be sent in time is made up for."""
LATE_S: Final = 1.0
"""After the end what was due before it may still be sent and answered."""
RATE_KEPT: Final = 0.99

Stream = muster.Stream
Key = tuple[int, int]
"""Publisher and its number: names a content."""


def content(publisher: int, number: int, size: int) -> bytes:
    """A payload that nobody else sends."""
    first = (publisher + number) & 0xFF
    return HEAD.pack(publisher, number, time.monotonic_ns()) + PADDING[first : first + max(0, size - HEAD.size)]


def read(data: bytes) -> tuple[Key, int]:
    """Who sent it and when (monotonic ns). Raises `AssertionError` when a byte is not as it was sent."""
    publisher, number, sent = HEAD.unpack_from(data)
    padding = data[HEAD.size :]
    first = (publisher + number) & 0xFF
    assert padding == PADDING[first : first + len(padding)], f"{publisher}/{number} is not what was sent"
    return (publisher, number), sent


@dataclass(slots=True)
class Membership:
    """One member in one room."""

    name: str
    room: str
    gateway: int = 0
    """Which of those that were named it is at."""
    items: list[tuple[Stream, int, Key]] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)
    gaps: list[tuple[Stream, int, int | None, str]] = field(default_factory=list)
    newest_ns: int = 0
    """When the newest message that was received had been published."""
    newest_at: float = 0.0
    late_ns: int = 0
    """The longest that a message took."""
    firsts: dict[int, float] = field(default_factory=dict)
    """Per mark (a time in ns): when the first message published after it was received."""
    marks: list[int] = field(default_factory=list)

    def take(self, batch: Sequence[muster.Item]) -> None:
        """Account for what was read."""
        now = time.monotonic()
        for item in batch:
            if isinstance(item, muster.Gap):
                self.gaps.append((item.stream, item.first, item.last, item.reason))
                continue
            assert isinstance(item, muster.Message)
            key, sent = read(item.data)
            position = item.position
            self.items.append((position.stream, position.offset, key))
            self.received_ns.append(int(now * 1e9))
            self.late_ns = max(self.late_ns, int(now * 1e9) - sent)
            if sent > self.newest_ns:
                self.newest_ns, self.newest_at = sent, now
            while self.marks and sent > self.marks[0]:
                self.firsts[self.marks.pop(0)] = now

    def covered(self) -> dict[Stream, list[tuple[int, float]]]:
        """The gaps by stream."""
        found: dict[Stream, list[tuple[int, float]]] = {}
        for stream, first, last, _ in self.gaps:
            found.setdefault(stream, []).append((first, float("inf") if last is None else last))
        return found


@dataclass(slots=True)
class Ledger:
    """Rooms, their members, their publishers, and everything that happened."""

    rooms: Sequence[str]
    seats: list[Membership] = field(default_factory=list)
    acknowledged: dict[str, dict[Key, tuple[Stream, int] | None]] = field(default_factory=dict)
    """Per room what was acknowledged, and where; None where the answer that said so was lost."""
    answered_ns: dict[Key, int] = field(default_factory=dict)
    """When the acknowledgement came: the message had been numbered before."""
    failed_ns: list[tuple[int, int]] = field(default_factory=list)
    """From when to when an owner failed: what it had not acknowledged may come late, though none heard of its stream."""
    sent: dict[str, set[Key]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)
    clients: list[muster.Client] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    rate: float = 0.0
    asked: int = 0
    """Messages that `rate` made while it was published steadily."""
    ended_ns: int = 0
    slow: Slowness = field(default_factory=Slowness)
    """Since the last steady publishing began."""

    # --- running ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def members(
        self,
        instance: Any,
        count: int,
        gateways: Sequence[Any] | None = None,
        token: bytes | None = None,
        **options: Any,
    ) -> AsyncIterator[None]:
        """`count` members, each in every room, while the block lasts; of `gateways` each takes the next one.

        Without an instance they have no more than that and the token.
        """
        async with contextlib.AsyncExitStack() as stack:
            tasks: list[asyncio.Task[None]] = []
            for number in range(count):
                at = number % len(gateways) if gateways else 0
                mine = [gateways[at]] if gateways else None
                opened = muster.connect(instance, gateways=mine, proxies=[], token=token, timeout=PATIENT_S)
                client = await stack.enter_async_context(opened)
                self.clients.append(client)
                for name in self.rooms:
                    room = await stack.enter_async_context(client.join(name, **options))
                    seat = Membership(f"member {number}", name, at)
                    self.seats.append(seat)
                    tasks.append(asyncio.create_task(self._read(room, seat)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, room: muster.Room, seat: Membership) -> None:
        try:
            async for batch in room.batches():
                seat.take(batch)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.errors.append(error)

    async def publish_all(self, client: muster.Client, publisher: int, per_room: int, size: int) -> None:
        """Publish to every room as fast as credit allows, never far ahead of a member: who reads too slowly for a live room
        rightly gets gaps. Wait until all is acknowledged, positions unasked."""
        for room in self.rooms:
            self.sent.setdefault(room, set())

        async def one(room: str) -> None:
            sent, seats = self.sent[room], [seat for seat in self.seats if seat.room == room]
            for number in range(per_room):
                while number % 100 == 0 and any(len(seat.items) < number - AHEAD_MAX for seat in seats):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                data = content(publisher, number, size)
                while not client.publish_nowait(room, data):
                    await client.writable(room)
                sent.add((publisher, number))

        await asyncio.gather(*(one(room) for room in self.rooms))
        await client.flush(PATIENT_S)

    async def publish_steadily(
        self, client: muster.Client, publisher: int, size: int, ahead: int | None = None
    ) -> None:
        """`rate` messages a second over all rooms until `stop`, each asked for its position.

        What was not sent while this loop was held up is made up for little by little: at once it is more than anybody has
        credit for. `ahead`: no more while a member has so many acknowledged messages of its room still to come, so that on a
        machine that is too slow for the rate no message grows so old that a live room rightly skips it.
        """
        pending: set[asyncio.Task[None]] = set()
        began, ended, number = time.monotonic(), None, 0
        turned, self.slow = began, Slowness()

        async def one(room: str, key: Key, data: bytes) -> None:
            try:
                position = await client.publish(room, data, timeout=PATIENT_S)
                where = None if position is None else (position.stream, position.offset)
                self.acknowledged.setdefault(room, {})[key] = where
                self.answered_ns[key] = time.monotonic_ns()
            except BaseException as error:
                self.errors.append(error)

        while True:
            now = time.monotonic()
            if ended is None and self.stop.is_set():
                ended, self.ended_ns = now, time.monotonic_ns()
            due = int(((now if ended is None else ended) - began) * self.rate)
            if ended is not None and (number >= due or now > ended + LATE_S):
                break
            most = number + math.ceil(CATCH_UP * self.rate * min(now - turned, TURN_S))
            turned = now
            if ahead is not None and self.behind() > ahead:
                most = number
            while number < min(due, most):
                room, key = self.rooms[number % len(self.rooms)], (publisher, number)
                self.sent.setdefault(room, set()).add(key)
                task = asyncio.create_task(one(room, key, content(publisher, number, size)))
                pending.add(task)
                task.add_done_callback(pending.discard)
                number += 1
                if len(pending) > max(20_000, UNANSWERED_S * self.rate):
                    raise AssertionError(f"{len(pending):,} messages wait for an answer")
            await asyncio.sleep(0.005)
        self.asked += due
        await asyncio.gather(*pending)

    def behind(self) -> int:
        """The most acknowledged messages of a room that a member has not received."""
        counts = {room: len(known) for room, known in self.acknowledged.items()}
        return max((counts.get(seat.room, 0) - len(seat.items) for seat in self.seats), default=0)

    def mark(self) -> int:
        """From now on: note when each member receives the first message that is published later."""
        gc.freeze()  # millions of items are kept: a collection that looks at them all holds every reader up for seconds
        now = time.monotonic_ns()
        for seat in self.seats:
            seat.marks.append(now)
        return now

    def reached(self, mark: int) -> bool:
        """Whether every member has received a message published after the mark."""
        return all(mark in seat.firsts for seat in self.seats)

    def first_after(self, mark: int) -> list[float]:
        """When that was, per member and room, on the monotonic clock."""
        return [seat.firsts[mark] for seat in self.seats]

    def age_s(self, seat: Membership) -> float:
        """The longest that a message took from its acknowledgement to this member, in seconds."""
        answered = self.answered_ns
        ages = (at - answered.get(key, at) for at, (_, _, key) in zip(seat.received_ns, seat.items, strict=True))
        return max(ages, default=0) / 1e9

    def gaps(self, gateway: int | None = None) -> Counter[str]:
        """Gaps that members, those at one gateway or all, were told of, by reason."""
        seats = [seat for seat in self.seats if gateway in {None, seat.gateway}]
        return Counter(reason for seat in seats for _, _, _, reason in seat.gaps)

    def repeats(self) -> int:
        """Messages that owners numbered again, as each member that was there all the time counts at least: a message whose
        acknowledgement was under way when its room moved is numbered by both owners, once by each."""
        return min(client.stats()["repeats"] for client in self.clients)

    def load(self) -> dict[str, float]:
        """How many messages were acknowledged, and how many a second."""
        took_s = (max(self.answered_ns.values()) - min(self.answered_ns.values())) / 1e9
        return {"messages": len(self.answered_ns), "per_s": round(len(self.answered_ns) / took_s)}

    async def settle(self) -> None:
        """Wait until every member has received, or been told that it will not, all that was acknowledged."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENT_S):
                while any(True for _ in self.missing()):  # noqa: ASYNC110 - it happens in the servers
                    await asyncio.sleep(0.1)

    # --- the rules --------------------------------------------------------------------------------------------------

    def missing(self) -> Iterator[str]:
        """Acknowledged, neither received nor announced as missing."""
        for seat in self.seats:
            got = {key for _, _, key in seat.items}
            gaps = seat.covered()
            for key, where in self.acknowledged.get(seat.room, {}).items():
                if key in got:
                    continue
                if where is None:
                    # Nobody knows where it is: only a member that was told of no gap at all must have it.
                    if not seat.gaps:
                        yield f"{seat.name} in {seat.room}: {key} (place unknown) never came, and no gap was announced"
                    continue
                stream, offset = where
                if not any(first <= offset <= last for first, last in gaps.get(stream, [])):
                    yield f"{seat.name} in {seat.room}: {key} at {stream}:{offset} neither came nor was announced"

    def violations(self) -> Iterator[str]:
        """Everything that breaks a promise of the protocol, but for what is missing."""
        for error in self.errors:
            yield f"a call failed: {error!r}"
        for seat in self.seats:
            where = f"{seat.name} in {seat.room}"
            known, sent = self.acknowledged.get(seat.room, {}), self.sent.get(seat.room, set())
            gaps, highest = seat.covered(), dict[Stream, int]()
            for stream, offset, key in seat.items:
                if offset <= highest.get(stream, 0):
                    yield f"{where}: {stream}:{offset} after {highest[stream]}: twice or out of order"
                highest[stream] = offset
                if key not in sent:
                    yield f"{where}: {key} was never sent to this room"
                position = known.get(key)
                if position is not None and position[0] == stream and position[1] != offset:
                    yield f"{where}: {key} came at {stream}:{offset}, acknowledged at {position}"
                if any(first <= offset <= last for first, last in gaps.get(stream, [])):
                    told = [gap[1:] for gap in seat.gaps if gap[0] == stream]
                    yield f"{where}: {stream}:{offset} came and was announced as a gap: {told[:5]}"
            twice = {key: count for key, count in Counter(key for _, _, key in seat.items).items() if count > 1}
            if twice:
                yield f"{where}: {len(twice)} contents came more than once, as {next(iter(twice.items()))}"
            # What an owner took with it comes late by the next one, but never late within a stream.
            died = any(reason == "owner_lost" for _, _, _, reason in seat.gaps)
            latest: dict[tuple[int, Stream | None], tuple[int, str]] = {}
            for stream, offset, (publisher, number) in seat.items:
                line, place = (publisher, stream if died else None), f"{stream}:{offset}"
                before, there = latest.get(line, (-1, ""))
                if number > before:
                    latest[line] = (number, place)
                elif not self._owner_failed((publisher, number)):
                    yield f"{where}: publisher {publisher} out of order: {number:,} at {place} after {before:,} at {there}"
                    break

    def _owner_failed(self, key: Key) -> bool:
        """Whether this was acknowledged while some owner failed."""
        at = self.answered_ns.get(key, 0)
        return any(began <= at <= ended for began, ended in self.failed_ns)

    def check(self) -> None:
        """Raise `AssertionError` with the first few of what is wrong."""
        wrong = [*self.violations(), *self.missing()]
        assert not wrong, f"{len(wrong)} violations:\n" + "\n".join(wrong[:10])

    def check_rate(self) -> None:
        """Raise `AssertionError` where what was published steadily was not acknowledged at the rate that was asked for."""
        in_time = sum(at <= self.ended_ns + LATE_S * 1e9 for at in self.answered_ns.values())
        least = self.slow.least(RATE_KEPT)
        assert in_time >= least * self.asked, (
            f"the load was not what was asked for: {self.rate:,.0f} a second are {self.asked:,} messages, and {in_time:,} "
            f"({in_time / self.asked:.1%}) were acknowledged: this machine, or the instance, is too slow for it"
        )

    def check_whole(self, per_room: int, but: Collection[str] = ()) -> None:
        """Every member has everything exactly once and in order: no gap, nothing missing, nothing double. Members of rooms
        in `but` may have been told of gaps."""
        self.check()
        for seat in self.seats:
            if seat.room in but and seat.gaps:
                continue
            assert not seat.gaps, f"{seat.name} in {seat.room} was told of gaps: {seat.gaps[:3]}"
            numbers = [key[1] for _, _, key in seat.items]
            assert numbers == list(range(per_room)), f"{seat.name} in {seat.room}: {len(numbers)} of {per_room}"

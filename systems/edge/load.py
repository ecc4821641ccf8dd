"""The load of the edge: members and publishers by WebSocket, as browsers are, which check every delivery byte for byte."""

import asyncio
import resource
import ssl
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from muster_server.control.errors import TRY_LATER, USAGE, UserError
from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.systems.edge.sessions import EndedError, Keeper, Server
from muster_server.systems.edge.wire import Encodings, Position, Publication, Subscribed

CONNECT_S: Final = 120.0
KNOCKING_MAX: Final = 128
"""Sessions that connect at the same time."""
HEAD: Final = 41
"""Bytes of a message before its filler: a quotation mark, and in hexadecimal the stream, the number and the time."""
FRAMES_MAX: Final = 256
"""Frames of all rooms that are kept for the members that get the same bytes."""
FRAMES_EACH: Final = 2
"""The least number of frames of one room."""
PUBLISHER_RATE: Final = 50.0
"""Messages a second of one publisher, unless their number is given: half of what `edge.command_rate` allows."""
FILES: Final = 256
"""Open files beside the sessions."""


class EdgeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Members that are in one room each, spread evenly, and publishers that go round the rooms."""

    urls: Sequence[str]
    token: str
    """Empty: clients without a token."""
    ca: str
    """Certificates in PEM that sign those of the edges; empty: those that this machine trusts."""
    encodings: Encodings
    members: int
    rooms: int
    publishers: int
    rate: float
    size: int
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "EdgeGenerator":
        """The generator of one host."""
        return EdgeGenerator(self, share)

    def check(self) -> None:
        """Raise `UserError` for numbers that don't go together."""
        if self.rooms > self.members:
            raise UserError(f"--rooms {self.rooms} is more than --members {self.members}: a room needs a member", USAGE)


@dataclass(slots=True)
class Stream:
    """The messages of one publisher in one room."""

    number: int
    room: int
    publisher: Keeper
    size: int
    due: "array[int]" = field(default_factory=lambda: array("q"))
    """When each message fell due, in ns of the monotonic clock."""
    void: set[int] = field(default_factory=set[int])
    """Messages without a positive answer: members may have them or not."""
    waiting: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """Messages without an answer so far, each with how members missed it: an answer may come behind the next message."""
    head: int = 0
    """The number behind the last message with a positive answer."""

    def body(self, number: int) -> bytes:
        """A message, byte for byte."""
        return (b'"%08x%016x%016x' % (self.number, number, self.due[number])).ljust(self.size - 1, b".") + b'"'

    def add(self, due_ns: int) -> int:
        """The number of one more message."""
        self.due.append(due_ns)
        self.waiting[len(self.due) - 1] = []
        return len(self.due) - 1

    def answered(self, number: int, well: bool) -> list[str]:
        """The edge answered a message, or never will. Returns how members missed it, if it was published."""
        missed = self.waiting.pop(number)
        if not well:
            self.void.add(number)
            return []
        self.head = max(self.head, number + 1)
        return missed


@dataclass(slots=True)
class Tally:
    """The counts of all members."""

    delivered: int = 0
    lost: int = 0
    out_of_turn: int = 0
    corrupted: int = 0
    gaps: int = 0
    latencies: "array[int]" = field(default_factory=lambda: array("Q"))

    def missed(self, how: str) -> None:
        """A member missed a message."""
        if how == "lost":
            self.lost += 1
        else:
            self.out_of_turn += 1


Delivery = tuple[int, int, int]
"""The place of the stream in its room, the number of the message, and when it fell due."""


class Frames:
    """The publications of frames that a member of a room has checked, for the others, which get the same bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, tuple[list[Delivery], Position]] = {}
        self.get = self._known.get

    def add(self, body: bytes, found: list[Delivery], end: Position) -> None:
        """Keep the publications of this frame."""
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[body] = (found, end)


class Member:
    """Checks what one member gets: see `sessions.Reader`."""

    def __init__(self, streams: Sequence[Stream], first: int, tally: Tally, frames: Frames) -> None:
        """`streams`: those of its room, whose numbers begin at `first` and rise by `len(streams)` at most."""
        self._streams, self._first, self._tally, self._frames = streams, first, tally, frames
        self._next = [0] * len(streams)
        self._told = [0] * len(streams)
        """Numbers of each stream below which an announced loss may lie."""
        self.position: Position | None = None

    def known(self, body: bytes) -> bool:
        """Take a frame that another member has checked."""
        known = self._frames.get(body)
        if known is None:
            return False
        self._take(known[0])
        self.position = known[1]
        return True

    def publications(self, found: Sequence[Publication], body: bytes | None) -> None:
        """Check publications byte for byte."""
        deliveries = []
        for each in found:
            delivery = self._checked(bytes(each.data))
            if delivery is None:
                self._tally.corrupted += 1
                body = None
            else:
                deliveries.append(delivery)
        self._take(deliveries)
        if found and self.position is not None:
            self.position = Position(found[-1].epoch or self.position.epoch, found[-1].offset)
            if body is not None:
                self._frames.add(body, deliveries, self.position)

    def subscribed(self, found: Subscribed) -> None:
        """Begin, or go on behind the position: unless the edge has all since then, messages are announced as lost."""
        if self.position is not None and not found.recovered:
            self._tally.gaps += 1
            self._told = [len(stream.due) for stream in self._streams]
        self.position = Position(found.epoch, found.offset)
        self.publications(found.publications, None)

    def has_all(self) -> bool:
        """Return whether this member has every published message. Messages at the end that were announced as lost count as
        lost now."""
        whole = True
        for at, stream in enumerate(self._streams):
            if self._next[at] < min(self._told[at], stream.head):
                self._skip(at, min(self._told[at], stream.head))
            whole = whole and self._next[at] >= stream.head
        return whole

    def _checked(self, data: bytes) -> Delivery | None:
        try:
            place, number = int(data[1:9], 16) - self._first, int(data[9:25], 16)
        except ValueError:
            return None
        if not 0 <= place < len(self._streams) or number >= len(self._streams[place].due):
            return None
        stream = self._streams[place]
        return (place, number, stream.due[number]) if data == stream.body(number) else None

    def _take(self, found: Sequence[Delivery]) -> None:
        tally, following, now = self._tally, self._next, time.monotonic_ns()
        for place, number, due in found:
            if number != following[place]:
                if number < following[place]:
                    tally.out_of_turn += 1
                    continue
                self._skip(place, number)
            following[place] = number + 1
            tally.latencies.append((now - due) // 1_000)
            tally.delivered += 1

    def _skip(self, place: int, number: int) -> None:
        """Go on at this number: what is missing before it was announced, or is out of turn."""
        stream = self._streams[place]
        for missing in range(self._next[place], number):
            how = "lost" if missing < self._told[place] else "out_of_turn"
            if missing in stream.waiting:
                stream.waiting[missing].append(how)
            elif missing not in stream.void:
                self._tally.missed(how)
        self._next[place] = number


class EdgeGenerator:
    """One host's members, rooms and publishers. Its rooms are its own, so each delivery can be checked here."""

    sent = "published"
    done = "delivered"
    wrong = ("refused", "lost", "out_of_turn", "corrupted")

    def __init__(self, load: EdgeLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._servers = [Server.of(url) for url in load.urls]
        self._tally = Tally()
        self._members: list[tuple[Keeper, Member]] = []
        self._publishers: list[Keeper] = []
        self._rooms: list[list[Stream]] = []
        self._names: list[str] = []
        self._loop = OpenLoop(self._publish, share.rate(load.rate), load.for_s, load.ramp_s)
        self._refused = Counter[str]()
        self._why = Counter[str]()

    async def open(self) -> str:
        """Connect all sessions, and subscribe the members."""
        load, share = self._load, self._share
        members, rooms = share.part(load.members), share.part(load.rooms)
        if not members or not rooms:
            raise UserError(f"{share.of} hosts need at least {share.of} rooms and members", USAGE)
        rate = share.rate(load.rate)
        publishers = max(1, share.part(load.publishers) if load.publishers else round(rate / PUBLISHER_RATE + 0.5))
        allow_files(members + publishers + FILES)
        tls, knocking = self._tls(), asyncio.Semaphore(KNOCKING_MAX)
        self._names = [f"load-{share.run}-{share.index}-{number}" for number in range(rooms)]
        self._publishers = [
            Keeper(self._servers, load.token, load.encodings.of(index), index=index, knocking=knocking, tls=tls)
            for index in range(publishers)
        ]
        number = 0
        for room in range(rooms):
            whose = range(room % rooms, publishers, rooms) if publishers > rooms else (room % publishers,)
            streams = [
                Stream(number + at, room, self._publishers[publisher], load.size) for at, publisher in enumerate(whose)
            ]
            self._rooms.append(streams)
            number += len(streams)
        frames = [Frames(max(FRAMES_EACH, FRAMES_MAX // rooms)) for _ in self._rooms]
        for index in range(members):
            streams = self._rooms[index % rooms]
            member = Member(streams, streams[0].number, self._tally, frames[index % rooms])
            # Members of a room that have the same encoding and the same edge get the same bytes.
            keeper = Keeper(
                self._servers,
                load.token,
                load.encodings.of(index // rooms),
                index=index,
                knocking=knocking,
                tls=tls,
                channel=self._names[index % rooms],
                reader=member,
            )
            self._members.append((keeper, member))
        everybody = [*self._publishers, *(keeper for keeper, _ in self._members)]
        for keeper in everybody:
            keeper.start()
        try:
            async with asyncio.timeout(CONNECT_S):
                for keeper in everybody:
                    await keeper.ready.wait()
        except TimeoutError:
            came = sum(keeper.ready.is_set() for keeper in everybody)
            why = next((keeper.why for keeper in everybody if keeper.why), "the edges did not answer in time")
            raise UserError(f"only {came:,} of {len(everybody):,} sessions came up: {why}", TRY_LATER) from None
        edges = f"{len(self._servers)} edge{'s' * (len(self._servers) > 1)}"
        return (
            f"{members:,} members in {rooms:,} rooms, {publishers:,} publishers at {edges} ({load.encodings.value}),"
            f" {rate:,g} messages/s"
        )

    async def advance(self, seconds: float) -> Slice:
        """Publish, and check what arrived."""
        until = time.monotonic() + seconds
        made = await self._loop.advance(seconds)
        complete = made.complete and self._all_there()
        while made.complete and not complete and time.monotonic() < until:
            await asyncio.sleep(0.02)
            complete = self._all_there()
        tally = self._tally
        latencies = np.frombuffer(tally.latencies.tobytes(), dtype=np.uint64)
        del tally.latencies[:]
        keepers = [*self._publishers, *(keeper for keeper, _ in self._members)]
        counts = {
            "published": made.counts["done"],
            "delivered": tally.delivered,
            "lost": tally.lost,
            "gaps": tally.gaps,
            "out_of_turn": tally.out_of_turn,
            "corrupted": tally.corrupted,
            "refused": self._refused["refused"],
            "unanswered": self._refused["unanswered"],
            "sessions_lost": sum(keeper.lost for keeper in keepers),
            "joined": sum(keeper.ready.is_set() for keeper, _ in self._members),
            **self._why,
        }
        return msgspec.structs.replace(made, counts=counts, latencies=latencies, complete=complete)

    async def close(self) -> None:
        """End all sessions."""
        await self._loop.close()
        keepers = [*self._publishers, *(keeper for keeper, _ in self._members)]
        await asyncio.gather(*(keeper.close() for keeper in keepers))

    def _all_there(self) -> bool:
        whole = True
        for _, member in self._members:
            whole &= member.has_all()  # each counts what it lost
        return whole

    def _tls(self) -> ssl.SSLContext | None:
        if not any(server.secure for server in self._servers):
            return None
        context = ssl.create_default_context()
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an edge's own certificate may be given
        if self._load.ca:
            try:
                context.load_verify_locations(cadata=self._load.ca)
            except ssl.SSLError as error:
                raise UserError(f"--ca: no certificates in PEM: {error}", USAGE) from None
        return context

    async def _publish(self, number: int) -> str | None:
        streams = self._rooms[number % len(self._rooms)]
        stream = streams[number // len(self._rooms) % len(streams)]
        keeper = stream.publisher
        await keeper.ready.wait()
        assert keeper.session is not None
        at = stream.add(int(self._loop.due(number) * 1e9))
        well, what = False, "unanswered"
        try:
            answer = await keeper.session.send(self._names[stream.room], stream.body(at))
            well, what = answer.error is None, "refused"
            if answer.error is not None:
                self._why[f"{answer.error.message} ({answer.error.code})"] += 1
        except EndedError:
            pass
        finally:
            for how in stream.answered(at, well):
                self._tally.missed(how)
        if not well:
            self._refused[what] += 1
        return None if well else what


def allow_files(count: int) -> None:
    """Let this process open as many files. Raises `UserError` if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < count:
        raise UserError(f"{count:,} open files are needed and {hard:,} are allowed; raise it: ulimit -n {count}")
    if resource.RLIM_INFINITY != soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


SETTINGS: Final = EdgeLoad

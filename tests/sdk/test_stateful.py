"""Any order of calls, crashes and losses, through the binding: the members' items against plain lists and dicts.

The roles and clients are the compiled ones, on one loop over loopback. The model knows the published and acknowledged
messages and each member's items, nothing else. A failure prints the calls that led to it, as a program.
"""

import asyncio
import collections
import contextlib
import functools
import itertools
import sys
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import muster
import muster.testing
from tests.waiting import PATIENT_S

CHUNKS_MAX: Final = 61
NUMBER_BYTES: Final = 4
PEERS_MAX: Final = 3
MEMBERS_MAX: Final = 6
MARKERS_MAX: Final = 20
MARKER_S: Final = 10.0
ROOMS: Final = ("default:red", "default:blue", "files:green", "wide:0")
WIDE: Final = 200
"""Rooms that a client publishes to at once; with those of another call they are more than it may have open."""
WIDE_CALLS_MAX: Final = 2
PACED: Final = ["files"]
TOKENS: Final = {b"%d" % user: user for user in range(1, 1_000)}
LOSSY: Final[list[muster.Fault]] = [
    ("out", None, 0.02, 0.02, 0.0, 0.02, 2, 0, 2),
    ("in", None, 0.02, 0.02, 0.0, 0.02, 2, 0, 2),
]

Result = TypeVar("Result")


@dataclass(eq=False)
class Peer:
    """A client; no other one has its user."""

    client: muster.Client
    user: int
    policy: muster.Policy
    causes: set[str]
    """Reasons of gaps that its readers may cause."""


@dataclass(eq=False)
class Sent:
    """A message that a client took. Numbers follow the calls, over all rooms."""

    number: int
    data: bytes
    by: Peer
    acknowledged: bool = False


@dataclass
class Ledger:
    """The messages published to one room."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    places: dict[muster.Position, bytes] = field(default_factory=dict)
    torn: bool = False
    """A client vanished in the middle of a long message: its chunks so far keep their offsets."""

    def stands(self, position: muster.Position, data: bytes) -> None:
        """Everyone reads the same at a place."""
        assert self.places.setdefault(position, data) == data, f"two messages stand at {position}"

    def long_ones(self) -> list[Sent]:
        """Messages of several datagrams that may be on their way."""
        return [sent for sent in self.sent.values() if len(sent.data) > chunk_bytes() and not sent.acknowledged]

    def acknowledge(self, by: Peer, upto: int) -> None:
        for sent in self.sent.values():
            sent.acknowledged |= sent.by is by and sent.number <= upto


@dataclass
class Tally:
    """Offsets of one stream, as one reader hears of them."""

    base: int
    last: int
    counted: int = 0
    gaps: list[muster.Gap] = field(default_factory=list)


@dataclass(eq=False)
class Member:
    """The items of one reader, also after it left and resumed with its positions."""

    peer: Peer
    room: muster.Room
    ledger: Ledger
    owed_from: int
    exact: bool
    """No long message was on its way at the join: all offsets from the first one on are accounted for."""
    causes: set[str]
    items: list[muster.Item] = field(default_factory=list)
    had: dict[int, muster.Stream] = field(default_factory=dict)
    last: dict[Peer, int] = field(default_factory=dict)
    streams: dict[muster.Stream, Tally] = field(default_factory=dict)
    resumed: bool = False
    repeats: int = 0

    def take(self, items: list[muster.Item]) -> None:
        for item in items:
            if isinstance(item, muster.Message):
                self._message(item)
            else:
                assert isinstance(item, muster.Gap)
                self._gap(item)
            self.items.append(item)

    def _message(self, message: muster.Message) -> None:
        sent = self.ledger.sent.get(message.data)
        assert sent is not None, f"{message} was never published"
        assert (message.room, message.sender) == (self.room.name, sent.by.user)
        stream, offset = message.position.stream, message.position.offset
        if sent.number in self.had:  # numbered by two owners; a new membership knows only where it stands
            assert self.resumed, f"{message} came twice"
            assert stream != self.had[sent.number], f"{message} came twice"
        else:
            before = self.last.get(sent.by, -1)
            assert sent.number > before or self._may_be_late(sent, stream), f"{message} came too late"
            self.last[sent.by] = max(sent.number, before)
        self.had[sent.number] = stream
        self.ledger.stands(message.position, message.data)
        chunks = max(1, -(-len(message.data) // chunk_bytes()))
        tally = self._tally(stream, offset - chunks)
        assert offset > tally.last, f"{message} after {tally.last}"
        gaps = [gap for gap in tally.gaps if gap.first <= offset <= (gap.last or offset)]
        assert gaps == [], f"{message} was announced as lost"
        tally.last = offset
        tally.counted += chunks

    def _may_be_late(self, sent: Sent, stream: muster.Stream) -> bool:
        """Whether a message may come after later ones of its publisher.

        The owners of these died, and the next one numbered it again. The reader has a gap where it stood before the first
        of these, or joined behind that place.
        """
        messages = [item for item in self.items if isinstance(item, muster.Message)]
        numbers = [(self.ledger.sent[message.data], message.position) for message in messages]
        later = [position for other, position in numbers if other.by is sent.by and other.number > sent.number]
        first = later[0]
        begin = max(
            position.offset if other.by is sent.by and other.number < sent.number else 0
            for other, position in numbers
            if position.stream == first.stream and position.offset <= first.offset
        )
        gaps = [(gap.first, gap.last) for gap in self.streams[first.stream].gaps]
        lost = any(begin < start and end is not None and end < first.offset for start, end in gaps)
        return all(position.stream < stream for position in later) and (lost or sent.number < self.owed_from)

    def _gap(self, gap: muster.Gap) -> None:
        tally = self._tally(gap.stream, gap.first - 1)
        last = gap.first - 1 if gap.last is None else gap.last
        taken = {
            item.position.offset
            for item in self.items
            if isinstance(item, muster.Message) and item.position.stream == gap.stream
        }
        for known in tally.gaps:
            assert known.last is None or gap.first > known.last or last < known.first, f"{gap} after {known}"
        assert not any(gap.first <= offset and (gap.last is None or offset <= last) for offset in taken), gap
        tally.gaps.append(gap)
        tally.last = max(tally.last, last)
        tally.counted += last - gap.first + 1

    def _tally(self, stream: muster.Stream, base: int) -> Tally:
        if stream not in self.streams:
            assert stream > max(self.streams, default=muster.Stream(0, 0, 0)), f"{stream} after a later one"
            self.streams[stream] = Tally(0, 0) if self.streams else Tally(base, base)
        return self.streams[stream]

    def dense(self) -> None:
        """No offset is left out, except those of repeats and of torn messages. Nothing may be on its way.

        When a reader drops messages, chunks may be left out that were behind others' messages. Chunks of others' long
        messages may come before the first whole message. A long message may begin in a stream whose owner died and end
        in the next one.
        """
        repeats = self.repeats + self.room.stats()["repeats"]
        others = PEERS_MAX * (CHUNKS_MAX - 1)
        for at, (stream, tally) in enumerate(self.streams.items()):
            silent = tally.last - tally.base - tally.counted
            if at or self.exact:
                assert silent >= -others, f"{silent} in {stream}: {tally}"
                ended = any(gap.reason == "owner_lost" for gap in tally.gaps)
                dropped = sum(gap.reason == "reader" for gap in tally.gaps)
                mixed = len({sent.by for sent in self.ledger.sent.values()}) > 1
                cut = mixed * dropped * (CHUNKS_MAX - 1) + ended * others
                assert silent <= cut or self.ledger.torn or repeats, f"{silent} in {stream}: {tally}"

    def complete(self) -> None:
        """Each message acknowledged since the join is here, or a gap is in its place."""
        places = {item.data: at for at, item in enumerate(self.items) if isinstance(item, muster.Message)}
        gaps = [at for at, item in enumerate(self.items) if isinstance(item, muster.Gap)]
        known: dict[Peer, list[Sent]] = {}
        for sent in self.ledger.sent.values():
            known.setdefault(sent.by, []).append(sent)
        for messages in known.values():
            before = -1
            missing: list[int] = []
            for sent in messages:
                if sent.data in places:
                    at = places[sent.data]
                    assert not missing or any(before < gap < at for gap in gaps), (
                        f"neither had nor announced: {missing}"
                    )
                    before, missing = at, []
                elif sent.acknowledged and sent.number >= self.owed_from:
                    missing.append(sent.number)
            assert not missing or any(before < gap for gap in gaps), f"neither had nor announced: {missing}"


def payload(number: int, size: int) -> bytes:
    """Bytes that no other message has; a size too small for that becomes larger."""
    head = number.to_bytes(NUMBER_BYTES)
    return (head * (size // NUMBER_BYTES + 1))[: max(size, NUMBER_BYTES)]


@functools.cache
def chunk_bytes() -> int:
    """The longest message that takes one offset: asked of the engines, the wire decides it."""

    async def ask() -> int:
        async with muster.testing.instance() as address, muster.connect(address) as client:

            async def offset(size: int) -> int:
                position = await client.publish("r", bytes(size))
                return position.offset

            fits, splits = 0, 2_000
            while splits - fits > 1:
                size = (fits + splits) // 2
                before = await offset(0)
                fits, splits = (size, splits) if await offset(size) - before == 1 else (fits, size)
            return fits

    return uvloop.run(ask())


anyone = st.integers(0, 5)
sizes = st.one_of(
    st.integers(0, 200),
    st.integers(1_050, 1_110),
    st.integers(2_100, 2_220),
    st.integers(3_000, 30_000),
)
whole = precondition(lambda self: not self.down)
read_by_someone = precondition(lambda self: self.members)


class Rooms(RuleBasedStateMachine):
    """Calls of programs, and crashes."""

    closed = 0
    """Rooms that clients closed for others, over all runs."""

    def __init__(self) -> None:
        super().__init__()
        chunk_bytes()
        self.loop = uvloop.new_event_loop()
        self.numbers = itertools.count()
        self.users = iter(TOKENS)
        self.ledgers = collections.defaultdict[str, Ledger](Ledger)
        self.wide = itertools.count(1)
        self.peers: list[Peer] = []
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.down: set[muster.testing.Role] = set()
        self.lossy = self.owner_died = False
        self.wide_calls = 0

    def do(self, call: Awaitable[Result]) -> Result:
        async def bounded() -> Result:
            async with asyncio.timeout(PATIENT_S):
                return await call

        return self.loop.run_until_complete(bounded())

    @initialize(lossy=st.booleans())
    def start_all(self, lossy: bool) -> None:
        self.lossy = lossy
        self.running = muster.testing.instance(tokens=TOKENS, paced_namespaces=PACED, faults=LOSSY if lossy else None)
        self.instance = self.do(self.running.__aenter__())
        self.connect("drop_oldest", None)
        self.join(0, ROOMS[0])

    # --- clients ----------------------------------------------------------------------------------------------

    @whole
    @precondition(lambda self: len(self.peers) < PEERS_MAX)
    @rule(policy=st.sampled_from(["drop_oldest", "drop_newest", "block"]), buffer=st.sampled_from([None, 60_000]))
    def connect(self, policy: muster.Policy, buffer: int | None) -> None:
        token = next(self.users)
        options: dict[str, Any] = {} if buffer is None else {"buffer_bytes": buffer}
        client = muster.connect(self.instance, token=token, faults=LOSSY if self.lossy else None, **options)
        causes = set() if buffer is None else {"slow" if policy == "block" else "reader"}
        self.peers.append(Peer(self.do(client.__aenter__()), TOKENS[token], policy, causes))

    @precondition(lambda self: len(self.peers) > 1)
    @rule(at=anyone)
    def vanish(self, at: int) -> None:
        """A program that dies: nothing it published is waited for."""
        peer = self.peers.pop(at % len(self.peers))
        for ledger in self.ledgers.values():
            ledger.torn |= any(sent.by is peer for sent in ledger.long_ones())
        self.do(peer.client.__aexit__(RuntimeError, RuntimeError(), None))
        self._ended(peer)

    @whole
    @precondition(lambda self: len(self.peers) > 1)
    @rule(at=anyone)
    def close(self, at: int) -> None:
        peer = self.peers.pop(at % len(self.peers))
        self.do(peer.client.close())
        self._flushed(peer)
        self._ended(peer)

    def _ended(self, peer: Peer) -> None:
        self.gone += [member for member in self.members if member.peer is peer]
        self.members = [member for member in self.members if member.peer is not peer]

    # --- memberships ------------------------------------------------------------------------------------------

    @whole
    @rule(at=anyone, name=st.sampled_from(ROOMS))
    def join(self, at: int, name: str) -> None:
        peer = self.peers[at % len(self.peers)]
        if self._may_join(peer, name):
            room = self.do(self._join(peer, name, None))
            exact = not self.ledgers[name].long_ones()
            self.members.append(Member(peer, room, self.ledgers[name], next(self.numbers), exact, set(peer.causes)))

    @whole
    @precondition(lambda self: self.gone)
    @rule(which=anyone, at=anyone)
    def resume(self, which: int, at: int) -> None:
        """Another membership resumes from an earlier one, perhaps at another client."""
        member, peer = self.gone[which % len(self.gone)], self.peers[at % len(self.peers)]
        if self._may_join(peer, member.room.name):
            self.gone.remove(member)
            member.peer, member.resumed = peer, True
            member.causes |= peer.causes
            member.repeats += member.room.stats()["repeats"]
            member.room = self.do(self._join(peer, member.room.name, member.room.positions))
            self.members.append(member)

    async def _join(self, peer: Peer, name: str, positions: bytes | None) -> muster.Room:
        return await peer.client.join(name, positions=positions, policy=peer.policy)

    def _may_join(self, peer: Peer, name: str) -> bool:
        """One room for a client that blocks: it takes nothing for its other rooms either."""
        rooms = [member.room.name for member in self.members if member.peer is peer]
        return len(self.members) < MEMBERS_MAX and name not in rooms and not (rooms and peer.policy == "block")

    @read_by_someone
    @rule(at=anyone)
    def leave(self, at: int) -> None:
        member = self.members.pop(at % len(self.members))
        member.room.leave()
        self.gone.append(member)

    @read_by_someone
    @rule(at=anyone, count=st.integers(1, 10))
    def read(self, at: int, count: int) -> None:
        """Read waiting items, and cancel a wait."""
        member = self.members[at % len(self.members)]
        for _ in range(count):
            item = self.do(self._given_up(anext(member.room)))
            if item is None:
                break
            member.take([item])

    @read_by_someone
    @rule(at=anyone)
    def read_batch(self, at: int) -> None:
        member = self.members[at % len(self.members)]
        batch = self.do(self._given_up(anext(member.room.batches())))
        member.take(batch or [])

    async def _given_up(self, reading: Awaitable[Result]) -> Result | None:
        task = asyncio.ensure_future(reading)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return None

    # --- publishing -------------------------------------------------------------------------------------------

    @whole
    @rule(at=anyone, name=st.sampled_from(ROOMS), size=st.one_of(sizes, st.sampled_from([65_535, 65_536])))
    def publish(self, at: int, name: str, size: int) -> None:
        self.do(self._publish(self.peers[at % len(self.peers)], name, size))

    async def _publish(self, peer: Peer, name: str, size: int) -> Sent:
        sent = self._next(peer, name, size)
        self.ledgers[name].sent[sent.data] = sent
        position = await peer.client.publish(name, sent.data)
        self.ledgers[name].acknowledge(peer, sent.number)
        self.ledgers[name].stands(position, sent.data)
        return sent

    @rule(at=anyone, name=st.sampled_from(ROOMS), size=sizes, count=st.integers(1, 300))
    def publish_nowait(self, at: int, name: str, size: int, count: int) -> None:
        """Publish as much as there is credit for. Refused messages never come."""
        peer = self.peers[at % len(self.peers)]
        for _ in range(min(count, 200_000 // (size + 1))):
            sent = self._next(peer, name, size)
            if not peer.client.publish_nowait(name, sent.data):
                break
            self.ledgers[name].sent[sent.data] = sent

    @precondition(lambda self: self.wide_calls < WIDE_CALLS_MAX)
    @rule(at=anyone, wait=st.booleans())
    def publish_widely(self, at: int, wait: bool) -> None:
        """Publish to many unread rooms, between two messages to one that may be read: it is closed and opened again."""
        self.wide_calls += 1
        peer = self.peers[at % len(self.peers)]
        names = ["wide:0", *(f"wide:{next(self.wide)}" for _ in range(WIDE)), "wide:0"]

        async def publish_all() -> None:
            await asyncio.gather(*(self._publish(peer, name, NUMBER_BYTES) for name in names))

        if wait and not self.down:
            self.do(publish_all())
            return
        for name in names:
            sent = self._next(peer, name, NUMBER_BYTES)
            if peer.client.publish_nowait(name, sent.data):
                self.ledgers[name].sent[sent.data] = sent

    @whole
    @rule(at=anyone)
    def flush(self, at: int) -> None:
        peer = self.peers[at % len(self.peers)]
        self.do(peer.client.flush())
        self._flushed(peer)

    def _flushed(self, peer: Peer) -> None:
        for ledger in self.ledgers.values():
            ledger.acknowledge(peer, next(self.numbers))

    def _next(self, peer: Peer, name: str, size: int) -> Sent:
        number = next(self.numbers)
        empty = size == 0 and b"" not in self.ledgers[name].sent
        return Sent(number, b"" if empty else payload(number, size), peer)

    # --- roles ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.down) < 2)
    @rule(role=st.sampled_from(["router", "broker", "gateway", "proxy"]))
    def stop(self, role: muster.testing.Role) -> None:
        if role not in self.down:
            self.instance.stop(role)
            self.down.add(role)
            self.owner_died |= role == "broker"

    @precondition(lambda self: self.down)
    @rule()
    def start(self) -> None:
        async def start() -> None:
            for role in sorted(self.down):
                self.instance.start(role)

        self.do(start())
        self.down.clear()

    # --- what must hold ---------------------------------------------------------------------------------------

    @whole
    @rule(name=st.sampled_from(ROOMS))
    def settle(self, name: str) -> None:
        """Everything is acknowledged, and every member reads to the end."""
        for peer in self.peers:
            self.do(peer.client.flush())
            self._flushed(peer)
        for member in [member for member in self.members if member.room.name == name]:
            self.do(self._read_to_end(member))
            member.complete()
            member.dense()
            self._justified(member)

    async def _read_to_end(self, member: Member) -> None:
        """Publish markers until one comes; its reader has everything before it. A missing marker is announced."""
        for _ in range(MARKERS_MAX):
            marker = await self._publish(self.peers[0], member.room.name, NUMBER_BYTES)
            try:
                while marker.number not in member.had:
                    announced = bool(member.items) and isinstance(member.items[-1], muster.Gap)
                    async with asyncio.timeout(0.3 if announced else MARKER_S):
                        member.take([await anext(member.room)])
            except TimeoutError:
                assert announced, f"message {marker.number} neither came nor was announced as lost"
            else:
                return
        raise AssertionError("only gaps come")

    def _justified(self, member: Member) -> None:
        """Gaps have a cause.

        A long message is never whole for a reader if an owner died with its beginning, or if the reader joined in its
        middle, left and returned there.
        """
        reasons = {item.reason for item in member.items if isinstance(item, muster.Gap)}
        causes = {
            "unrepaired": self.lossy or self.owner_died or member.ledger.torn or (member.resumed and not member.exact),
            "owner_lost": self.owner_died,
            "expired": self.owner_died,
            **dict.fromkeys(member.causes, True),
        }
        assert all(causes.get(reason) for reason in reasons), (reasons, causes)

    def _finish(self) -> None:
        """Every reader that left returns once more: it must also get what it had not read then."""
        if self.down:
            self.start()
        for name in ROOMS:
            self.settle(name)
        for member in self.members:
            member.room.leave()
        while self.gone:
            self.members.clear()
            self.resume(0, 0)
            (member,) = self.members
            self.settle(member.room.name)
            member.room.leave()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._finish()
        finally:
            if "proxy" not in self.down:
                Rooms.closed += self.instance.status("proxy")["counters"]["rooms_closed"]
            for peer in self.peers:
                self.loop.run_until_complete(peer.client.__aexit__(RuntimeError, RuntimeError(), None))
            self.loop.run_until_complete(self.running.__aexit__(None, None, None))
            self.loop.close()


SHORT: Final = settings(
    max_examples=30,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG: Final = settings(SHORT, max_examples=1_000, stateful_step_count=80, derandomize=False)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "runs", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)]
)
def test_members_have_what_was_acknowledged_whatever_is_called(runs: settings) -> None:
    run_state_machine_as_test(Rooms, settings=runs)
    assert Rooms.closed > 0, "no client published to more rooms than it may have open"


OWNER: Final = muster.Stream(2, 1, 1)
NEXT: Final = muster.Stream(2, 2, 1)


@pytest.mark.parametrize(
    ("read", "owed_from", "allowed"),
    [
        ([(0, OWNER, 1), (None, OWNER, 2), (2, OWNER, 3), (1, NEXT, 1), (3, NEXT, 2)], 0, True),
        ([(None, OWNER, 1), (None, OWNER, 2), (2, OWNER, 3), (0, NEXT, 1), (1, NEXT, 2)], 0, True),
        ([(None, OWNER, 1), (None, OWNER, 2), (2, OWNER, 3), (1, NEXT, 1), (0, NEXT, 2)], 0, False),
        ([(2, OWNER, 3), (1, NEXT, 1)], 2, True),
        ([(2, OWNER, 3), (1, NEXT, 1)], 1, False),
        ([(None, OWNER, 1), (2, OWNER, 2), (1, OWNER, 3)], 0, False),
        ([(0, OWNER, 1), (2, OWNER, 2), (1, NEXT, 1)], 0, False),
        ([(None, OWNER, 1), (0, OWNER, 2), (2, OWNER, 3), (1, NEXT, 1)], 0, False),
        ([(0, OWNER, 1), (2, OWNER, 2), (None, OWNER, 3), (1, NEXT, 1)], 0, False),
    ],
    ids=[
        "lost with its owner",
        "two of them",
        "two of them in another order",
        "of before the join",
        "of after the join",
        "by the same owner",
        "without a gap",
        "with a gap before its predecessor",
        "with a gap after its successor",
    ],
)
def test_the_model_takes_a_message_after_later_ones_only_where_docs_say_so(
    read: list[tuple[int | None, muster.Stream, int]], owed_from: int, allowed: bool
) -> None:
    """The exception of `docs/sdk.md`, Publishing. `read`: number, stream, offset; a gap where there is no number."""
    client = muster.connect(muster.Address((), (), b""))
    peer = Peer(client, 1, "drop_oldest", set())
    ledger = Ledger({payload(number, 0): Sent(number, payload(number, 0), peer) for number in range(4)})
    member = Member(peer, client.join(ROOMS[0]), ledger, owed_from, True, set())
    items: list[muster.Item] = [
        muster.Gap(stream, offset, offset, "unrepaired", ROOMS[0])
        if number is None
        else muster.Message(ROOMS[0], stream, offset, peer.user, payload(number, 0))
        for number, stream, offset in read
    ]
    if allowed:
        member.take(items)
    else:
        with pytest.raises(AssertionError, match="came too late"):
            member.take(items)

"""What a room is made of: messages with positions, gaps where it is known that something is missing, and commands."""

import struct
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, final

_POSITION: Final = struct.Struct("<IIIQ")


class Stream(NamedTuple):
    """Who numbered: offsets only compare within one stream. A new owner of a room begins a new one."""

    node: int
    epoch: int
    generation: int

    def __str__(self) -> str:
        return f"{self.node}.{self.epoch}.{self.generation}"


@final
class Position:
    """The place of one message in its room's stream. Immutable; `<` and `>` only within one stream."""

    __slots__ = ("_offset", "_stream")

    def __init__(self, stream: tuple[int, int, int], offset: int) -> None:
        self._stream, self._offset = stream, offset

    @property
    def stream(self) -> Stream:
        """The stream that `offset` counts in."""
        return Stream._make(self._stream)

    @property
    def offset(self) -> int:
        """From 1, without holes; a message in several datagrams takes several and has its last."""
        return self._offset

    @classmethod
    def from_bytes(cls, data: bytes) -> "Position":
        """Read what `bytes(position)` gave. Raises `ValueError`."""
        if len(data) != _POSITION.size:
            raise ValueError(f"a position has {_POSITION.size} bytes, not {len(data)}")
        node, epoch, generation, offset = _POSITION.unpack(data)
        return cls((node, epoch, generation), offset)

    def __bytes__(self) -> bytes:
        return _POSITION.pack(*self._stream, self._offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._offset == other._offset and self._stream == other._stream

    def __hash__(self) -> int:
        return hash((self._stream, self._offset))

    def __lt__(self, other: "Position") -> bool:
        self._same_stream(other)
        return self._offset < other._offset

    def __le__(self, other: "Position") -> bool:
        self._same_stream(other)
        return self._offset <= other._offset

    def __gt__(self, other: "Position") -> bool:
        self._same_stream(other)
        return self._offset > other._offset

    def __ge__(self, other: "Position") -> bool:
        self._same_stream(other)
        return self._offset >= other._offset

    def _same_stream(self, other: "Position") -> None:
        if not isinstance(other, Position):
            raise TypeError(f"a position compares with positions, not with {type(other).__name__}")
        if self._stream != other._stream:
            raise ValueError(f"{self} and {other} are of different streams: neither is before the other")

    def __reduce__(self) -> tuple[Any, ...]:
        return Position, (self._stream, self._offset)

    def __str__(self) -> str:
        return f"{self.stream}:{self._offset}"

    def __repr__(self) -> str:
        return f"<Position {self}>"


@final
class Message:
    """What somebody published to `room`. `sender` is the user that the servers authenticated."""

    __match_args__ = ("room", "position", "sender", "data")
    __slots__ = ("_offset", "_stream", "data", "room", "sender")

    def __init__(self, room: str, stream: tuple[int, int, int], offset: int, sender: int, data: bytes) -> None:
        self.room, self._stream, self._offset, self.sender, self.data = room, stream, offset, sender, data

    @property
    def position(self) -> Position:
        """Where it stands in the room; made when asked for."""
        return Position(self._stream, self._offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        mine = (self.room, self._stream, self._offset, self.sender, self.data)
        return mine == (other.room, other._stream, other._offset, other.sender, other.data)

    def __hash__(self) -> int:
        return hash((self.room, self._stream, self._offset))

    def __repr__(self) -> str:
        data = self.data if len(self.data) <= 40 else self.data[:40] + b"..."
        return f"Message(room={self.room!r}, position={self.position}, sender={self.sender}, data={data!r})"


class Gap(NamedTuple):
    """Offsets `first` to `last` of `stream` will not come; `last` is None when nobody knows where it ends.

    `reason` is one of `slow`, `owner_lost`, `unrepaired`, `expired`, `restarted`, `reader` (`docs/sdk.md`).
    """

    stream: Stream
    first: int
    last: int | None
    reason: str


class Command(NamedTuple):
    """What somebody had told to every member of `room`, apart from its messages and in no order with them."""

    room: str
    number: int
    """Random; the same however often it was tried."""
    sender: int
    data: bytes


Item: TypeAlias = Message | Gap | Command


@final
@dataclass(frozen=True, slots=True)
class Delivered:
    """So many members have the command: all who were in the room. Who changed servers meanwhile may be counted at both."""

    members: int


@final
@dataclass(frozen=True, slots=True)
class NoMember:
    """Nobody is in the room."""


@final
@dataclass(frozen=True, slots=True)
class Expired:
    """Time was over before every member had said that it has the command; so many had."""

    members: int


Outcome: TypeAlias = Delivered | NoMember | Expired


class Hop(NamedTuple):
    """One node on the way of a question."""

    node: int
    seconds: float
    """From the question to its answer, by the clock of the node before it: there, what it did, and back."""


@final
@dataclass(frozen=True, slots=True)
class Members:
    """Who is in a room, as its gateways say."""

    count: int
    """Memberships: a user who is in the room with two clients counts twice."""
    ids: tuple[int, ...]
    """Users, each once and in order; none unless they were asked for."""
    truncated: bool
    """There may be users behind those named: ask from `ids[-1] + 1` on."""
    partial: bool
    """A gateway that may have members did not answer in time: its members are in neither `count` nor `ids`."""
    hops: tuple[Hop, ...] = field(default=(), compare=False)
    """How the question went: the broker, timed by the proxy; then its 15 slowest gateways, timed by it, slowest first."""


class History(NamedTuple):
    """What came first to a member who asked for a room's last messages."""

    messages: int
    """So many, before all that was published since."""
    whole: bool
    """As many as were asked for, or all that the room's owners have numbered: no older one is lacking."""

"""The items of a room: messages with positions, gaps for announced losses, and commands; and the answers of calls."""

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

_POSITION: Final = struct.Struct("<IIIQ")


class Stream(NamedTuple):
    """The messages that one owner numbered. Offsets compare only within one stream; a new owner begins a new one."""

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
        """The message's number, from 1 without holes. A message in several datagrams takes several and has the last."""
        return self._offset

    @classmethod
    def from_bytes(cls, data: bytes) -> "Position":
        """Make a position of `bytes(position)`. Raises `ValueError`."""
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
            raise ValueError(f"{self} and {other} are in different streams: neither is before the other")

    def __reduce__(self) -> tuple[Any, ...]:
        return Position, (self._stream, self._offset)

    def __str__(self) -> str:
        return f"{self.stream}:{self._offset}"

    def __repr__(self) -> str:
        return f"<Position {self}>"


@final
class Message:
    """A published message of `room`. `sender` is the user that the servers authenticated."""

    __match_args__ = ("room", "position", "sender", "data")
    __slots__ = ("_offset", "_stream", "data", "room", "sender")

    def __init__(self, room: str, stream: tuple[int, int, int], offset: int, sender: int, data: bytes) -> None:
        self.room, self._stream, self._offset, self.sender, self.data = room, stream, offset, sender, data

    @property
    def position(self) -> Position:
        """The message's position in the room; each access makes a new object."""
        return Position(self._stream, self._offset)

    def json(self) -> Any:
        """The content as JSON. Raises `ValueError` if it is none."""
        return json.loads(self.data)

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
    """Offsets `first` to `last` of `stream` will not come. `last` is None when nobody knows the end.

    `reason` is one of `slow`, `owner_lost`, `unrepaired`, `expired`, `restarted`, `reader` (`docs/sdk.md`).
    """

    stream: Stream
    first: int
    last: int | None
    reason: str
    room: str = ""
    """As it was joined."""


class Command(NamedTuple):
    """A command to every member of `room`, apart from its messages and in no order with them."""

    room: str
    number: int
    """Random; the same for all tries of one command."""
    sender: int
    data: bytes


Item: TypeAlias = Message | Gap | Command


@final
@dataclass(frozen=True, slots=True)
class Delivered:
    """All members have the command. A member that changed servers meanwhile may count twice."""

    members: int


@final
@dataclass(frozen=True, slots=True)
class NoMember:
    """Nobody is in the room."""


@final
@dataclass(frozen=True, slots=True)
class Expired:
    """The time ended before every member had confirmed the command; `members` had."""

    members: int


Outcome: TypeAlias = Delivered | NoMember | Expired


class Direct(NamedTuple):
    """A message to this client's user alone."""

    sender: int
    number: int
    """Random; the same for all tries of one message."""
    data: bytes


class DeviceResult(NamedTuple):
    """The outcome of a message on one device of a user."""

    device: str | None
    """None: devices that nobody knows."""
    outcome: Literal["delivered", "not_online", "expired"]


class Hop(NamedTuple):
    """One node on the way of a question for members."""

    node: int
    seconds: float
    """From the question to the answer, by the clock of the node before it: the way there, the work, the way back."""


@final
@dataclass(frozen=True, slots=True)
class Members:
    """The members of a room, as its gateways report them."""

    count: int
    """Memberships: a user with two clients in the room counts twice."""
    ids: tuple[int, ...]
    """Users, each once and in order; empty unless the call asked for them."""
    truncated: bool
    """More users may follow: ask from `ids[-1] + 1` on."""
    partial: bool
    """A gateway did not answer in time: its members are missing in `count` and `ids`."""
    hops: tuple[Hop, ...] = field(default=(), compare=False)
    """The hops of the question: the broker, timed by the proxy; then the 15 slowest gateways, timed by the broker."""


class History(NamedTuple):
    """How a join's request for a room's last messages was met."""

    messages: int
    """The number of old messages that come first."""
    whole: bool
    """Whether these are as many as requested, or all that the room's owners have numbered."""

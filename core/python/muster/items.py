"""The items of a room: messages with positions, gaps for announced losses, and commands; and the results of calls."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, final

from ._core import Message, Position

__all__ = [
    "Command",
    "Delivered",
    "DeviceResult",
    "Direct",
    "Expired",
    "Gap",
    "History",
    "Hop",
    "Item",
    "Members",
    "Message",
    "NoMember",
    "Outcome",
    "Position",
    "Reply",
    "Request",
    "Stream",
]


class Stream(NamedTuple):
    """A sequence of messages that one owner numbered. Offsets compare only within one stream; a new owner begins a new
    one."""

    node: int
    epoch: int
    generation: int

    def __str__(self) -> str:
        return f"{self.node}.{self.epoch}.{self.generation}"


class Gap(NamedTuple):
    """Offsets `first` to `last` of `stream` will not come. `last` is None when no server knows the end.

    `reason` is one of `slow`, `owner_lost`, `unrepaired`, `expired`, `restarted`, `reader` (`docs/sdk.md`).
    """

    stream: Stream
    first: int
    last: int | None
    reason: str
    room: str = ""
    """Name of the room, as the join gave it."""


class Command(NamedTuple):
    """A command to every member of `room`, outside the order of its messages."""

    room: str
    number: int
    """Random; all tries of one command have the same number."""
    sender: int
    data: bytes


Item: TypeAlias = Message | Gap | Command


@final
@dataclass(frozen=True, slots=True)
class Delivered:
    """All members received the command. A member that changed servers meanwhile may count twice."""

    members: int


@final
@dataclass(frozen=True, slots=True)
class NoMember:
    """The room has no member."""


@final
@dataclass(frozen=True, slots=True)
class Expired:
    """The command expired before every member had confirmed it; `members` confirmed it."""

    members: int


Outcome: TypeAlias = Delivered | NoMember | Expired


class Direct(NamedTuple):
    """A message to this client's user alone."""

    sender: int
    number: int
    """Random; all tries of one message have the same number."""
    data: bytes


class Request(NamedTuple):
    """A request to `room`, which a responder answers."""

    room: str
    sender: int
    """The user that asks; for a client over HTTP or at an edge, its user."""
    data: bytes

    def json(self) -> Any:
        """The request as JSON. Raises `ValueError`."""
        return json.loads(self.data)


class Reply(NamedTuple):
    """The reply of a responder of `room`."""

    room: str
    responder: str
    """The responder's name: random, or one of its own."""
    sender: int
    """The user of the responder."""
    data: bytes

    def json(self) -> Any:
        """The reply as JSON. Raises `ValueError`."""
        return json.loads(self.data)


class DeviceResult(NamedTuple):
    """The outcome of a message, or of the request to end sessions, on one device of a user."""

    device: str | None
    """None: devices whose names are not known, or those beyond the 40 outcomes of a message."""
    outcome: Literal["delivered", "ended", "not_online", "expired", "unknown"]
    """`unknown`: the device's gateway was lost before it answered, so the device may have the message."""


class Hop(NamedTuple):
    """One node on the path of a request for members."""

    node: int
    seconds: float
    """Seconds from request to answer, measured by the previous node: transfer, work and transfer back."""


@final
@dataclass(frozen=True, slots=True)
class Members:
    """The members of a room, as its gateways report them."""

    count: int
    """Memberships: a user with two clients in the room counts twice."""
    ids: tuple[int, ...]
    """Users, each once and sorted; empty unless the call requested them."""
    truncated: bool
    """More users may follow: request them from `ids[-1] + 1` on."""
    partial: bool
    """A gateway did not answer in time: its members are missing in `count` and `ids`."""
    hops: tuple[Hop, ...] = field(default=(), compare=False)
    """The hops of the request: the broker, timed by the proxy; then the 15 slowest gateways, timed by the broker."""


class History(NamedTuple):
    """Result of a join's request for a room's last messages."""

    messages: int
    """The number of old messages that come first."""
    whole: bool
    """Whether these are as many as requested, or all that the room's owners have numbered."""

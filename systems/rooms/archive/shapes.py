"""Messages that the archive keeps, and requests about them between processes; and their limits.

Owns shapes and limits. It must not know a store, a route or a connection.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

ROLE: Final = "archive"
PAGE_MAX: Final = 65_536
"""Limit of messages in one page."""
LATEST_MAX: Final = 10_000
"""Limit of keys in one page."""
PAGE_BYTES_MAX: Final = 8 << 20
"""Limit of a page in bytes, besides its first message: a page may have fewer messages than were asked for."""
UNWRITTEN: Final = "unwritten"
"""Reason of a gap between the newest message in the archive and an older one of the memory: it is written now."""
TRIMMED: Final = "trimmed"
"""Reason of a gap before the oldest message in the archive."""
NAMESPACE: Final = "default:"

Stream = tuple[int, int, int]
"""Node, epoch and generation, as `muster.Stream`."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The position of one message in its room."""

    stream: Stream
    offset: int

    def __str__(self) -> str:
        return f"{shown(self.stream)}:{self.offset}"


class Message(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """One message. `at_ms`: the time at which the archive got it, in milliseconds since 1970."""

    place: Place
    sender: int
    at_ms: int
    data: bytes
    headers: dict[str, str] = {}


class Gap(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Offsets `first` to `last` of a stream are missing. `last` is None when no server knows the end."""

    stream: Stream
    first: int
    last: int | None
    reason: str
    at_ms: int = 0


Item = Message | Gap


class Read(msgspec.Struct, frozen=True, tag=True):
    """A page of a room.

    Forward: the oldest `limit` messages behind the place `at`, or from the time `since_ms` on. `back`: the newest ones
    before them, the newest first. Without either: from that end on."""

    room: str
    limit: int
    back: bool = True
    at: Place | None = None
    since_ms: int | None = None


class Page(msgspec.Struct, frozen=True):
    """Messages and gaps, in the order of the request. `kept`: the archive knows the room."""

    kept: bool = False
    items: list[Item] = []
    over: bool = True
    """No further item follows in this direction."""
    begun: bool = False
    """The room is kept from its very first message on."""
    known: list[Place] = []
    """For each stream, the last position in the archive."""


class ReadLatest(msgspec.Struct, frozen=True, tag=True):
    """A page of the latest message of each key of a room, in the order in which they came.

    `after`: the number of the last one of the former page. `upto`: that of the first page, so that the pages are of one
    moment."""

    room: str
    limit: int
    after: int = 0
    upto: int | None = None


class Latest(msgspec.Struct, frozen=True):
    """A page of them. `kept`: the archive knows the room. `next`: the `after` of the next page; None: there is none."""

    kept: bool = False
    messages: list[Message] = []
    upto: int = 0
    next: int | None = None
    positions: bytes = b""
    """The value of `room.positions` behind everything that the archive had at that moment."""
    whole: bool = True
    """No key was left out as one too many, and the archive missed no message since the oldest of them."""


def full(name: str) -> str:
    """The name of a room with its namespace."""
    return name if ":" in name else NAMESPACE + name


def shown(stream: Stream) -> str:
    """A stream as `muster.Stream` shows it."""
    return ".".join(map(str, stream))


def stream_of(text: str) -> Stream:
    """Parse a stream as `shown` writes it. Raises `ValueError`."""
    numbers = text.split(".")
    if len(numbers) != 3 or not all(map(_is_number, numbers)):
        raise ValueError(f"invalid stream {text!a:.80}")
    node, epoch, generation = map(int, numbers)
    if max(node, epoch, generation) >> 32:
        raise ValueError(f"invalid stream {text!a:.80} (a number is too large)")
    return node, epoch, generation


def place(text: str) -> Place:
    """Parse a position, `STREAM:OFFSET`. Raises `ValueError`."""
    stream, _, offset = text.rpartition(":")
    try:
        if _is_number(offset) and not int(offset) >> 62:
            return Place(stream_of(stream), int(offset))
    except ValueError:
        pass
    raise ValueError(f"invalid position {text!a:.80} (expected STREAM:OFFSET, as messages have it)")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def last_of(known: Sequence[Place]) -> Mapping[Stream, int]:
    """The last offset of each stream."""
    return {each.stream: each.offset for each in known}

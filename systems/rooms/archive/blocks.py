"""Blocks: how the archive stores a room's items together.

A block has messages of one stream without a hole, or one gap. Owns the format of its bytes, and which items share one.
It must not know SQL.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

import muster
from muster_server.systems.rooms.archive.shapes import Gap, Item, Message, Place, Stream

BLOCK_BYTES_MAX: Final = 1 << 20
"""Limit of a block's data: half of it is reached by small messages, and a message of 64 KiB fits behind them."""
FULL_BYTES: Final = 512 << 10
COUNT_MAX: Final = 4_096
ROW_BYTES: Final = 160
"""Cost of a block besides its data, with its entries in the indexes."""
ENDLESS: Final = (1 << 62) - 1
"""The last offset of a gap whose end no server knows."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """One message. Without headers it has two members, as in archives from before there were headers."""

    sender: int
    data: bytes
    headers: dict[str, str] = {}


_records: Final = msgspec.msgpack.Decoder(list[_Record])
_record: Final = msgspec.msgpack.Decoder(_Record)
_packed: Final = msgspec.msgpack.Encoder().encode
_Written = tuple[int, bytes] | tuple[int, bytes, dict[str, str]]


def _written(sender: int, data: bytes, headers: dict[str, str]) -> _Written:
    """A message as it is packed."""
    return (sender, data, headers) if headers else (sender, data)


@dataclass(frozen=True, slots=True)
class Block:
    """Some items of a room. `seq`: the number of the first one."""

    seq: int
    count: int
    stream: Stream
    first: int
    last: int
    at_ms: int
    """When the archive got its items, within a second."""
    reason: str
    """Reason of a gap; empty: the block has messages."""
    data: bytes

    @property
    def end(self) -> int:
        """The number behind its last item."""
        return self.seq + self.count

    @property
    def messages(self) -> int:
        """The number of messages in it."""
        return 0 if self.reason else self.count

    @property
    def bytes(self) -> int:
        """Bytes that count towards the limits."""
        return len(self.data) + ROW_BYTES

    def items(self) -> list[Item]:
        """Its items, oldest first. Raises `ValueError` for damaged data."""
        if self.reason:
            last = None if self.last == ENDLESS else self.last
            return [Gap(self.stream, self.first, last, self.reason, self.at_ms)]
        try:
            records = _records.decode(self.data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"damaged block {self.seq}: {error}") from None
        if len(records) != self.count:
            raise ValueError(f"damaged block {self.seq}: {len(records)} messages (expected {self.count})")
        return [
            Message(Place(self.stream, self.first + at), each.sender, self.at_ms, each.data, each.headers)
            for at, each in enumerate(records)
        ]


def record(item: muster.Message) -> bytes:
    """One message, as a block has it."""
    return _packed(_written(item.sender, item.data, item.headers))


def message(data: bytes, place: Place, at_ms: int) -> Message:
    """The message of a `record`. Raises `ValueError` for damaged data."""
    try:
        said = _record.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"damaged message {place}: {error}") from None
    return Message(place, said.sender, at_ms, said.data, said.headers)


def size_of(data: bytes, headers: Mapping[str, str]) -> int:
    """Limit of the bytes of a message with its headers."""
    return len(data) + sum(4 * (len(name) + len(value)) + 6 for name, value in headers.items())


def packed(items: Iterable[muster.Item], seq: int, at_ms: int) -> list[Block]:
    """Blocks of these items, numbered from `seq` on, with this time. Commands are not kept."""
    return list(_packed_in_turn(items, seq, at_ms))


def _packed_in_turn(items: Iterable[muster.Item], seq: int, at_ms: int) -> Iterator[Block]:
    stream: Stream = (0, 0, 0)
    first, size = 0, 0
    records: list[_Written] = []

    def block() -> Block:
        last = first + len(records) - 1
        return Block(seq, len(records), stream, first, last, at_ms, "", _packed(records))

    for item in items:
        if isinstance(item, muster.Command):
            continue
        if isinstance(item, muster.Message):
            position = item.position
            theirs = (position.stream.node, position.stream.epoch, position.stream.generation)
            follows = theirs == stream and position.offset == first + len(records)
            if records and (not follows or size >= FULL_BYTES or len(records) == COUNT_MAX):
                yield block()
                seq, size, records = seq + len(records), 0, []
            if not records:
                stream, first = theirs, position.offset
            headers = item.headers
            records.append(_written(item.sender, item.data, headers))
            size += size_of(item.data, headers) + 16
            continue
        if records:
            yield block()
            seq, size, records = seq + len(records), 0, []
        last = ENDLESS if item.last is None else item.last
        theirs = (item.stream.node, item.stream.epoch, item.stream.generation)
        yield Block(seq, 1, theirs, item.first, last, at_ms, str(item.reason), b"")
        seq += 1
    if records:
        yield block()

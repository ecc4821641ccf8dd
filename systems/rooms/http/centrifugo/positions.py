"""Positions as clients of an edge know them: an epoch and an offset (`core/rooms/src/gateway/edge/positions.rs`).

The offset is that of the newest stream; the epoch is the value of `room.positions` with that offset as 0, in base64url.
"""

import base64
import struct
from typing import Final

import muster
from muster_server.systems.rooms.http.centrifugo.shapes import Position

ENTRY: Final = struct.Struct("<IIIQ")
"""A stream's node, epoch and generation, and an offset with two marks in its highest bits."""
OFFSET: Final = (1 << 62) - 1


def of(position: muster.Position) -> Position:
    """The position of one message."""
    return told(bytes([1]) + ENTRY.pack(*position.stream, position.offset))


def told(positions: bytes) -> Position:
    """The same as a value of `room.positions`. Without a stream: offset 0 and an empty epoch, which is the present one."""
    if len(positions) <= ENTRY.size:
        return Position(0, "")
    *stream, marked = ENTRY.unpack_from(positions, len(positions) - ENTRY.size)
    newest = ENTRY.pack(*stream, marked & ~OFFSET)
    epoch = base64.urlsafe_b64encode(positions[: -ENTRY.size] + newest).rstrip(b"=")
    return Position(marked & OFFSET, epoch.decode())


def stream_of(epoch: str) -> muster.Stream | None:
    """The newest stream of an epoch; None: no edge has told it."""
    try:
        positions = base64.b64decode(epoch + "=" * (-len(epoch) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    if len(positions) < 1 + ENTRY.size or len(positions) != 1 + positions[0] * ENTRY.size:
        return None
    node, began, generation, _ = ENTRY.unpack_from(positions, len(positions) - ENTRY.size)
    return muster.Stream(node, began, generation)

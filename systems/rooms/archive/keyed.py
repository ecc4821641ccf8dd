"""The latest message of each key: what a write changes of them.

The header `key` of a message names what the message is about. A message without data ends its key. Owns which messages
have a key. It must not know SQL.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import muster
from muster_server.systems.rooms.archive.blocks import record
from muster_server.systems.rooms.archive.shapes import Stream

HEADER: Final = "key"
ROW_BYTES: Final = 120
"""Cost of a row besides its data, with its entries in the indexes."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """The latest message of a key in a write. `seq`: its number in the room. `data`: its record; None: the key ends."""

    key: str
    seq: int
    stream: Stream
    offset: int
    at_ms: int
    data: bytes | None

    @property
    def bytes(self) -> int:
        """Bytes that count towards a page."""
        return ROW_BYTES + len(self.data or b"")


def keyed(items: Iterable[muster.Item], seq: int, at_ms: int) -> dict[str, Keyed]:
    """The latest message of each key among items that are numbered from `seq` on, as `blocks.packed` numbers them."""
    latest: dict[str, Keyed] = {}
    for item in items:
        if isinstance(item, muster.Command):
            continue
        if isinstance(item, muster.Message) and (key := item.headers.get(HEADER)) is not None:
            stream = item.position.stream
            where = (stream.node, stream.epoch, stream.generation)
            data = record(item) if item.data else None
            latest[key] = Keyed(key, seq, where, item.position.offset, at_ms, data)
        seq += 1
    return latest

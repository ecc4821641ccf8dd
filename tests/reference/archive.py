"""The archive as a list per room: what each request must answer."""

from collections.abc import Sequence

import muster
from muster_server.systems.rooms.archive.shapes import Gap, Item, Message, Place, Read, Stream


class Archive:
    """Rooms, each a list of items in the order in which they were written."""

    def __init__(self) -> None:
        self.rooms: dict[str, list[Item]] = {}

    def write(self, room: str, items: Sequence[muster.Item], at_ms: int) -> None:
        """Keep these items."""
        kept = self.rooms.setdefault(room, [])
        for item in items:
            if isinstance(item, muster.Message):
                place = Place(stream(item.position.stream), item.position.offset)
                kept.append(Message(place, item.sender, at_ms, item.data, item.headers))
            elif isinstance(item, muster.Gap):
                kept.append(Gap(stream(item.stream), item.first, item.last, item.reason, at_ms))

    def page(self, asked: Read) -> tuple[list[Item], bool]:
        """The items of a page without the gap that it may begin with, and whether none follows."""
        items = self.rooms.get(asked.room, [])
        if asked.back:
            end = len(items)
            if asked.at is not None:
                end = next((at for at, item in enumerate(items) if reaches(item, asked.at)), len(items))
            elif asked.since_ms is not None:
                end = next((at for at, item in enumerate(items) if item.at_ms >= asked.since_ms), len(items))
            return limited(items[:end][::-1], asked.limit)
        begin = 0
        if asked.at is not None:
            behind = [at + 1 for at, item in enumerate(items) if ends_by(item, asked.at)]
            begin = behind[-1] if behind else 0
        elif asked.since_ms is not None:
            begin = next((at for at, item in enumerate(items) if item.at_ms >= asked.since_ms), len(items))
        return limited(items[begin:], asked.limit)


def stream(known: muster.Stream) -> Stream:
    """A stream as the archive has it."""
    return known.node, known.epoch, known.generation


def reaches(item: Item, at: Place) -> bool:
    """Return whether an item has this place, or one behind it in the same stream."""
    if isinstance(item, Gap):
        return item.stream == at.stream and (item.last is None or item.last >= at.offset)
    return item.place.stream == at.stream and item.place.offset >= at.offset


def ends_by(item: Item, at: Place) -> bool:
    """Return whether an item has this place or one before it in the same stream."""
    if isinstance(item, Gap):
        return item.stream == at.stream and item.first <= at.offset
    return item.place.stream == at.stream and item.place.offset <= at.offset


def limited(items: Sequence[Item], limit: int) -> tuple[list[Item], bool]:
    """The items up to the last message within the limit."""
    found: list[Item] = []
    for at, item in enumerate(items):
        if limit == 0:
            return found, at == len(items)
        limit -= isinstance(item, Message)
        found.append(item)
    return found, True

"""Messages per second of rooms, from two lists of them: the growth of each room's offset."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

LEAST_S: Final = 0.5
"""Lists that are closer give no rate: messages come in bursts."""
MOST_S: Final = 120.0
"""A rate over a longer time says nothing about now."""

Entry = dict[str, Any]


class Rates:
    """Gives each room of a list its `per_s`, null where no earlier list had the room with the same stream. It keeps one
    number for each room of one earlier list."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: Mapping[str, tuple[Any, int]] = {}
        self._last: Mapping[str, float | None] = {}

    def add(self, rooms: Sequence[Entry], at: float) -> list[Entry]:
        """The rooms with their rates. `at`: seconds of a steady clock."""
        past = at - self._at
        if self._before and past < LEAST_S:
            return [{**room, "per_s": self._last.get(room["name"])} for room in rooms]
        known = self._before if past <= MOST_S else {}
        found = {room["name"]: _rate(known.get(room["name"]), room, past) for room in rooms}
        self._at, self._last = at, found
        self._before = {room["name"]: (room["stream"], room["next_offset"]) for room in rooms}
        return [{**room, "per_s": found[room["name"]]} for room in rooms]


def _rate(before: tuple[Any, int] | None, room: Entry, past: float) -> float | None:
    if before is None or before[0] != room["stream"] or room["next_offset"] < before[1]:
        return None
    grown: int = room["next_offset"] - before[1]
    return round(grown / past, 2)

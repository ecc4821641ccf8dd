"""The order of messages with a key: which of a topic's due messages may be fired now.

Owns the lane of each key: the messages that are open, from their first attempt to their end, and those that wait behind
them by due time. It must not know claims, workers or the schedule.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

DUES_MAX: Final = 65_536
"""Limit of due times that are remembered, so that no two messages of one key have the same."""


class _Lane:
    """The messages of one key."""

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.waiting: list[tuple[int, int]] = []
        """A heap of due time and number."""


class Lanes:
    """The lanes of one topic. `at_once`: limit of open messages of one key."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._lanes: dict[str, _Lane] = {}
        self._open: OrderedDict[int, str] = OrderedDict()
        """Keys of the open messages."""
        self._waiting: set[int] = set()

    @property
    def waiting(self) -> int:
        """Number of messages that wait behind others of their key."""
        return len(self._waiting)

    def admit(self, key: str, number: int, due_at: int) -> bool:
        """Whether a message that is due may be fired; otherwise it waits until `ended` or `room` returns it. Call it in
        the order of due times."""
        if number in self._open:
            return True
        lane = self._lanes.setdefault(key, _Lane())
        if number not in self._waiting:
            if len(lane.open) < self.at_once and not lane.waiting:
                lane.open.add(number)
                self._open[number] = key
                return True
            heapq.heappush(lane.waiting, (due_at, number))
            self._waiting.add(number)
        return False

    def known(self, key: str, number: int, due_at: int, begun: bool) -> None:
        """A message of before: `begun`, it had its first attempt; or it waited."""
        if number in self._open or number in self._waiting:
            return
        lane = self._lanes.setdefault(key, _Lane())
        if begun:
            lane.open.add(number)
            self._open[number] = key
        else:
            heapq.heappush(lane.waiting, (due_at, number))
            self._waiting.add(number)

    def ended(self, number: int) -> Sequence[int]:
        """An open message has ended, or is not fired any more. Returns those that are open instead: they must be
        due now."""
        key = self._open.pop(number, None)
        if key is None:
            return ()
        lane = self._lanes[key]
        lane.open.discard(number)
        return self._opened(key, lane)

    def room(self) -> Sequence[int]:
        """The messages for which there is room: after `known`, or a change of `at_once`. They must be due now."""
        return [number for key, lane in list(self._lanes.items()) for number in self._opened(key, lane)]

    def _opened(self, key: str, lane: _Lane) -> Sequence[int]:
        opened: list[int] = []
        while lane.waiting and len(lane.open) < self.at_once:
            _, number = heapq.heappop(lane.waiting)
            self._waiting.discard(number)
            lane.open.add(number)
            self._open[number] = key
            opened.append(number)
        if not lane.open and not lane.waiting:
            del self._lanes[key]
        return opened

    def is_open(self, number: int) -> bool:
        """Whether a message may be fired."""
        return number in self._open

    def turn(self, most: int) -> Sequence[int]:
        """Some open messages, in turn, so that their states are looked at."""
        found = [number for number, _ in zip(self._open, range(most), strict=False)]
        for number in found:
            self._open.move_to_end(number)
        return found

    def all_waiting(self) -> Iterable[int]:
        """The numbers of all that wait."""
        return self._waiting


class Dues:
    """Due times of messages with a key: no two of one key have the same, so their order is that in which they came."""

    def __init__(self, entries_max: int = DUES_MAX) -> None:
        self._max = entries_max
        self._next: OrderedDict[tuple[int, str], dict[int, int]] = OrderedDict()
        """By topic and key: for each due time that was taken, one after it that may be free."""
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def free(self, topic: int, key: str, due_at: int) -> int:
        """Take this due time, or the first free one after it. Milliseconds."""
        taken = self._next.setdefault((topic, key), {})
        self._next.move_to_end((topic, key))
        path: list[int] = []
        at = due_at
        while at in taken:
            path.append(at)
            at = taken[at]
        for each in path:
            taken[each] = at + 1
        taken[at] = at + 1
        self._entries += 1
        while self._entries > self._max and len(self._next) > 1:
            _, oldest = self._next.popitem(last=False)
            self._entries -= len(oldest)
        if self._entries > self._max:  # of a single key: late ones go on after the latest
            self._entries -= len(taken)
            self._next[topic, key] = {due_at: at + 1, at: at + 1}
            self._entries += len(self._next[topic, key])
        return at

"""Connects and disconnects of clients that wait to be written, for reports and for index nodes that start.

Owns the waiting events, in bounded memory. It must not know Redis, nor a clock: times come in. A batch that was not
written is put back in front of later events; beyond the limit the oldest events are dropped and counted.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from muster_server.systems.fleet.index import Update
from muster_server.systems.fleet.selector import MARK

EVENTS_MAX: Final = 100_000
"""Limit of waiting events, about 20 MB; a broker's restart with 20,000 clients makes a fifth of it."""
COUNTS_MAX: Final = 200_000
OTHER: Final = "other"
"""The mark of a client without country, province, city and carrier."""

What = Literal["came", "went"]


class Session(msgspec.Struct, frozen=True):
    """An online client, as it is stored."""

    epoch: int
    version: int
    attributes: dict[str, list[str]]


class Event(msgspec.Struct, frozen=True):
    client: str
    what: What
    epoch: int
    mark: str
    at_ms: int


class Batch(msgspec.Struct):
    """The events that are written at once."""

    sessions: dict[str, Session | None]
    """None: the client left."""
    events: list[Event]
    counts: Counter[tuple[int, str, What]]
    """Number of events by minute and mark."""

    @property
    def empty(self) -> bool:
        return not (self.sessions or self.events or self.counts)


class Waiting:
    """The waiting events of one index node: for clients for which it speaks."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self.dropped = 0
        """Events that were dropped because too many waited."""
        self._events_max = events_max
        self._sessions: dict[str, Session | None] = {}
        self._events: deque[Event] = deque()
        self._counts: Counter[tuple[int, str, What]] = Counter()

    def __len__(self) -> int:
        return len(self._events) + len(self._sessions)

    def changed(self, update: Update, came: bool | None, attributes: dict[str, list[str]], at_ms: int) -> None:
        """A client came (True), went (False), or has other attributes."""
        there = update.attributes
        self._sessions[update.client] = None if there is None else Session(update.epoch, update.version, there)
        if came is None:
            return
        what: What = "came" if came else "went"
        name = mark(attributes)
        if (at_ms // 60_000, name, what) in self._counts or len(self._counts) < COUNTS_MAX:
            self._counts[at_ms // 60_000, name, what] += 1
        self._events.append(Event(update.client, what, update.epoch, name, at_ms))
        self._bound()

    def rewrite(self, records: Iterable[Update]) -> None:
        """Write these sessions again: the stored ones were lost, or are not known."""
        for each in records:
            there = each.attributes
            self._sessions[each.client] = None if there is None else Session(each.epoch, each.version, there)

    def take(self) -> Batch:
        """Take all waiting events."""
        batch = Batch(self._sessions, list(self._events), self._counts)
        self._sessions, self._counts = {}, Counter()
        self._events.clear()
        return batch

    def put_back(self, batch: Batch) -> None:
        """Put back a batch that was not written."""
        self._sessions = {**batch.sessions, **self._sessions}
        self._events.extendleft(reversed(batch.events))
        self._counts.update(batch.counts)
        self._bound()

    def _bound(self) -> None:
        while len(self._events) > self._events_max:
            self._events.popleft()
            self.dropped += 1


def mark(attributes: dict[str, list[str]]) -> str:
    """Country, province, city and carrier, in the form of selectors."""
    parts = [attributes.get(name, [""])[:1] for name in MARK[1:]]
    flat = [part[0] for part in parts if part and part[0]]
    return "_".join(flat) if len(flat) == len(MARK) - 1 else OTHER

"""Watchers of runs, and the events that wait for each.

Owns queues of events, bounded in number and length. It must not know runs, results or a store.
"""

import asyncio
from typing import Final

import msgspec

from muster_server.systems.fleet.questions import Event
from muster_server.systems.fleet.runs import RunName

EVENTS_MAX: Final = 10_000
"""Limit of events that wait for one watcher; a slower one is cut off."""
WATCHED_MAX: Final = 1_024

Queue = asyncio.Queue[Event | None]
"""A watcher's queue of events; None: no event follows."""


class Watching:
    """The watchers of one scheduler."""

    def __init__(self) -> None:
        self._queues: dict[RunName, set[Queue]] = {}
        self._count = 0

    @property
    def full(self) -> bool:
        return self._count >= WATCHED_MAX

    def anyone(self, run: RunName) -> bool:
        """Whether the run has a watcher."""
        return run in self._queues

    def open(self, run: RunName) -> Queue:
        """Open a queue with all events of this run from now on, until `close`."""
        queue = Queue(EVENTS_MAX)
        self._queues.setdefault(run, set()).add(queue)
        self._count += 1
        return queue

    def close(self, run: RunName, queue: Queue) -> None:
        """Close a queue; a second call does nothing."""
        queues = self._queues.get(run, set())
        if queue in queues:
            queues.discard(queue)
            self._count -= 1
        if not queues:
            self._queues.pop(run, None)

    def say(self, run: RunName, event: Event) -> None:
        """Add an event for each watcher; a watcher whose queue is full is cut off."""
        for queue in tuple(self._queues.get(run, ())):
            if queue.full():
                self.close(run, queue)
                _last(queue)
            else:
                queue.put_nowait(event)

    def over(self, run: RunName) -> None:
        """End the watchers of a run."""
        for queue in tuple(self._queues.get(run, ())):
            self.close(run, queue)
            _last(queue)

    def end(self) -> None:
        """End the watchers of all runs."""
        for run in tuple(self._queues):
            self.over(run)


class SeenEvents:
    """The events that a watcher has: events that come again, after a copy of the past, are recognised."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self.over = False

    def new(self, event: Event) -> Event | None:
        """The new part of an event; None: it has none."""
        if event.what == "ended":
            self.over = True
            return event
        names = [event.client] if event.what == "result" else event.clients
        fresh = [name for name in names if (event.what, name) not in self._known]
        self._known.update((event.what, name) for name in fresh)
        if not fresh:
            return None
        return event if event.what == "result" else msgspec.structs.replace(event, clients=fresh)


def _last(queue: Queue) -> None:
    """Add the end; in a full queue it replaces one event."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)

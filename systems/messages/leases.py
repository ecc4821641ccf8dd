"""Leases of messages: programs take due messages of a topic whose target is `pull:`, and say what came of them.

Owns requests that wait for messages, the rate of each topic, and which claim of a message its lease stands for. The
schedule is the truth: a lease is a claim there, and its end counts only while no other claim was won. It must not know HTTP.
"""

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from muster_server.systems.messages.bucket import Bucket
from muster_server.systems.messages.shapes import Fire
from muster_server.systems.messages.topics import Topic

WORKERS: Final = 1 << 63
"""Workers of leases are numbered from here on: beyond those of all nodes."""
LEASE_S_MAX: Final = 3_600.0
WAITING_MAX: Final = 4_096
"""Requests that wait at once; a further one is refused with `busy`."""
LOOK_S: Final = 0.05
"""Messages that are due are here within this; a request that waits for nothing is answered after it."""
MOVED_MAX: Final = 65_536
"""Limit of recently extended leases that are remembered, so that a repeated extension finds its claim."""


class Busy(Exception):
    """Too many requests wait."""


class _Waiting:
    """A request that waits for messages."""

    def __init__(self, topic: Topic, lease_s: float) -> None:
        self.topic, self.lease_ms, self.attempts_max = topic.number, int(lease_s * 1_000), topic.attempts_max
        self.fires: list[Fire] = []
        self.there = asyncio.Event()


class Leases:
    """`serve` and `leave` are those of the schedule; `release` gives messages back that nobody waits for any more."""

    def __init__(
        self,
        serve: Callable[[int, int, int, int, int], None],
        leave: Callable[[int], None],
        release: Callable[[Sequence[Fire]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serve, self._leave, self._release, self._monotonic = serve, leave, release, monotonic
        self._numbers = itertools.count(WORKERS)
        self._waiting: dict[int, _Waiting] = {}
        self._buckets: dict[int, Bucket] = {}
        self._moved: OrderedDict[tuple[int, int], int] = OrderedDict()
        """Claims after their last extension, by message and first claim."""
        self.leased = self.extended = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def take(self, topic: Topic, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        """Up to `most` due messages, claimed for `lease_s`; none where none is due within `wait_s`. Raises `Busy`."""
        if len(self._waiting) >= WAITING_MAX:
            raise Busy
        if topic.paused:
            await asyncio.sleep(max(wait_s, LOOK_S))
            return []
        until = self._monotonic() + max(wait_s, LOOK_S)
        bucket = self._bucket(topic)
        while bucket is not None and not (allowed := bucket.take(most, self._monotonic())):
            pause = bucket.wait_s()
            if self._monotonic() + pause >= until:
                await asyncio.sleep(max(0.0, until - self._monotonic()))
                return []
            await asyncio.sleep(pause)
        if bucket is not None:
            most = allowed
        fires: list[Fire] = []
        try:
            fires = await self._fires(topic, most, until - self._monotonic(), lease_s)
        finally:
            if bucket is not None:
                bucket.give_back(most - len(fires))
        self.leased += len(fires)
        return fires

    def pause(self, topic: int) -> None:
        """End the requests that wait for a topic: it gives no message."""
        for waiting in self._waiting.values():
            if waiting.topic == topic:
                waiting.there.set()

    async def _fires(self, topic: Topic, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        worker, waiting = next(self._numbers), _Waiting(topic, lease_s)
        self._waiting[worker] = waiting
        try:
            self._serve(waiting.topic, worker, waiting.lease_ms, waiting.attempts_max, most)
            try:
                async with asyncio.timeout(max(wait_s, LOOK_S)):
                    await waiting.there.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(0)  # those that were claimed with the first ones
        except asyncio.CancelledError:
            self._release(waiting.fires)
            raise
        finally:
            del self._waiting[worker]
            self._leave(worker)
        return waiting.fires

    def serve_again(self, worker: int, count: int) -> None:
        """A request takes as many others instead."""
        waiting = self._waiting.get(worker)
        if waiting is not None:
            self._serve(waiting.topic, worker, waiting.lease_ms, waiting.attempts_max, count)

    def _bucket(self, topic: Topic) -> Bucket | None:
        found = self._buckets.get(topic.number)
        if not topic.rate:
            self._buckets.pop(topic.number, None)
            return None
        if found is None or found.rate != topic.rate:
            found = self._buckets[topic.number] = Bucket(topic.rate, self._monotonic())
        return found

    def on_fires(self, worker: int, fires: bytes) -> bool:
        """The schedule claimed messages for a worker. False: it is no worker of leases."""
        if worker < WORKERS:
            return False
        found = msgspec.msgpack.decode(fires, type=list[Fire])
        waiting = self._waiting.get(worker)
        if waiting is None:  # the request has its answer
            self._release(found)
        else:
            waiting.fires += found
            waiting.there.set()
        return True

    # --- their ends -----------------------------------------------------------------------------------------------

    def claim(self, number: int, claim: int) -> int:
        """The claim that a lease stands for, after its extensions."""
        for _ in range(MOVED_MAX):
            moved = self._moved.get((number, claim))
            if moved is None:
                break
            claim = moved
        return claim

    def extended_to(self, number: int, before: int, claim: int) -> None:
        """A claim was extended."""
        self.extended += 1
        self._moved[number, before] = claim
        while len(self._moved) > MOVED_MAX:
            self._moved.popitem(last=False)

"""Messages with a key, in topics that bound how many of one key are open, or leave in a second: which are let through, and
which are parked.

A message that is due behind others of its key, or before its key's rate allows it, is given back to the schedule until
its turn, so it can be cancelled, and no memory but its number is needed. After a start, the lanes are read from the
schedule before the topic fires anything. It must not know workers' credits.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.key_rates import KeyRates
from muster_server.systems.messages.lanes import Dues, Lanes
from muster_server.systems.messages.schedule import SAID, NewMessage, Reply, Schedule, place
from muster_server.systems.messages.shapes import Envelope, Fire, Result
from muster_server.systems.messages.topics import Topic

PARK_MS: Final = 600_000
"""A parked message is due by itself after this time, if its turn has not come."""
PAGE: Final = 1_000
"""Messages of one request to the schedule."""
MARGIN_MS: Final = 60_000
"""Beyond the longest interval of a retry: for a clock that was set."""
POLL_MAX: Final = 200
"""Limit of open messages of a topic whose states are looked at in one sweep."""
AGAIN_S: Final = 0.1
ENDED: Final = frozenset({"done", "cancelled", "expired"})
OVER: Final = frozenset({"withdrawn", "expired", "unknown"})
"""Refusals of messages that are not fired any more."""
DELIVERED: Final = SAID["delivered"][0]
BURIED: Final = SAID["buried"][0]

_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)
_FIRES: Final = msgspec.msgpack.Decoder(list[Fire])
_RESULTS: Final = msgspec.msgpack.Decoder(list[Result])
_NEW: Final = msgspec.msgpack.Decoder(list[NewMessage])


class Ordering:
    """The lanes of all topics that have some. Runs in the loop of the center."""

    def __init__(
        self,
        schedule: Schedule,
        log: structlog.typing.FilteringBoundLogger,
        wall: Callable[[], int],
        monotonic: Callable[[], float],
        *,
        passed: Callable[[int, bytes], None],
        parked: Callable[[int, int, int], None],
        ready: Callable[[int], None],
    ) -> None:
        """`passed`: a worker may fire an array of `Fire`. `parked`: a worker does not get some messages of a topic that were
        claimed for it. `ready`: a topic may fire."""
        self._schedule, self._log, self._wall, self._monotonic = schedule, log, wall, monotonic
        self._passed, self._parked, self._ready = passed, parked, ready
        self._lanes: dict[int, Lanes] = {}
        self._rates: dict[int, KeyRates] = {}
        """By topic with a rate of each key."""
        self._stops: set[int] = set()
        """Topics whose dead letters keep the lane of their key closed."""
        self._loading: set[int] = set()
        self._dues = Dues()
        self._pending: list[tuple[int, Fire]] = []
        self._parking: dict[int, bool] = {}
        """Messages that are being given back; whether their turn has come meanwhile."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls = False

    # --- topics -------------------------------------------------------------------------------------------------

    def topics_changed(self, topics: Sequence[Topic]) -> None:
        """Use these topics."""
        keyed = {topic.number: topic for topic in topics if topic.per_key}
        there = {topic.number for topic in topics}
        self._stops = {number for number, topic in keyed.items() if topic.dead_stops_key}
        for number in self._lanes.keys() - keyed.keys():
            lanes = self._lanes.pop(number)
            self._loading.discard(number)
            if number in there:
                self._wake(number, list(lanes.all_waiting()))
        for number, topic in keyed.items():
            known = self._lanes.get(number)
            if known is None:
                self._lanes[number] = Lanes(topic.per_key)
                self._loading.add(number)
                self._start(self._load(topic))
            elif known.at_once != topic.per_key:
                known.at_once = topic.per_key
                self._wake(number, known.room())
        self._rates_changed({topic.number: topic.rate_per_key for topic in topics})

    def _rates_changed(self, rates: Mapping[int, float]) -> None:
        for number, known in list(self._rates.items()):
            if rates.get(number) != known.rate:
                del self._rates[number]
                if number in rates:
                    self._wake(number, list(known.all_waiting()))
        for number, rate in rates.items():
            if rate and number not in self._rates:
                self._rates[number] = KeyRates(rate)

    def is_ready(self, topic: int) -> bool:
        """Whether a topic may fire."""
        return topic not in self._loading

    @property
    def waiting(self) -> int:
        """Number of due messages that wait behind others of their key."""
        return sum(lanes.waiting for lanes in self._lanes.values())

    @property
    def early(self) -> int:
        """Number of due messages that wait for the rate of their key."""
        return sum(rates.waiting for rates in self._rates.values())

    async def _load(self, settings: Topic) -> None:
        """Read from the schedule which messages are open, and which wait."""
        topic = settings.number
        # An open message is under a claim, dead, or has its next attempt by then.
        longest_ms = max((*settings.retries_ms, round(settings.retry_after_max_s * 1_000), PARK_MS))
        end = self._wall() + 2 * longest_ms + MARGIN_MS
        while (lanes := self._lanes.get(topic)) is not None:
            try:
                await self._load_pages(topic, lanes, end)
                break
            except StoreError:  # the process ends, or the schedule comes back
                await asyncio.sleep(1.0)
        if lanes is None or self._lanes.get(topic) is not lanes:
            return
        self._loading.discard(topic)
        self._wake(topic, lanes.room())
        self._admit()
        self._ready(topic)

    async def _load_pages(self, topic: int, lanes: Lanes, end: int) -> None:
        states = ["scheduled", "firing", *(["dead"] if topic in self._stops else ())]
        after: tuple[int, int] | None = None
        while True:
            said = await self._schedule.find(topic, 0, end, states, PAGE, after)
            if said[0] == "busy":
                await asyncio.sleep(AGAIN_S)
                continue
            listed = said[1]
            begun = [message[0] for message, _ in listed if message[5] != "scheduled"]
            for reply in await self._schedule.get(begun):
                if reply[0] != "found" or not (key := _ENVELOPES.decode(reply[3]).key):
                    continue
                number, _, due_at, _, attempts, state, *_ = reply[1]
                if not self._has_ended(topic, state):  # it may have ended since it was listed
                    lanes.known(key, number, due_at, begun=state != "retry" or attempts > 0)
            if len(listed) < PAGE:
                return
            after = place(listed[-1][0])

    # --- messages -----------------------------------------------------------------------------------------------

    def numbered(self, messages: bytes) -> bytes:
        """New messages, an array of `NewMessage`: those of one key get different due times, in the order in which they
        came."""
        if not self._lanes:
            return messages
        given, moved = _NEW.decode(messages), False
        for at, (number, topic, due_at, expires_at, body) in enumerate(given):
            if topic in self._lanes and (key := _ENVELOPES.decode(body).key):
                free = self._dues.free(topic, key, due_at)
                if free != due_at:
                    given[at], moved = (number, topic, free, expires_at, body), True
        return msgspec.msgpack.encode(given) if moved else messages

    def take(self, worker: int, fires: bytes) -> bytes | None:
        """Claimed messages, an array of `Fire`. Returns those that have no order; None: there are none. The others come
        through `passed` or `parked`."""
        keyed = self._lanes.keys() | self._rates.keys()
        if not keyed:
            return fires
        found = _FIRES.decode(fires)
        rest = [fire for fire in found if fire.topic not in keyed]
        if len(rest) == len(found):
            return fires
        if not self._pending:  # all that were claimed at once: the arrays of several workers are not in order
            asyncio.get_running_loop().call_soon(self._admit)
        self._pending += [(worker, fire) for fire in found if fire.topic in keyed]
        return msgspec.msgpack.encode(rest) if rest else None

    def _admit(self) -> None:
        waits = [each for each in self._pending if each[1].topic in self._loading]
        pending = [each for each in self._pending if each[1].topic not in self._loading]
        self._pending = waits
        passed: dict[int, list[Fire]] = defaultdict(list)
        parked: dict[tuple[int, int], list[tuple[Fire, int]]] = defaultdict(list)
        wall, now_us = self._wall(), int(self._monotonic() * 1e6)
        for worker, fire in sorted(pending, key=lambda each: (each[1].due_at, each[1].number)):
            key = _ENVELOPES.decode(fire.envelope).key
            wait_ms = self._wait_ms(key, fire, now_us) if key else 0
            if wait_ms:
                parked[worker, fire.topic].append((fire, wall + wait_ms))
            else:
                passed[worker].append(fire)
        for worker, fires in passed.items():
            self._passed(worker, msgspec.msgpack.encode(fires))
        for (worker, topic), early in parked.items():
            self._parking.update((fire.number, False) for fire, _ in early)
            self._start(self._park(topic, early))
            self._parked(worker, topic, len(early))

    def _wait_ms(self, key: str, fire: Fire, now_us: int) -> int:
        """The time until a message may be fired, or is looked at again; 0: it may be fired now."""
        lanes, rates = self._lanes.get(fire.topic), self._rates.get(fire.topic)
        if lanes is not None and not lanes.admit(key, fire.number, fire.due_at):
            return PARK_MS
        return 0 if rates is None else -(-rates.admit(key, fire.number, now_us) // 1_000)

    async def _park(self, topic: int, fires: Sequence[tuple[Fire, int]]) -> None:
        """Give these back until their times."""
        try:
            await self._schedule.change([(fire.number, "release", fire.claim, until) for fire, until in fires])
        finally:
            wanted = [fire.number for fire, _ in fires if self._parking.pop(fire.number, False)]
        self._wake(topic, wanted)

    def settled(self, results: bytes, said: bytes) -> None:
        """Results, an array of `Result`, and what the schedule said of each."""
        if not self._lanes:
            return
        for result, byte in zip(_RESULTS.decode(results), said, strict=True):
            if byte == DELIVERED or (byte == BURIED and result.topic not in self._stops):
                self._end(result.topic, result.number)

    def changed(self, topic: int, replies: Iterable[Reply]) -> None:
        """Changes by operators and producers."""
        if topic in self._lanes:
            for reply in replies:
                if reply[0] == "changed" and reply[2] in {"cancelled", "dropped"}:
                    self._end(topic, reply[1][0])

    def _end(self, topic: int, number: int) -> None:
        if (lanes := self._lanes.get(topic)) is not None:
            self._wake(topic, lanes.ended(number))

    def _wake(self, topic: int, numbers: Sequence[int]) -> None:
        """The turn of these has come."""
        now = [each for each in numbers if each not in self._parking]
        for begin in range(0, len(now), PAGE):
            self._start(self._wake_some(topic, now[begin : begin + PAGE]))
        self._parking.update((each, True) for each in numbers if each in self._parking)

    async def _wake_some(self, topic: int, numbers: Sequence[int]) -> None:
        now = self._wall()
        replies = await self._schedule.change([(each, "wake", None, now) for each in numbers])
        for number, reply in zip(numbers, replies, strict=True):
            if reply[0] == "refused" and reply[1] in OVER:
                self._end(topic, number)

    # --- what no result tells -----------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at some open messages: one that was cancelled, expired or buried ends without a result."""
        for rates in self._rates.values():
            rates.sweep(int(self._monotonic() * 1e6))
        if self._lanes and not self._polls:
            self._polls = True
            self._start(self._poll())

    async def _poll(self) -> None:
        try:
            for topic, lanes in list(self._lanes.items()):
                numbers = lanes.turn(POLL_MAX)
                for number, reply in zip(numbers, await self._schedule.get(numbers), strict=True):
                    self._look(topic, number, reply)
        finally:
            self._polls = False

    def _look(self, topic: int, number: int, reply: Reply) -> None:
        if reply[0] != "found":
            self._end(topic, number)
            return
        _, _, _, _, attempts, state, time, *_ = reply[1]
        if self._has_ended(topic, state):
            self._end(topic, number)
        elif (
            state == "retry"
            and not attempts
            and time > self._wall() + PARK_MS // 2
            and not self._is_early(topic, number)
        ):
            self._wake(topic, [number])  # it was not woken

    def _has_ended(self, topic: int, state: str) -> bool:
        return state in ENDED or (state == "dead" and topic not in self._stops)

    def _is_early(self, topic: int, number: int) -> bool:
        return (rates := self._rates.get(topic)) is not None and rates.has(number)

    def _start(self, task: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(task)
        self._tasks.add(running)
        running.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, StoreError):
                raise error
            self._log.warning("cannot move messages of a key; they are looked at again", why=str(error))

    async def close(self) -> None:
        """Stop all work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

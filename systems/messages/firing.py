"""A worker's part: callbacks for its messages, and their results.

The engine makes callbacks: it reads arrays of fires and makes arrays of results, so no Python runs for a callback. This
file has the other kinds of targets, and the waiting messages. It must not know how fires come and results go. Nothing
is fired unless its claim outlasts it, nor before it is due by the wall clock (I-7).
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster.clock import now_ms
from muster_server import _engines
from muster_server.systems.messages.engines import Engines
from muster_server.systems.messages.shapes import Envelope, Fire, HeldTarget, Result
from muster_server.systems.messages.targets import Kind, Target, TargetError, lacks, parse
from muster_server.systems.messages.topics import Topic, Topics

PLACE_S: Final = 5.0
"""Seconds that a callback waits for its target's limit."""
MARGIN_MS: Final = 1_000
"""A claim is not used if it ends within this time after the callback's own limit."""
BEHIND_MS: Final = 10_000
"""A claim outlasts its callback by 15 s: if this clock is behind by more, no claim lasts until the message is due."""
GONE_MS: Final = 60_000
"""A message of an unknown topic is due again after this time."""
RESULTS_MAX: Final = 500
"""Limit of results in one piece to the center."""

_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)
_FIRES: Final = msgspec.msgpack.Decoder(list[Fire])

Publish = Callable[[str, Envelope, str], Awaitable[None]]
"""Hands a message of the topic, which comes last, to the named target, which acknowledges it. Raises `PublishError`."""


class PublishError(Exception):
    """A message was not acknowledged. The text is one line. `lasting`: no retry can succeed."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Firing:
    """Call `open` once and `close` once. `results` is set while there are some."""

    def __init__(
        self,
        topics: Topics,
        publishers: Mapping[Kind, Publish],
        log: structlog.typing.FilteringBoundLogger,
        **client: Any,
    ) -> None:
        """`publishers`: for targets other than callbacks. `client`: the settings of `_engines.FiringEngine`."""
        self._topics, self._publishers, self._log = topics, publishers, log
        self._settings = client
        self._engine: Engines | None = None
        self._plans: dict[tuple[tuple[int, ...], int], _engines.RetryPlan] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._told_at = 0
        self.results = asyncio.Event()
        self._made: dict[str, int] = dict.fromkeys(("delivered", "refused", "failed", "not_made", "out_of_time"), 0)
        """Attempts of the targets that the engine does not call."""

    def open(self) -> None:
        """Start the threads of callbacks."""
        self._engine = Engines(self._answered, wait_max=PLACE_S, **self._settings)
        self.topics_changed()

    def close(self) -> None:
        """Cut off everything in progress; the center notices when the claims run out."""
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def topics_changed(self) -> None:
        """Use the current topics."""
        if self._engine is not None:
            self._engine.topics(self._topics.all())

    @property
    def under_way(self) -> int:
        """Number of callbacks without an answer."""
        calls = 0 if self._engine is None else self._engine.under_way()
        return calls + len(self._tasks) + len(self._timers)

    @property
    def waiting(self) -> int:
        """Number of results that the center does not have."""
        return 0 if self._engine is None else self._engine.waiting()

    @property
    def made(self) -> dict[str, int]:
        """Attempts by outcome."""
        made = {} if self._engine is None else self._engine.made()
        return {name: count + made.get(name, 0) for name, count in self._made.items()}

    def held(self) -> list[HeldTarget]:
        """Targets that get nothing now, or only trials."""
        if self._engine is None:
            return []
        now = now_ms()
        return [
            HeldTarget(topic, url, why, now + round(left * 1_000))
            for topic, url, why, left in sorted(self._engine.held(), key=str)
        ]

    # --- fires --------------------------------------------------------------------------------------------------

    def take(self, fires: bytes) -> None:
        """Fire these, an array of `Fire`, each at its time."""
        if self._engine is None:
            return
        back = self._engine.take(now_ms(), fires)
        if back is not None:
            self._other(_FIRES.decode(back))
        if self._engine.waiting():
            self.results.set()

    def _other(self, fires: Sequence[Fire]) -> None:
        """Handle fires that the engine does not make."""
        now = now_ms()
        for fire in fires:
            wait = fire.due_at - now
            if wait > 0 and fire.attempts == 1:  # the clock of another machine
                self._behind(fire, wait)
                continue
            topic = self._topics.numbered(fire.topic)
            if topic is None and self._topics.look():
                self.topics_changed()
                topic = self._topics.numbered(fire.topic)
            if topic is None:
                self._release(fire, now + GONE_MS)
                continue
            if now + topic.timeout_s * 1_000 + MARGIN_MS > fire.until:
                self._made["out_of_time"] += 1
                self._release(fire, now)
                continue
            try:
                envelope = _ENVELOPES.decode(fire.envelope)
                target = parse(envelope.target or topic.callback)
            except (msgspec.MsgspecError, TargetError) as error:
                self._fail(fire, None, "failed", None, str(error).encode())
                continue
            if target.kind == "pull":  # programs lease the topic's messages since a moment ago
                self._release(fire, now)
                continue
            late = now - fire.due_at if fire.attempts == 1 else -1
            if target.kind != "callback":
                self._hand(fire, topic, target, envelope, late)
            elif self._take_again(fire):  # the engine did not know its topic
                self._release(fire, now + GONE_MS)

    def _take_again(self, fire: Fire) -> bool:
        """Try the engine again; returns whether it still does not make it."""
        assert self._engine is not None
        return self._engine.take(now_ms(), msgspec.msgpack.encode([fire])) is not None

    def _behind(self, fire: Fire, by_ms: int) -> None:
        """The center's clock is ahead of this one, so the message is not due here. No attempt is made."""
        if by_ms <= BEHIND_MS:
            self._wait(fire, by_ms)
            return
        self._made["out_of_time"] += 1
        self._release(fire, fire.until)
        if now_ms() - self._told_at > BEHIND_MS or now_ms() < self._told_at:
            self._told_at = now_ms()
            self._log.warning(
                "this clock is behind the center's; giving back messages that are not due by it", by_ms=by_ms
            )

    def _wait(self, fire: Fire, wait_ms: int) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self.take(msgspec.msgpack.encode([fire]))

        timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, due)
        self._timers.add(timer)

    def _hand(self, fire: Fire, topic: Topic, target: Target, envelope: Envelope, late: int) -> None:
        publisher = self._publishers.get(target.kind)
        if publisher is None:
            self._fail(fire, None, "failed", None, lacks(target.kind).encode())
            return

        async def publish() -> None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(topic.timeout_s):
                    await publisher(target.name, envelope, topic.name)
            except (PublishError, TimeoutError) as error:
                self._made["failed"] += 1
                cause = str(error) or "timeout"
                lasting = isinstance(error, PublishError) and error.lasting
                following = None if lasting else self._next(fire, topic, None)
                self._fail(fire, following, "failed", None, cause.encode(), late, began)
                return
            self._made["delivered"] += 1
            self._deliver(fire, late, (time.monotonic() - began) * 1_000)

        task = asyncio.create_task(publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- results ------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        assert self._engine is not None
        self._engine.collect(now_ms(), random.getrandbits(63))
        if self._engine.waiting():
            self.results.set()

    def _next(self, fire: Fire, topic: Topic, retry_after_ms: int | None) -> int | None:
        place = topic.retries_ms, topic.jitter
        plan = self._plans.get(place)
        if plan is None:
            plan = self._plans[place] = _engines.RetryPlan(topic.retries_ms, jitter=topic.jitter)
        now = min(now_ms(), fire.until)  # this clock may have been set forward since
        return plan.next(fire.attempts, now, retry_after_ms, random.getrandbits(63))

    def _deliver(self, fire: Fire, late: int, took_ms: float, status: int | None = None) -> None:
        self._tell(Result(fire.number, fire.topic, fire.claim, "deliver", None, late, took_ms, "delivered", status))

    def _fail(
        self,
        fire: Fire,
        following: int | None,
        outcome: str,
        status: int | None,
        answer: bytes,
        late: int = -1,
        began: float | None = None,
    ) -> None:
        took_ms = 0.0 if began is None else (time.monotonic() - began) * 1_000
        self._tell(
            Result(fire.number, fire.topic, fire.claim, "fail", following, late, took_ms, outcome, status, answer)
        )

    def _release(self, fire: Fire, following: int) -> None:
        """Give back a message without an attempt. It is due again at the latest at the end of its claim, because this
        wall clock may be ahead."""
        following = min(following, fire.until)
        self._tell(Result(fire.number, fire.topic, fire.claim, "release", following, -1, 0.0))

    def _tell(self, result: Result) -> None:
        if self._engine is not None:
            self._engine.tell(msgspec.msgpack.encode([result]))
            self.results.set()

    def piece(self) -> bytes:
        """Results for the center, the oldest first: an array of `Result`. They stay here until `told`."""
        return b"\x90" if self._engine is None else self._engine.piece(RESULTS_MAX)

    def told(self, taken: bytes) -> None:
        """The center has these results of the last piece; those with 0 stay."""
        if self._engine is not None:
            self._engine.told(taken)
        if not self.waiting:
            self.results.clear()

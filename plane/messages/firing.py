"""A worker's part: callbacks for the messages it holds, and what came of them.

Owns what is under way here, the retry table of each topic, and results until the center has them. It must not know how
fires come and results go. Nothing is fired unless its claim outlasts it, nor before it is due by the wall clock (I-7).
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster import _core
from plane.messages.shapes import Envelope, Fire, Result
from plane.messages.targets import Target, TargetError, parse
from plane.messages.topics import Topic, Topics

PLACE_S: Final = 5.0
"""A callback waits so long for a place at its target."""
MARGIN_MS: Final = 1_000
"""A claim that ends sooner than this after the callback's own end is not used."""
GONE_MS: Final = 60_000
"""A message of a topic that is not known here is due again after this."""
AGAIN_MS: Final = 250
RESULTS_MAX: Final = 500
"""In one piece to the center."""
LASTING: Final = frozenset({"bad_url", "forbidden_address"})
"""Causes that no retry mends: a dead letter at once."""

_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)

Publish = Callable[[str, bytes], Awaitable[None]]
"""Publish to a room. Raises `PublishError`."""


class PublishError(Exception):
    """A room's message was not acknowledged. One line."""


class Firing:
    """`open` once, `close` once. `changed` is called when there are results."""

    def __init__(
        self,
        topics: Topics,
        publish: Publish,
        log: structlog.typing.FilteringBoundLogger,
        **client: Any,
    ) -> None:
        """`client`: the settings of `_core.CallbackClient`."""
        self._topics, self._publish, self._log = topics, publish, log
        self._client_settings = client
        self._client: _core.CallbackClient | None = None
        self._calls: dict[int, tuple[Fire, Topic, int]] = {}
        """By call: the fire, its topic, its lateness."""
        self._number = 0
        self._plans: dict[tuple[tuple[int, ...], int], _core.RetryPlan] = {}
        self._results: deque[Result] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self.results = asyncio.Event()
        self.made: dict[str, int] = dict.fromkeys(("delivered", "refused", "failed", "not_made", "out_of_time"), 0)

    def open(self) -> None:
        """Start the thread of callbacks."""
        self._client = _core.CallbackClient(wait_max=PLACE_S, **self._client_settings)
        asyncio.get_running_loop().add_reader(self._client.fd(), self._answered)

    def close(self) -> None:
        """Cut off what is under way; the center learns it when the claims run out."""
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        if self._client is not None:
            asyncio.get_running_loop().remove_reader(self._client.fd())
            self._client.close()
            self._client = None

    @property
    def under_way(self) -> int:
        """Callbacks that are not answered."""
        return len(self._calls) + len(self._tasks) + len(self._timers)

    @property
    def waiting(self) -> int:
        """Results that the center does not have."""
        return len(self._results)

    # --- in -----------------------------------------------------------------------------------------------------

    def take(self, fires: Sequence[Fire]) -> None:
        """Fire these, each at its time."""
        now = _wall()
        calls: list[tuple[int, str, str, str, bytes, list[str], float]] = []
        for fire in fires:
            wait = fire.due_at - now
            if wait > 0 and fire.attempts == 1:  # the clock of another machine
                self._wait(fire, wait)
                continue
            topic = self._topics.numbered(fire.topic)
            if topic is None and self._topics.look():
                topic = self._topics.numbered(fire.topic)
            if topic is None:
                self._release(fire, now + GONE_MS)
                continue
            if now + topic.timeout_s * 1_000 + MARGIN_MS > fire.until:
                self.made["out_of_time"] += 1
                self._release(fire, now)
                continue
            try:
                envelope = _ENVELOPES.decode(fire.envelope)
                target = parse(envelope.target or topic.callback)
            except (msgspec.MsgspecError, TargetError) as error:
                self._fail(fire, None, "failed", None, str(error).encode())
                continue
            late = now - fire.due_at if fire.attempts == 1 else -1
            if target.kind == "room":
                self._room(fire, topic, target, envelope.body, late)
                continue
            self._number += 1
            self._calls[self._number] = fire, topic, late
            calls.append(
                (
                    self._number,
                    envelope.id,
                    target.name,
                    envelope.kind,
                    envelope.body,
                    list(topic.secrets),
                    topic.timeout_s,
                )
            )
        if calls and self._client is not None:
            self._submit(calls)

    def _submit(self, calls: list[tuple[int, str, str, str, bytes, list[str], float]]) -> None:
        assert self._client is not None
        taken = self._client.submit(calls)
        for number, *_ in calls[taken:]:
            fire, _, _ = self._calls.pop(number)
            self.made["not_made"] += 1
            self._release(fire, _wall() + AGAIN_MS)

    def _wait(self, fire: Fire, wait_ms: int) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self.take([fire])

        timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, due)
        self._timers.add(timer)

    def _room(self, fire: Fire, topic: Topic, target: Target, body: bytes, late: int) -> None:
        async def publish() -> None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(topic.timeout_s):
                    await self._publish(target.name, body)
            except (PublishError, TimeoutError) as error:
                self.made["failed"] += 1
                cause = str(error) or "timeout"
                self._fail(fire, self._next(fire, topic, None), "failed", None, cause.encode(), late, began)
                return
            self.made["delivered"] += 1
            self._deliver(fire, late, (time.monotonic() - began) * 1_000)

        task = asyncio.create_task(publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- out ----------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        assert self._client is not None
        for number, outcome, status, detail, retry_in, took in self._client.take():
            fire, topic, late = self._calls.pop(number)
            self.made[outcome] += 1
            if outcome == "delivered":
                self._deliver(fire, late, took * 1_000, status)
            elif outcome == "not_made":
                self._release(fire, _wall() + max(AGAIN_MS, int((retry_in or 0.0) * 1_000)))
            else:
                answer = detail if isinstance(detail, bytes) else detail.encode()
                lasting = outcome == "failed" and detail in LASTING
                after = None if retry_in is None else int(retry_in * 1_000)
                following = None if lasting else self._next(fire, topic, after)
                self._fail(fire, following, outcome, status, answer, late, time.monotonic() - took)

    def _next(self, fire: Fire, topic: Topic, retry_after_ms: int | None) -> int | None:
        place = topic.retries_ms, topic.jitter
        plan = self._plans.get(place)
        if plan is None:
            plan = self._plans[place] = _core.RetryPlan(topic.retries_ms, jitter=topic.jitter)
        return plan.next(fire.attempts, _wall(), retry_after_ms, random.getrandbits(63))

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
        self._tell(Result(fire.number, fire.topic, fire.claim, "release", following, -1, 0.0))

    def _tell(self, result: Result) -> None:
        self._results.append(result)
        self.results.set()

    def piece(self) -> list[Result]:
        """Results to tell the center, the oldest first. They stay here until `told`."""
        return [self._results[place] for place in range(min(len(self._results), RESULTS_MAX))]

    def told(self, taken: Sequence[bool]) -> None:
        """The center has these of the last piece; the others stay."""
        kept = [self._results.popleft() for _ in taken]
        self._results.extendleft(reversed([each for each, has in zip(kept, taken, strict=True) if not has]))
        if not self._results:
            self.results.clear()


def _wall() -> int:
    return time.time_ns() // 1_000_000

"""A worker: leases tasks, calls their handlers, and says what came of them.

Owns the tasks that it holds, from the lease to its end. A lease is extended at a third of its time, also while a task waits.
On `stop` a worker leases no more, gives back what it has not begun, and finishes the rest within `drain_s`. It must not know
where handlers come from, nor signals.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final
from urllib.parse import quote

from ..errors import Invalid, MusterError, Refused, TimedOut, Unavailable
from .declared import Handler, Hopeless, Tasks, arguments_of, path, result_of
from .order import Order

AT_ONCE: Final = 8
DRAIN_S: Final = 30.0
WAIT_S: Final = 20.0
"""The face answers a request for tasks after this, also without any."""
AHEAD_S: Final = 0.1
"""Tasks that a worker does in this time are leased ahead."""
AHEAD_MAX: Final = 500
BATCH_MAX: Final = 1_000
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 5.0
"""Pause after a face that did not answer, doubled up to the second figure; a random half of it is waited."""
EXTEND_SHARE: Final = 1 / 3
LOOK_SHARE: Final = 1 / 12
EXTENDING_S: Final = 0.01
WHY_CHARS_MAX: Final = 500
GONE: Final = frozenset({"bad_credential", "no_credential", "not_allowed", "not_found", "bad_request", "bad_body"})
"""Codes that no other try mends: the worker ends with them."""

log = logging.getLogger("muster.tasks")


@dataclass(slots=True)
class Figures:
    """Counts of a worker's tasks, by outcome."""

    leased: int = 0
    done: int = 0
    again: int = 0
    dead: int = 0
    lost: int = 0
    """Ends that came too late: another worker has the task, or it has its end."""
    back: int = 0
    """Given back without an attempt."""


class _Held:
    """A task under a lease."""

    __slots__ = ("began", "document", "extending", "handler", "lease", "lease_s", "running", "told")

    def __init__(self, handler: Handler[Any, Any], document: Mapping[str, Any], began: float) -> None:
        self.handler, self.document = handler, document
        self.lease: str = document["lease"]
        self.lease_s = handler.lease_s
        self.began = began
        """Since when the lease lasts."""
        self.running = self.told = self.extending = False


class Worker:
    """Runs the tasks of `tasks`. `run` once."""

    def __init__(
        self, tasks: Tasks, *, at_once: int = AT_ONCE, order: Order | None = None, drain_s: float = DRAIN_S
    ) -> None:
        """`at_once`: tasks that run beside each other. `order`: its topics; without it all that have handlers, in the order
        of their handlers. Raises `Invalid`."""
        self.order = Order([(topic, Fraction(0)) for topic in tasks.handlers]) if order is None else order
        if at_once < 1:
            raise Invalid(f"invalid at_once {at_once} (expected at least 1)")
        missing = [topic for topic in self.order.topics if topic not in tasks.handlers]
        if missing:
            raise Invalid(f"topic {missing[0]} has no handler here")
        self._tasks, self._at_once, self._drain_s = tasks, at_once, drain_s
        self._face = tasks.face()
        self.figures = Figures()
        self._waiting: dict[str, deque[_Held]] = {topic: deque() for topic in self.order.topics}
        self._held: set[_Held] = set()
        self._ends: dict[str, list[tuple[_Held, str, dict[str, Any]]]] = {topic: [] for topic in self.order.topics}
        self._there = asyncio.Condition()
        self._room = asyncio.Event()
        self._told = {topic: asyncio.Event() for topic in self.order.topics}
        self._stopping = False
        self._finished = False
        self._rate = 0.0
        self._counted = (time.monotonic(), 0)
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises `MusterError` for what no other try mends, as a key that may not work."""
        self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="muster-task")
        setting = [asyncio.create_task(self._set_recurring(topic)) for topic in self.order.topics]
        fetching = [*setting, *(asyncio.create_task(self._fetch(topic)) for topic in self.order.topics)]
        running = [asyncio.create_task(self._run()) for _ in range(self._at_once)]
        telling = [asyncio.create_task(self._tell(topic)) for topic in self.order.topics]
        extending = asyncio.create_task(self._extend())
        stopped = asyncio.create_task(stop.wait())
        try:
            waits: set[asyncio.Task[Any]] = {stopped, *fetching, *running}
            while not stop.is_set():
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if any(task not in setting or task.exception() is not None for task in done):
                    break
        finally:
            stopped.cancel()
            await self._drain(fetching, running, telling)
            extending.cancel()
            ended = await asyncio.gather(extending, *fetching, *running, *telling, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._face.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _drain(
        self,
        fetching: list[asyncio.Task[None]],
        running: list[asyncio.Task[None]],
        telling: list[asyncio.Task[None]],
    ) -> None:
        self._stopping = True
        for task in fetching:  # the face hears it, and gives back what it was about to hand over
            task.cancel()
        for waiting in self._waiting.values():
            while waiting:
                self._end(waiting.popleft(), "back", {})
        async with self._there:
            self._there.notify_all()
        await asyncio.wait(running, timeout=self._drain_s)
        late = [task for task in running if not task.done()]
        for task in late:
            task.cancel()
        if late:
            words = "%d tasks did not end within %g s; they are due again once their leases run out"
            log.warning(words, len(late), self._drain_s)
            await asyncio.wait(late, timeout=1.0)
        self._finished = True
        for event in self._told.values():
            event.set()
        await asyncio.wait(telling, timeout=self._tasks.handlers[self.order.topics[0]].lease_s)
        for task in telling:
            task.cancel()

    # --- in -----------------------------------------------------------------------------------------------------

    def _ahead(self) -> int:
        """Tasks of one topic that may wait here."""
        return max(self._at_once, min(AHEAD_MAX, int(self._rate * AHEAD_S)))

    async def _set_recurring(self, topic: str) -> None:
        """Set the recurring tasks that the handler declares, however long the face is away."""
        pause = AGAIN_S
        left = list(self._tasks.handlers[topic].recurring.items())
        while left and not self._stopping:
            name, entry = left[0]
            try:
                await self._face.ask("PUT", path(topic, f"recurring/{quote(name, safe='')}"), entry)
            except (Unavailable, TimedOut, Refused) as error:
                if isinstance(error, Refused) and error.code in GONE:
                    raise
                log.warning("topic %s: the recurring task %s cannot be set now: %s", topic, name, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, AGAIN_S_MAX)
                continue
            pause = AGAIN_S
            del left[0]

    async def _fetch(self, topic: str) -> None:
        handler, waiting = self._tasks.handlers[topic], self._waiting[topic]
        pause = AGAIN_S
        while not self._stopping:
            free = self._ahead() - len(waiting)
            if free < max(1, self._ahead() // 2):
                self._room.clear()
                await self._room.wait()
                continue
            asked = {"most": min(BATCH_MAX, free), "wait_s": WAIT_S, "lease_s": handler.lease_s}
            try:
                said = await self._face.wait("POST", path(topic, "lease"), asked, WAIT_S)
            except (Unavailable, TimedOut, Refused) as error:
                if isinstance(error, Refused) and error.code in GONE:
                    raise
                log.warning("topic %s: no tasks can be leased now: %s", topic, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, AGAIN_S_MAX)
                continue
            pause = AGAIN_S
            began = time.monotonic()
            for document in said["messages"]:
                held = _Held(handler, document, began)
                self._held.add(held)
                waiting.append(held)
            if said["messages"]:
                self.figures.leased += len(said["messages"])
                async with self._there:
                    self._there.notify(len(said["messages"]))

    # --- at work --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            topic = self.order.next(lambda topic: bool(self._waiting[topic]))
            if topic is None:
                if self._stopping:
                    return
                async with self._there:
                    if not any(self._waiting.values()) and not self._stopping:
                        await self._there.wait()
                continue
            held = self._waiting[topic].popleft()
            self._count()
            self._room.set()
            if held.told:  # its lease is lost
                continue
            held.running = True
            await self._call(held)

    def _count(self) -> None:
        """How many tasks a second this worker begins."""
        began, count = self._counted
        count, passed = count + 1, time.monotonic() - began
        if passed >= AHEAD_S:
            self._rate = 0.5 * self._rate + 0.5 * count / passed
            began, count = time.monotonic(), 0
        self._counted = began, count

    async def _call(self, held: _Held) -> None:
        handler = held.handler
        try:
            given = arguments_of(held.document)
            try:
                handler.signature.bind(**given)
            except TypeError as error:
                raise Hopeless(f"the handler does not take these arguments: {error}") from None
            if handler.is_async:
                value = await handler.function(**given)
            else:
                loop = asyncio.get_running_loop()
                value = await loop.run_in_executor(self._threads, lambda: handler.function(**given))
        except asyncio.CancelledError:
            self._end(held, "again", {"in_s": 0, "why": "its worker ended"})
            raise
        except Hopeless as error:
            self._end(held, "dead", {"why": _why(error)})
        except Exception as error:
            log.warning("topic %s, task %s: %s", handler.topic, held.document["id"], _why(error))
            self._end(held, "again", {"why": _why(error)})
        else:
            self._end(held, "done", self._result(held, value))

    def _result(self, held: _Held, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        try:
            return {"result": result_of(value)}
        except Hopeless as error:  # the task was done; its result is left out
            log.warning("topic %s, task %s: %s", held.handler.topic, held.document["id"], error)
            return {}

    # --- out ----------------------------------------------------------------------------------------------------

    def _end(self, held: _Held, verb: str, more: dict[str, Any]) -> None:
        if held.told:
            return
        held.told = True
        self._ends[held.handler.topic].append((held, verb, more))
        self._told[held.handler.topic].set()

    async def _tell(self, topic: str) -> None:
        """Say what came of tasks, those that ended together in one request, until all is said."""
        ends, event = self._ends[topic], self._told[topic]
        pause = AGAIN_S
        while True:
            if not ends:
                if self._finished:
                    return
                event.clear()
                await event.wait()
                continue
            some = [each for each in ends[:BATCH_MAX] if not each[0].extending]
            if not some:  # the answer names their leases
                await asyncio.sleep(EXTENDING_S)
                continue
            try:
                left = self._said(some, await self._face.ask("POST", path(topic, "leases"), _told(some)))
            except (Unavailable, TimedOut, Refused) as error:
                now = time.monotonic()
                late = [each for each in some if now > each[0].began + each[0].lease_s]
                log.warning("topic %s: ends of tasks cannot be said now: %s", topic, error)
                self.figures.lost += len(late)
                self._let_go(late)
                left = [each for each in some if each not in late]
                if not self._finished:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, AGAIN_S_MAX)
            else:
                pause = AGAIN_S
            gone = {id(each) for each in some} - {id(each) for each in left}
            ends[:] = [each for each in ends if id(each) not in gone]
            if left and pause == AGAIN_S:
                await asyncio.sleep(AGAIN_S)

    def _said(
        self, some: list[tuple[_Held, str, dict[str, Any]]], said: Mapping[str, Any]
    ) -> list[tuple[_Held, str, dict[str, Any]]]:
        """Return the ends of leases that must be reported again."""
        answers: dict[str, Iterator[dict[str, Any]]]
        answers = {verb: iter(said.get(verb, ())) for verb in ("done", "again", "dead", "back")}
        left: list[tuple[_Held, str, dict[str, Any]]] = []
        ended: list[tuple[_Held, str, dict[str, Any]]] = []
        for each in some:
            outcome = next(answers[each[1]], {}).get("outcome")
            if outcome == "busy":
                left.append(each)
                continue
            ended.append(each)
            if outcome == "done":
                setattr(self.figures, each[1], getattr(self.figures, each[1]) + 1)
            else:
                self.figures.lost += 1
        self._let_go(ended)
        return left

    def _let_go(self, some: list[tuple[_Held, str, dict[str, Any]]]) -> None:
        self._held.difference_update(held for held, _, _ in some)

    async def _extend(self) -> None:
        """Make leases longer, until cancelled. One that is lost is not begun any more."""
        shortest = min(self._tasks.handlers[topic].lease_s for topic in self.order.topics)
        while True:
            await asyncio.sleep(shortest * LOOK_SHARE)
            now = time.monotonic()
            due = [each for each in self._held if not each.told and now >= each.began + each.lease_s * EXTEND_SHARE]
            for topic in self.order.topics:
                mine = [each for each in due if each.handler.topic == topic][:BATCH_MAX]
                if mine:
                    with contextlib.suppress(MusterError):
                        await self._extend_some(topic, mine)

    async def _extend_some(self, topic: str, some: list[_Held]) -> None:
        asked = {"extend": [{"lease": each.lease, "by_s": each.lease_s} for each in some]}
        began = time.monotonic()
        for held in some:
            held.extending = True
        try:
            said = await self._face.ask("POST", path(topic, "leases"), asked)
        finally:
            for held in some:
                held.extending = False
        for held, answer in zip(some, said.get("extend", ()), strict=False):
            if answer["outcome"] == "done":
                held.lease, held.began = answer["lease"], began
            elif answer["outcome"] == "lost" and not held.running and not held.told:
                held.told = True
                self._held.discard(held)
                self.figures.lost += 1


def _told(some: list[tuple[_Held, str, dict[str, Any]]]) -> dict[str, list[Any]]:
    said: dict[str, list[Any]] = {}
    for held, verb, more in some:
        plain = verb == "back" or (verb == "done" and not more)
        said.setdefault(verb, []).append(held.lease if plain else {"lease": held.lease, **more})
    return said


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:WHY_CHARS_MAX]

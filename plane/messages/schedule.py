"""The durable schedule as the event loop sees it: one protocol, and the store in a folder of this machine.

Owns the match of requests and replies. It must not know topics' settings, callbacks, or what a body means.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from muster import _core

Reply = tuple[Any, ...]
"""As those of `_core.ScheduleKeeper`, without the number."""
NewMessage = tuple[int, int, int, int | None, bytes]
"""Id, topic, due_at, expires_at, body."""
NewChange = tuple[int, str, int | None, int | None]
"""Id, verb, version or claim, time."""
OnFire = Callable[[int, Reply], None]
"""A worker, and `fire`, the message, topic, claim, until, body."""

AGAIN_S: Final = 0.02
"""A store that still reads its index is asked again after this."""
WORKERS_KEPT: Final = 4_096
"""Workers that left whose fires may still be on their way."""


class StoreError(Exception):
    """The store failed. What was asked may have happened or not; open it again."""


class Schedule(Protocol):
    """A store of messages by due time. Every positive answer is durable (I-6)."""

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """`inserted` or `before`, the message; or `refused`, `disk_full`, `body_too_long`."""

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """`changed`, the message, step; `ahead`; or `refused`, reason, value; `disk_full`."""

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """`found`, the message, topic, body; or `unknown`."""

    async def find(self, topic: int | None, begin: int, end: int, states: Sequence[str], limit: int) -> Reply:
        """`listed`, messages with their topics, times, whether cut; or `busy`."""

    async def stats(self) -> dict[str, Any]:
        """Figures of the store."""

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """Let a worker take `credit` due messages of a topic more."""

    def leave(self, worker: int) -> None:
        """Void the credits of a worker."""

    def clock_steps(self) -> Sequence[int]:
        """Milliseconds by which the wall clock was set, each step once."""


class _Batch:
    """Requests that are answered together."""

    def __init__(self, count: int, done: "asyncio.Future[list[Reply]]") -> None:
        self.replies: list[Reply] = [()] * count
        self.left, self.done = count, done

    def take(self, place: int, reply: Reply) -> None:
        self.replies[place] = reply
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.replies)


class EmbeddedSchedule:
    """In a folder, by the engine's own thread. `open` once, `close` once. `failed` is set when the store failed."""

    def __init__(self, folder: Path, on_fire: OnFire, **settings: int) -> None:
        self._folder, self._on_fire, self._settings = folder, on_fire, settings
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[_Batch, int]] = {}
        self._number_of: dict[int, int] = {}
        """Of each worker: that of all its fires."""
        self._worker_of: dict[int, int] = {}
        self._steps: list[int] = []
        self._keeper: _core.ScheduleKeeper | None = None
        self.failed = asyncio.Event()
        self.failure = ""

    def open(self) -> None:
        """Open or make it; reads what is due soon. Raises `BlockingIOError` where another process has it, `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._keeper = _core.ScheduleKeeper(path=str(self._folder), **self._settings)
        asyncio.get_running_loop().add_reader(self._keeper.fd(), self._take)

    def close(self) -> None:
        """Make a checkpoint; blocks until it is made."""
        if self._keeper is not None:
            asyncio.get_running_loop().remove_reader(self._keeper.fd())
            self._keeper.close()
            self._keeper = None
        self._fail("closed")

    @property
    def asked(self) -> int:
        """Requests that are not answered yet."""
        return len(self._asked)

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled(messages, lambda keeper, numbered: keeper.insert(numbered))

    async def change(self, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled(changes, lambda keeper, numbered: keeper.change(numbered))

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `Schedule`."""
        return await self._settled([(each,) for each in ids], lambda keeper, numbered: keeper.get(numbered))

    async def find(self, topic: int | None, begin: int, end: int, states: Sequence[str], limit: int) -> Reply:
        """As `Schedule`."""
        asked = [(topic, begin, end, states, limit)]
        replies = await self._settled(asked, lambda keeper, numbered: keeper.find(*numbered[0]))
        return replies[0]

    async def stats(self) -> dict[str, Any]:
        """As `Schedule`."""
        said = (await self._settled([()], lambda keeper, numbered: keeper.stats(numbered[0][0])))[0]
        figures: dict[str, Any] = said[1]
        return figures

    def serve(self, topic: int, worker: int, lease_ms: int, attempts_max: int, credit: int) -> None:
        """As `Schedule`."""
        number = self._number_of.get(worker)
        if number is None:
            number = self._number_of[worker] = next(self._numbers)
            self._worker_of[number] = worker
            if len(self._worker_of) > WORKERS_KEPT:
                del self._worker_of[next(iter(self._worker_of))]
        self._whole().serve(number, topic, worker, lease_ms, attempts_max, credit)

    def leave(self, worker: int) -> None:
        """As `Schedule`."""
        self._whole().leave(worker)
        self._number_of.pop(worker, None)  # its fires may still be on their way

    def clock_steps(self) -> Sequence[int]:
        """As `Schedule`."""
        steps, self._steps = self._steps, []
        return steps

    def _whole(self) -> _core.ScheduleKeeper:
        if self._keeper is None or self.failure:
            raise StoreError(self.failure or "not open")
        return self._keeper

    async def _settled(
        self, asked: Sequence[tuple[Any, ...]], submit: Callable[[_core.ScheduleKeeper, list[Any]], None]
    ) -> list[Reply]:
        """Ask, and ask again what the store did not know yet."""
        replies = await self._once(asked, submit)
        while waiting := [place for place, reply in enumerate(replies) if reply[0] == "rebuilding"]:
            await asyncio.sleep(AGAIN_S)
            again = await self._once([asked[place] for place in waiting], submit)
            for place, reply in zip(waiting, again, strict=True):
                replies[place] = reply
        return replies

    async def _once(
        self, asked: Sequence[tuple[Any, ...]], submit: Callable[[_core.ScheduleKeeper, list[Any]], None]
    ) -> list[Reply]:
        if not asked:
            return []
        keeper = self._whole()
        batch = _Batch(len(asked), asyncio.get_running_loop().create_future())
        numbered = [(next(self._numbers), *each) for each in asked]
        submit(keeper, numbered)
        self._asked.update((each[0], (batch, place)) for place, each in enumerate(numbered))
        replies = await batch.done
        if any(reply[0] == "failed" for reply in replies):
            raise StoreError(self.failure or "the store failed")
        return replies

    def _take(self) -> None:
        assert self._keeper is not None
        try:
            replies = self._keeper.take()
        except OSError as error:
            self._fail(str(error))
            return
        asked, workers = self._asked, self._worker_of
        for number, *reply in replies:
            found = asked.pop(number, None)
            if found is not None:
                found[0].take(found[1], tuple(reply))
            elif number in workers:
                self._on_fire(workers[number], tuple(reply))
        self._steps += self._keeper.clock_steps()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.failed.set()
        for batch, _ in self._asked.values():
            if not batch.done.done():
                batch.done.set_exception(StoreError(why))
        self._asked.clear()

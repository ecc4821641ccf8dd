"""The answers to requests with an `Idempotency-Key`: a repeated request gets the same answer, and does nothing.

Only in this process's memory, bounded by count, bytes and time. Knows no route.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from muster_server.systems.http.problems import Problem

BYTES_MAX: Final = 64 << 20
KEY_CHARS_MAX: Final = 255
WAIT_S: Final = 10.0
"""A duplicate waits this many seconds for the first request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    replayed: bool = False


@contextmanager
def repeatable() -> Iterator[None]:
    """Around a request that may be carried out twice without harm: its problems other than `timeout` are not kept."""
    try:
        yield
    except Problem as problem:
        if problem.code == "timeout":
            raise
        raise Nothing(problem) from None


class Nothing(Exception):
    """Raised by a request that did nothing at all: another one with its key is carried out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


@dataclass(slots=True)
class _Kept:
    fingerprint: bytes
    until: float
    done: "asyncio.Future[Answer | Problem]"
    bytes: int = field(default=0)


class Idempotency:
    """Recent answers. `seconds`: their lifetime; `count`: limit of their number."""

    def __init__(
        self,
        seconds: float,
        count: int,
        bytes_max: int = BYTES_MAX,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._count, self._bytes_max, self._wait_s = seconds, count, bytes_max, wait_s
        self._clock = clock
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def once(
        self, scope: tuple[str, ...], key: str, request: bytes, do: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Call `do`, unless the same request with this key was carried out: then return its answer.

        Raises `Problem`: that of `do` (kept too, unless it raised `Nothing`), `idempotency_mismatch`, `in_progress`, or
        `busy` if running requests fill the limit.
        """
        if not 0 < len(key) <= KEY_CHARS_MAX:
            raise Problem("bad_request", f"invalid Idempotency-Key (expected 1 to {KEY_CHARS_MAX} characters)")
        self._forget_old()
        place, fingerprint = (*scope, key), hashlib.sha256(request).digest()
        kept = self._kept.get(place)
        if kept is not None:
            return await self._again(kept, fingerprint)
        self._make_room()
        kept = _Kept(fingerprint, self._clock() + self._seconds, asyncio.get_running_loop().create_future())
        self._kept[place] = kept
        try:
            answer = await do()
        except Nothing as nothing:
            self._drop(place)
            kept.done.set_result(nothing.problem)
            raise nothing.problem from None
        except Problem as problem:
            kept.done.set_result(problem)
            raise
        except BaseException:  # cancelled in the middle, or an internal error: it may have been carried out
            kept.done.set_result(Problem("timeout", "the first request with this Idempotency-Key did not end"))
            raise
        kept.done.set_result(answer)
        kept.bytes = len(answer.body)
        self.bytes += kept.bytes
        self._make_room(0)
        return answer

    async def _again(self, kept: _Kept, fingerprint: bytes) -> Answer:
        if kept.fingerprint != fingerprint:
            raise Problem("idempotency_mismatch", "this Idempotency-Key was used with another body or path")
        try:
            async with asyncio.timeout(self._wait_s):
                said = await asyncio.shield(kept.done)
        except TimeoutError:
            raise Problem("in_progress") from None
        if isinstance(said, Problem):
            raise Problem(said.code, said.detail, retry_after=said.retry_after, **said.more)
        return Answer(said.status, said.body, replayed=True)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept:  # all have the same lifetime, so the oldest ends first
            place, kept = next(iter(self._kept.items()))
            if kept.until > now:
                return
            self._drop(place)

    def _make_room(self, places: int = 1) -> None:
        while len(self._kept) + places > self._count or self.bytes > self._bytes_max:
            oldest = next((place for place, kept in self._kept.items() if kept.done.done()), None)
            if oldest is None:
                if places:
                    raise Problem("busy", "too many running requests with an Idempotency-Key")
                return
            self._drop(oldest)

    def _drop(self, place: tuple[str, ...]) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            self.bytes -= kept.bytes

"""A write around which no old value is cached: marks before, drops after (C-4, C-6).

While the body runs, its marks are extended. They lapse by themselves if the process dies.
"""

import asyncio
import secrets
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ..errors import MusterError, Unavailable
from .ending import ended

if TYPE_CHECKING:
    from .cache import Cache

RENEWS: Final = 3
"""A mark is extended this many times within its lifetime."""


class MarkLapsed(MusterError):
    """The writer stalled for longer than its mark lasts: other processes may have cached the value that it is about to
    change. Roll back."""

    code = "mark_lapsed"
    retry = True


class Changing:
    """The async context manager that `Cache.changing` returns."""

    def __init__(self, cache: "Cache", keys: Sequence[str], mark_s: float, *, goes_on: bool) -> None:
        self._cache, self._keys, self._mark_s, self._goes_on = cache, keys, mark_s, goes_on
        self._writer = secrets.token_hex(8)
        self._until = 0.0
        self._marked = False
        self._renewing: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Call this last before the commit. Raises `MarkLapsed`: then roll back."""
        if self._marked and monotonic() >= self._until:
            raise MarkLapsed(f"the mark of {', '.join(self._keys)} has lapsed: roll back, and try again")

    async def __aenter__(self) -> "Changing":
        began = monotonic()
        try:
            await self._cache._change(self._keys, self._writer, self._mark_s)
        except Unavailable:
            if not self._goes_on:
                raise
            return self
        self._marked, self._until = True, began + self._mark_s
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Drop after an error too: a commit whose answer was lost may have succeeded.
        dropping = self._cache._spawn(self._drop())
        await asyncio.shield(dropping)

    async def _drop(self) -> None:
        if self._renewing is not None:
            await ended([self._renewing])
        await self._cache._drop_or_owe(self._keys, self._writer)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._mark_s / RENEWS)
            began = monotonic()
            try:
                await self._cache._renew(self._keys, self._writer, self._mark_s)
            except Unavailable:
                continue
            self._until = began + self._mark_s

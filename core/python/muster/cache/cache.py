"""A cache of two levels: values in this process, then in a Redis that all processes share, then the result of a load
function.

Owns its parts and their lives: `reading` (flights and loads), `near` and `far` (the levels), `hearing` or `rooms`
(drops by other processes), `changing` (writes). One cache belongs to one event loop.
"""

import asyncio
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, TypeVar

from ..client import Client
from ..errors import Invalid, Unavailable
from ..redis.where import checked as checked_url
from .alone import Alone
from .changing import Changing
from .ending import ended
from .far import Far, InRedis
from .figures import Figures
from .functions import Cached, checked
from .hearing import Hearing, HearsAlways
from .near import Near
from .reading import Plan, Reading
from .rooms import HearsRoom

LOG: Final = logging.getLogger("muster.cache")
P = ParamSpec("P")
V = TypeVar("V")

NEAR_BYTES: Final = 64 << 20
VALUE_BYTES_MAX: Final = 1 << 20
LOADS_AT_ONCE: Final = 64
KEYS_MAX: Final = 1_000
"""Limit of keys in one drop."""
OWED_MAX: Final = 10_000
"""Limit of drops that the Redis did not accept and that are retried. Beyond it, the oldest are discarded, and their
values expire by themselves."""
DAYS_MAX_S: Final = 30 * 86_400.0
LATE_FOR_S: Final = 60.0
SECONDS: Final = 1.0
OnOutage = Literal["raise", "go on"]


class Cache:
    """See `docs/cache.md`. `async with`, or `close` at the end. It connects with the first read or drop."""

    def __init__(
        self,
        url: str = "",
        *,
        name: str = "main",
        password: str = "",
        near_bytes: int = NEAR_BYTES,
        near_lease_s: float = 3.0,
        hold_s: float = 1.0,
        mark_s: float = 10.0,
        lock_s: float = 10.0,
        loads_at_once: int = LOADS_AT_ONCE,
        value_bytes_max: int = VALUE_BYTES_MAX,
        seconds: float = SECONDS,
        on_outage: OnOutage = "raise",
        rooms: Client | None = None,
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        _positive(near_bytes=near_bytes, near_lease_s=near_lease_s, mark_s=mark_s, lock_s=lock_s, seconds=seconds)
        _positive(loads_at_once=loads_at_once, value_bytes_max=value_bytes_max)
        if hold_s < 0:
            raise Invalid(f"invalid hold_s {hold_s} (expected 0 or more seconds)")
        if (encode is None) != (decode is None):
            raise Invalid("encode and decode belong together; give both")
        if on_outage not in {"raise", "go on"}:
            raise Invalid(f"invalid on_outage {on_outage!r} (expected 'raise' or 'go on')")
        if "{" in name or "}" in name:
            raise Invalid(f"invalid cache name {name!r}: braces are not allowed")
        self.name = checked(name)
        self._hold_s, self._mark_s, self._on_outage = hold_s, mark_s, on_outage
        self._encode, self._decode = encode or _to_json, decode or json.loads
        self._figures = Figures()
        self._near = Near(near_bytes)
        self._far: Far
        self._hears: Hearing | HearsRoom | HearsAlways
        if url:
            self._far, self._hears = self._shared(url, password, seconds, near_lease_s, rooms)
        else:
            if rooms is not None or password:
                raise Invalid("a cache without a URL serves one process: rooms and password need a URL")
            self._far, self._hears = Alone(self._near), HearsAlways()
        self._reading = Reading(
            self._near, self._far, self._hears, self._figures, loads_at_once, lock_s, value_bytes_max
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False
        self._owed: dict[str, None] = {}
        self._paying: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._late: tuple[float, float] = (0.0, 0.0)
        """Time of the latest drop, and its delay in ms."""

    def _shared(
        self, url: str, password: str, seconds: float, lease_s: float, rooms: Client | None
    ) -> tuple[InRedis, Hearing | HearsRoom]:
        try:
            where = checked_url(url)
        except ValueError as error:
            raise Invalid(f"{error}") from None
        far = InRedis(where, password, self.name, seconds, tells=rooms is None, on_life=self._other_life)
        if rooms is None:
            return far, Hearing(far, lease_s, self._heard, self._clear)
        return far, HearsRoom(rooms, self.name, far, lease_s, self._heard, self._clear)

    # --- lives --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Cache":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, timeout: float = 5.0) -> bool:
        """Start to listen for drops; returns True once level 1 serves. Reads work at once, so no caller needs to wait
        for it."""
        self._open()
        if isinstance(self._hears, HearsAlways):
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._hears.heard.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the cache's tasks and connections. Loads in progress are cancelled."""
        if self._closed:
            return
        self._closed = True
        await ended([*self._tasks, *([self._paying] if self._paying else [])])
        await self._reading.close()
        await self._hears.close()
        await self._far.close()

    def _open(self) -> Reading:
        """The reads of the running loop. Raises `Invalid` in another loop."""
        if self._loop is None:
            self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
            self._hears.start()
        elif self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            raise Invalid("this cache belongs to another event loop or process; make one in each")
        if self._closed:
            raise Invalid("this cache is closed")
        return self._reading

    # --- functions ----------------------------------------------------------------------------------------------------

    def cached(
        self,
        key: str,
        *,
        fresh_s: float,
        stale_s: float = 0.0,
        absent_s: float = 5.0,
        early: float = 1.0,
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> Callable[[Callable[P, Awaitable[V]]], Cached[P, V]]:
        """Cache the results of an async function.

        `key`: a template over its arguments, for example "share:{id}". `fresh_s`: seconds for which a value is served,
        less up to a tenth. `stale_s`: further seconds for which the old value is served while one process loads a new
        one. `absent_s`: the same as `fresh_s` for None; 0: None is not cached. `early`: 0 loads nothing before a value
        expires.
        """
        if not 0 < fresh_s <= DAYS_MAX_S or not 0 <= stale_s <= DAYS_MAX_S or not 0 <= absent_s <= DAYS_MAX_S:
            raise Invalid(
                f"{key}: fresh_s must be above 0, stale_s and absent_s must be 0 or more, and each at most "
                f"{DAYS_MAX_S:.0f}"
            )
        if (encode is None) != (decode is None):
            raise Invalid(f"{key}: encode and decode belong together; give both")

        def made(function: Callable[P, Awaitable[V]]) -> Cached[P, V]:
            plan = Plan(
                function, encode or self._encode, decode or self._decode, fresh_s, stale_s, absent_s, max(0.0, early)
            )
            return Cached(self, key, function, plan)

        return made

    # --- drops --------------------------------------------------------------------------------------------------------

    async def drop(self, *keys: str) -> None:
        """Drop the values of these keys everywhere. Raises `Unavailable`: then some may still be served until they
        expire."""
        self._open()
        await self._change(_checked(keys), "", 0.0)

    def changing(self, *keys: str, on_outage: OnOutage | None = None) -> Changing:
        """A block around the transaction that changes the data of these keys.

        Raises `Unavailable` before the body runs if the Redis does not answer, unless `on_outage` is "go on"."""
        goes_on = (self._on_outage if on_outage is None else on_outage) == "go on"
        self._open()
        return Changing(self, _checked(keys), self._mark_s, goes_on=goes_on)

    def figures(self) -> dict[str, float]:
        """Counts since the start (`docs/cache.md`)."""
        figures = self._figures
        figures.near_bytes, figures.near_count = self._near.bytes, self._near.count
        figures.suspect = self._far.suspects if isinstance(self._far, InRedis) else 0
        at, late_ms = self._late
        figures.late_ms = late_ms if monotonic() - at < LATE_FOR_S else 0.0
        return asdict(figures)

    async def _change(self, keys: Sequence[str], writer: str, mark_s: float) -> None:
        """Mark or drop the keys, in this process and in all others. Raises `Unavailable`."""
        self._figures.drops += len(keys)
        try:
            await self._far.change(keys, writer, mark_s, self._hold_s, writer)
            if isinstance(self._hears, HearsRoom):
                await self._hears.tell(writer, keys)
        finally:
            for key in keys:
                self._reading.drop(key)

    async def _renew(self, keys: Sequence[str], writer: str, mark_s: float) -> None:
        """Extend marks; where one has lapsed, set it again. Raises `Unavailable`."""
        if not await self._far.renew(keys, writer, mark_s, self._hold_s):
            await self._change(keys, writer, mark_s)

    async def _drop_or_owe(self, keys: Sequence[str], writer: str) -> None:
        """End a change. If the Redis does not answer, the marks stay there, so no old value is served meanwhile."""
        try:
            await self._change(keys, writer, 0.0)
        except Unavailable as error:
            LOG.warning("a drop of %d keys is pending until the Redis answers: %s", len(keys), error)
            for key in keys:
                self._owed[key] = None
            while len(self._owed) > OWED_MAX:
                del self._owed[next(iter(self._owed))]
            if self._paying is None or self._paying.done():
                self._paying = asyncio.get_running_loop().create_task(self._pay())

    async def _pay(self) -> None:
        """Retry the pending drops."""
        while self._owed:
            await asyncio.sleep(SECONDS)
            keys = list(self._owed)[:KEYS_MAX]
            try:
                await self._change(keys, "", 0.0)
            except Unavailable:
                continue
            for key in keys:
                self._owed.pop(key, None)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what others did ----------------------------------------------------------------------------------------------

    def _heard(self, writer: str, keys: Sequence[str], at_ms: float | None) -> None:
        self._figures.heard += len(keys)
        for key in keys:
            self._reading.drop(key)
        if at_ms is not None and isinstance(self._far, InRedis):
            now, late_ms = monotonic(), self._far.age_ms(at_ms)
            if late_ms > self._late[1] or now - self._late[0] > LATE_FOR_S:
                self._late = (now, late_ms)

    def _clear(self) -> None:
        self._reading.clear()

    def _other_life(self) -> None:
        if isinstance(self._hears, (Hearing, HearsRoom)):
            self._hears.renew()


def _checked(keys: Sequence[str]) -> Sequence[str]:
    if not 1 <= len(keys) <= KEYS_MAX:
        raise Invalid(f"invalid number of keys in a drop: {len(keys)} (expected 1 to {KEYS_MAX})")
    return sorted({checked(key) for key in keys})


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise Invalid(f"invalid {name} {value} (expected a number above 0)")


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

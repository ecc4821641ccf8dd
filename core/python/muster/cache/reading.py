"""Reads of keys: level 1, level 2, and one load for all processes.

Owns the flights of this process: which ones callers may join, and which ones a drop has made dirty (C-2, C-3).
"""

import asyncio
import math
import random
import secrets
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from ..errors import Invalid, Unavailable
from .ending import ended
from .entry import Found, rest
from .far import Far, Taken
from .figures import Figures
from .near import Entry, Near
from .weight import weight

PRIMARY: Final[ContextVar[bool]] = ContextVar("muster_cache_primary", default=False)
JITTER: Final = 0.1
"""The lifetime of an entry is shortened by up to this share of `fresh_s`, so that entries do not expire together."""
ASK_S, ASK_S_MAX = 0.002, 0.05
"""First and longest pause, in seconds, between polls for a value that another process loads."""
STALE_S: Final = 0.05
"""Seconds for which level 1 serves a stale value before it asks level 2 again."""
_AGAIN: Final = object()


@dataclass(frozen=True, slots=True)
class Plan:
    """How the values of one function are cached. Times are seconds."""

    load: Callable[..., Awaitable[Any]]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fresh_s: float
    stale_s: float
    absent_s: float
    early: float
    """XFetch's beta; 0: no early load."""


class Hears(Protocol):
    """The receiver of drops, as reads see it."""

    until: float
    """Level 1 may serve until this time of the monotonic clock."""
    epoch: int
    """Grows each time that level 1 is emptied."""


class Flight:
    """A read of a key below level 1."""

    __slots__ = ("dirty", "epoch", "future")

    def __init__(self, epoch: int) -> None:
        self.dirty = False
        self.epoch = epoch
        self.future: asyncio.Future[Any] | None = None

    def end(self, value: Any) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # marks the exception as retrieved, even if no caller waits


class Reading:
    """All reads of one cache in this process."""

    def __init__(
        self, near: Near, far: Far, hears: Hears, figures: Figures, loads_at_once: int, lock_s: float, bytes_max: int
    ) -> None:
        self._near, self._far, self._hears, self._figures = near, far, hears, figures
        self._loads = asyncio.Semaphore(loads_at_once)
        self._lock_s, self._bytes_max = lock_s, bytes_max
        self._is_alone = hears.until == math.inf
        self._joined: dict[str, Flight] = {}
        self._flights: dict[str, list[Flight]] = {}
        self._refreshed: set[str] = set()
        """Keys whose value is reloaded while the old one is served."""
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- drops --------------------------------------------------------------------------------------------------------

    def drop(self, key: str) -> None:
        """A key was dropped, here or elsewhere."""
        self._near.remove(key)
        for flight in self._flights.get(key, ()):
            flight.dirty = True
        self._joined.pop(key, None)

    def clear(self) -> None:
        """Any key may have been dropped, here or elsewhere."""
        self._near.clear()
        self._figures.cleared += 1
        for flights in self._flights.values():
            for flight in flights:
                flight.dirty = True
        self._joined.clear()

    async def close(self) -> None:
        """Cancel the loads in progress."""
        await ended(list(self._tasks))

    # --- reads --------------------------------------------------------------------------------------------------------

    def early(self, plan: Plan, key: str, kept: Entry, call: tuple[Any, ...]) -> None:
        """Reload a value that will soon expire, in the background; callers get the old one."""
        kept.early = kept.until
        self._refresh(plan, key, kept.made, call)

    async def read(self, plan: Plan, key: str, call: tuple[Any, ...]) -> Any:
        """Return the value of a key that level 1 does not serve. Raises what the load raises."""
        while True:
            flight = self._joined.get(key)
            if flight is None:
                return await self._lead(plan, key, call)
            if flight.future is None:
                flight.future = asyncio.get_running_loop().create_future()
            value = await asyncio.shield(flight.future)
            if value is not _AGAIN:
                return value

    async def strict(self, plan: Plan, key: str, call: tuple[Any, ...]) -> Any:
        """Return the value without level 1 and without other callers' flights: it reflects each drop that has returned."""
        try:
            found = await self._far.get(key) if not self._is_alone else None
        except Unavailable:
            self._figures.away += 1
            found = None
        if found is not None and found.fresh_s > 0:
            self._figures.far_hits += 1
            return _value(plan, found)
        flight = self._begin(key)
        return await asyncio.shield(self._spawn(self._load(plan, key, flight, b"", call, strict=True)))

    async def _lead(self, plan: Plan, key: str, call: tuple[Any, ...]) -> Any:
        flight = self._joined[key] = self._begin(key)
        handed = False
        try:
            try:
                found = await self._far.get(key)
            except Unavailable:
                found = None
            if found is not None and found.left_s > 0:
                value = self._served(plan, key, flight, found, call)
                flight.end(value)
                return value
            seen = b"" if found is None else found.made
            handed = True
            return await asyncio.shield(self._spawn(self._load(plan, key, flight, seen, call)))
        except asyncio.CancelledError:
            if not handed:
                flight.end(_AGAIN)
            raise
        except BaseException as error:
            flight.fail(error)
            raise
        finally:
            if not handed:
                self._end(key, flight)

    def _served(self, plan: Plan, key: str, flight: Flight, found: Found, call: tuple[Any, ...]) -> Any:
        """Serve a value of level 2, fresh or stale."""
        value = _value(plan, found)
        if found.fresh_s > 0:
            self._figures.far_hits += 1
            early_s = found.load_s * plan.early * _drawn() if plan.early else 0.0
            self._keep(key, flight, value, found.fresh_s, found.left_s, early_s, found.load_s, found.made)
            if found.fresh_s < early_s:
                self._refresh(plan, key, found.made, call)
            return value
        self._figures.stale += 1
        if not self._is_alone:
            short_s = min(STALE_S, found.left_s)
            self._keep(key, flight, value, short_s, short_s, 0.0, 0.0, found.made)
        self._refresh(plan, key, found.made, call)
        return value

    def _refresh(self, plan: Plan, key: str, seen: bytes, call: tuple[Any, ...]) -> None:
        """Load in the background, unless a load is in progress already or the limit is reached."""
        if key in self._refreshed or self._loads.locked():
            return
        self._refreshed.add(key)
        self._spawn(self._refreshing(plan, key, seen, call))

    async def _refreshing(self, plan: Plan, key: str, seen: bytes, call: tuple[Any, ...]) -> None:
        self._figures.early += 1
        try:
            await self._load(plan, key, self._begin(key), seen, call, beside=True)
        except Exception as error:
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._refreshed.discard(key)

    # --- loads --------------------------------------------------------------------------------------------------------

    async def _load(
        self,
        plan: Plan,
        key: str,
        flight: Flight,
        seen: bytes,
        call: tuple[Any, ...],
        *,
        strict: bool = False,
        beside: bool = False,
    ) -> Any:
        """Load once for all processes, and end the flight. `beside`: do not load if another process does."""
        try:
            value = await self._loaded(plan, key, flight, seen, call, strict=strict, beside=beside)
        except asyncio.CancelledError:
            flight.end(_AGAIN)
            raise
        except BaseException as error:
            flight.fail(error)
            raise
        finally:
            self._end(key, flight)
        flight.end(value)
        return value

    async def _loaded(
        self, plan: Plan, key: str, flight: Flight, seen: bytes, call: tuple[Any, ...], *, strict: bool, beside: bool
    ) -> Any:
        token, pause_s = secrets.token_hex(8), ASK_S
        while True:
            async with self._loads:
                taken = await self._taken(key, token, seen)
                if taken.kind in {"yours", "marked", "away"}:
                    return await self._called(plan, key, flight, token, taken, call, strict=strict)
            if taken.entry is not None:
                there = taken.entry
                if there.fresh_s > 0:
                    self._figures.far_hits += 1
                    value = _value(plan, there)
                    self._keep(key, flight, value, there.fresh_s, there.left_s, 0.0, there.load_s, there.made)
                    return value
                seen = there.made
                continue
            if beside:
                return None
            await asyncio.sleep(min(pause_s, taken.wait_s + ASK_S))
            pause_s = min(ASK_S_MAX, pause_s * 1.5)

    async def _taken(self, key: str, token: str, seen: bytes) -> Taken:
        try:
            return await self._far.take(key, token, self._lock_s, seen)
        except Unavailable:
            self._figures.away += 1
            return Taken("away", primary=True)

    async def _called(
        self, plan: Plan, key: str, flight: Flight, token: str, taken: Taken, call: tuple[Any, ...], *, strict: bool
    ) -> Any:
        """Call the load function, and store its result."""
        PRIMARY.set(taken.primary or strict)
        self._figures.loads += 1
        began = monotonic()
        stored = False
        try:
            loaded = await plan.load(*call[0], **call[1])
            load_s = monotonic() - began
            payload = None if loaded is None else _encoded(plan, key, loaded)
            value = None if payload is None else plan.decode(payload)
            stored = await self._stored(plan, key, flight, token, taken, payload, value, load_s)
        except BaseException:
            self._figures.failures += 1
            raise
        finally:
            if not stored and taken.kind == "yours":
                await self._give_back(key, token)
        return value

    async def _stored(
        self,
        plan: Plan,
        key: str,
        flight: Flight,
        token: str,
        taken: Taken,
        payload: bytes | None,
        value: Any,
        load_s: float,
    ) -> bool:
        if payload is None:
            self._figures.absent += 1
            fresh_s, stale_s = plan.absent_s, 0.0
        else:
            fresh_s, stale_s = plan.fresh_s, plan.stale_s
        fresh_s *= 1 - JITTER * random.random()
        kept_ms = int((fresh_s + stale_s) * 1e3)
        if taken.kind != "yours":
            self._figures.marked += taken.kind == "marked"
            return False
        if payload is not None and len(payload) > self._bytes_max:
            self._figures.too_long += 1
            return False
        if kept_ms == 0:
            return False
        filled = monotonic()
        try:
            made = await self._far.fill(key, token, kept_ms, rest(payload, int(fresh_s * 1e3), kept_ms, load_s))
        except Unavailable:
            self._figures.away += 1
            made = b""
        if not made:
            self._figures.refused += 1
            return True  # no token to return
        past_s = monotonic() - filled
        early_s = load_s * plan.early * _drawn() if plan.early else 0.0
        self._keep(key, flight, value, fresh_s - past_s, fresh_s + stale_s - past_s, early_s, load_s, made)
        return True

    async def _give_back(self, key: str, token: str) -> None:
        try:
            await self._far.fill(key, token, 0, b"")
        except Unavailable:
            self._figures.away += 1

    # --- flights ------------------------------------------------------------------------------------------------------

    def _begin(self, key: str) -> Flight:
        flight = Flight(self._hears.epoch if self._hears.until > monotonic() else -1)
        self._flights.setdefault(key, []).append(flight)
        return flight

    def _end(self, key: str, flight: Flight) -> None:
        flights = self._flights[key]
        flights.remove(flight)
        if not flights:
            del self._flights[key]
        if self._joined.get(key) is flight:
            del self._joined[key]

    def _keep(
        self,
        key: str,
        flight: Flight,
        value: Any,
        fresh_s: float,
        left_s: float,
        early_s: float,
        load_s: float,
        made: bytes,
    ) -> None:
        """Store a value in level 1, unless a drop may have come since the flight began."""
        if flight.dirty or flight.epoch != self._hears.epoch:
            return
        now = monotonic()
        until = now + fresh_s
        ends = now + left_s if self._is_alone else until
        self._near.put(key, Entry(value, until, until - early_s, ends, load_s, made, weight(value)))

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its callers raise it


def _drawn() -> float:
    """A random factor for XFetch: 0 to infinity, 1 on average."""
    return -math.log(1.0 - random.random())


def _value(plan: Plan, found: Found) -> Any:
    return found.value if found.payload is None else plan.decode(found.payload)


def _encoded(plan: Plan, key: str, value: Any) -> bytes:
    try:
        return plan.encode(value)
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"the value of {key} cannot be encoded: {error}; return a value that JSON can express, or give "
            "encode and decode"
        ) from error

"""A writer's work beside its engine: writes to the store, requests to gateways, and reports of changes.

Owns their order: the store is read before gateways are; a batch is written whole before the next one; the keepalive
declares the shard whole only while nothing is missing (H7). A store that lost data is emptied and rewritten from the
engine's state. Must not know the content of a record.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast

import msgspec
import structlog

from muster_server.plane.log import connect
from muster_server.plane.ownership.errors import Fenced, StoreError, WentBack
from muster_server.plane.role import Handler
from muster_server.plane.spec import Spec, SpecError, password
from muster_server.systems.presence.compensation import Compensation, CompensationSettings, Gaps
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.place import Place, place_of
from muster_server.systems.presence.questions import SourceStats, WriterStats
from muster_server.systems.presence.relay import Relay
from muster_server.systems.presence.store import (
    BUCKETS,
    NOBODY,
    Packed,
    Shard,
    Waiting,
    seconds,
    stamp_of,
)

TICK_S: Final = 0.02
"""Shortest interval of batches, and of looks at what is missing, in seconds; shorter than the reorder time."""
ALIVE_S: Final = 1.0
AGAIN_S: Final = 0.25
"""Seconds between tries while a store does not answer."""
BATCH: Final = 1_000
"""Limit of users in a batch: the script blocks the store for about 3 ms."""
UNPUBLISHED_MAX: Final = 64 << 20
"""Limit of changes in bytes that are kept for a store that comes back empty; the oldest are dropped, and counted."""


class Engine(Gaps, Protocol):
    """The methods of `muster_server._engines.OnlineWriterEngine` for this."""

    def now(self) -> int: ...
    def is_whole(self) -> bool: ...
    def restore_applied(self, ap: int, epoch: int, version: int) -> None: ...
    def restore_users(self, bytes: bytes) -> tuple[int, list[int]]: ...
    def restore_told(
        self, user: int, device_name: str, of: tuple[int, int, int, int], at_ms: int, online: bool
    ) -> None: ...
    def open(self) -> None: ...
    def rewrite(self) -> None: ...
    def send(self, node: int, frame: bytes) -> None: ...
    def batch(self, users_max: int, buckets: int) -> tuple[int, int, bytes, bytes, bytes, bytes] | None: ...
    def written(self) -> None: ...
    def is_written(self) -> bool: ...
    def standing(self) -> tuple[str, int | None]: ...
    def sources(self) -> list[tuple[int, int, bool, int, int, int]]: ...
    def online_len(self) -> int: ...


class Keeper:
    """Works while the context is open."""

    name: Final = "presence"
    """Name of its field in the status of a writer."""

    def __init__(
        self,
        engine: Engine,
        store: Shard,
        relay: Relay,
        place: Place,
        node: int,
        epoch: int,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._engine, self._store, self._relay, self._place = engine, store, relay, place
        self._node, self._epoch, self._log = node, epoch, log
        self._runner = Compensation(
            engine,
            engine.send,
            shards=place.shards,
            index=place.shard,
            epoch=epoch,
            settings=CompensationSettings(),
            chance=random.Random(),
        )
        self._unwritten, self._missing = asyncio.Event(), asyncio.Event()
        self.handlers: Mapping[str, Handler] = {"unwritten": self._unwritten.set, "missing": self._missing.set}
        self._count = 0
        self._opened = self._rewriting = False
        self._why = "the store was not read yet"
        """Why readers must not use the shard; empty: they may."""
        self._alive_at = 0.0
        self._unpublished: deque[tuple[str, bytes, int]] = deque()
        self._unpublished_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._read_s = 0.0
        self._pass: tuple[float, bool] | None = None
        """When the engine gave the first of the batches that have all of its changes until then, and whether it was in
        sync. None: they are written."""
        self._whole_at: float | None = None
        """The last time of which the store has everything, while the engine was in sync."""
        self._batches = self._users = self._changes = self._failed = self._went_back = self._dropped = 0
        self._waiting = Waiting(0, 0, 0)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep(), name="writes to the store")]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for said in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(said, Exception):
                self._log.error("a part of the keeper failed", error=repr(said))
        await self._relay.close()
        await self._store.close()

    # ---- Start

    async def _keep(self) -> None:
        published = await self._begin()
        self._tasks.append(asyncio.create_task(self._compensate(), name="asks gateways"))
        self._tasks.append(asyncio.create_task(self._relay.run(self._epoch, published), name="relays changes"))
        await self._write()

    async def _begin(self) -> str:
        """Read the content of the store, and accept gateways from then on. Returns the id of the last published change."""
        said = ""
        while True:
            began = time.monotonic()
            try:
                begun = await self._store.claim(self._epoch)
                vector = await self._store.vector()
                pages = [page async for page in self._store.pages()]
                break
            except StoreError as error:
                if str(error) != said:
                    self._log.warning("waiting for the store", cause=str(error))
                    said = self._why = str(error)
                self._failed += 1
                await asyncio.sleep(AGAIN_S)
        self._count = begun.batches
        users = 0
        for ap, epoch, version in vector:
            self._engine.restore_applied(ap, epoch, version)
        for page in pages:
            read, wrong = self._engine.restore_users(page)
            users += read
            if wrong:
                self._log.warning("records in an unknown format, or of another shard", users=len(wrong), first=wrong[0])
        recalled = await self._relay.recall(begun.logged, begun.published)
        for change in recalled:
            _, epoch, version, index = map(int, change.id.split("-"))
            of = (change.gateway, epoch, version, index)
            self._engine.restore_told(int(change.user), change.device, of, change.at_ms, change.state == "online")
        self._engine.open()
        self._opened, self._read_s = True, time.monotonic() - began
        self._why = "starting"
        self._log.info("the store was read", users=users, gateways=len(vector), seconds=round(self._read_s, 3))
        return begun.published

    # ---- Gateways

    async def _compensate(self) -> None:
        while True:
            self._missing.clear()
            self._runner.run(self._engine.now())
            if self._engine.is_whole() and not any(self._runner.in_flight):
                await self._missing.wait()
            await asyncio.sleep(TICK_S)

    # ---- The store

    async def _write(self) -> None:
        """Write batches and the keepalive, in their order."""
        said = ""
        while True:
            self._unwritten.clear()
            try:
                if self._rewriting and self._count < 0:
                    await self._write_anew()
                while await self._write_batch():
                    if time.monotonic() >= self._alive_at:
                        await self._keep_alive()
                if time.monotonic() >= self._alive_at:
                    await self._keep_alive()
                said = ""
            except WentBack as error:
                self._went_back += 1
                self._log.warning("the store lost data; rewriting it", cause=str(error))
                self._rewriting, self._count = True, -1
                continue
            except StoreError as error:
                self._failed += 1
                self._why = str(error)
                if str(error) != said:
                    said = str(error)
                    self._log.warning("cannot write to the store", cause=said)
                if isinstance(error, Fenced):
                    self._relay.stop()
                await asyncio.sleep(AGAIN_S)
                continue
            await asyncio.sleep(TICK_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unwritten.wait(), self._alive_at - time.monotonic())

    async def _write_batch(self) -> bool:
        """Write one batch; returns whether there was one."""
        if self._pass is None:
            self._pass = (seconds(), self._engine.standing()[0] == "in_sync")
        batch = self._engine.batch(BATCH, BUCKETS)
        if batch is None:
            self._rewriting = False
            self._end_pass()
            return False
        users, changes, records, gone, vector, told = batch
        packed = Packed(records, gone, vector, told, changes)
        place = await self._store.write(self._epoch, self._count + 1, packed)
        self._count += 1
        self._engine.written()
        self._batches, self._users, self._changes = self._batches + 1, self._users + users, self._changes + changes
        if changes:
            self._remember(place, told, changes)
            self._relay.wake()
        if users < BATCH:
            self._end_pass()
        return True

    def _end_pass(self) -> None:
        if self._pass is not None and self._pass[1]:
            self._whole_at = self._pass[0]
        self._pass = None

    async def _write_anew(self) -> None:
        """Empty the store; the engine returns its whole state again, and changes that are not in the log are written
        first."""
        await self._store.wipe(self._epoch)
        self._count = 0
        self._pass = self._whole_at = None
        self._engine.rewrite()
        self._relay.begin_anew()
        again, self._unpublished, self._unpublished_bytes = list(self._unpublished), deque(), 0
        for at, (_, told, changes) in enumerate(again):
            try:
                place = await self._store.write(self._epoch, self._count + 1, Packed(NOBODY, b"", b"", told, changes))
            except StoreError:
                self._count = -1  # from the start: it is not known whether this batch was written
                for _, rest, count in again[at:]:
                    self._remember("", rest, count)
                raise
            self._count += 1
            self._remember(place, told, changes)
        self._relay.wake()

    def _remember(self, place: str, told: bytes, changes: int) -> None:
        """Remember changes that are not in the log yet: a store that comes back empty has lost them."""
        published = self._relay.published
        while self._unpublished and _is_before(self._unpublished[0][0], published):
            self._unpublished_bytes -= len(self._unpublished.popleft()[1])
        self._unpublished.append((place, told, changes))
        self._unpublished_bytes += len(told)
        while self._unpublished_bytes > UNPUBLISHED_MAX:
            self._unpublished_bytes -= len(self._unpublished.popleft()[1])
            self._dropped += 1

    async def _keep_alive(self) -> None:
        standing, ap = self._engine.standing()
        why = {"in_sync": "", "behind": f"behind of gateway {ap}"}.get(standing, standing)
        if self._rewriting:
            why = why or "the store is being rewritten"
        self._alive_at = time.monotonic() + ALIVE_S
        stats = msgspec.json.encode(self.stats(why))
        self._waiting = await self._store.keep_alive(
            self._epoch, self._count, stats, whole_at=None if why else self._whole_at
        )
        self._why = why
        self._relay.oldest_s = self._waiting.oldest_ms / 1_000
        if self._waiting.all > self._relay.waiting_max:
            self._dropped += await self._store.drop_feed()

    # ---- For operators

    def stats(self, why: str) -> WriterStats:
        """The state of the shard."""
        asks, fulls = self._runner.in_flight
        return WriterStats(
            site=self._place.site,
            shards=self._place.shards,
            shard=self._place.shard,
            node=self._node,
            epoch=self._epoch,
            why=why,
            online=self._engine.online_len(),
            gateways=[SourceStats(*source) for source in self._engine.sources()],
            asks=asks,
            fulls=fulls,
            asked=self._runner.asked,
            fulls_asked=self._runner.fulls_asked,
            batches=self._batches,
            unpublished=self._waiting.unpublished,
        )

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        known: dict[str, Any] = msgspec.to_builtins(self.stats(self._why))
        notes = self._relay.notes(self._waiting.unpublished)
        return {**known, "read_s": round(self._read_s, 3), "relay": self._relay.why, "notes": notes}

    def counters(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each counter, in the form of an engine."""
        return [
            ("presence_users_written", "Users' records written to the store", self._users),
            ("presence_batches_written", "Batches written to the store", self._batches),
            ("presence_changes_written", "Changes written to the store's feed", self._changes),
            ("presence_changes_published", "Changes published to the log", self._relay.count),
            (
                "presence_changes_dropped",
                "Changes dropped before they were published, because too many waited",
                self._dropped,
            ),
            ("presence_store_failed", "Failed calls of the store", self._failed),
            ("presence_store_went_back", "Times that the store had lost written data", self._went_back),
            ("presence_asks", "Requests for missing versions", self._runner.asked),
            (
                "presence_asks_given_up",
                "Requests for missing versions without a complete answer in time",
                self._runner.given_up,
            ),
            ("presence_fulls_asked", "Requests for full states", self._runner.fulls_asked),
        ]

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each gauge, in the form of an engine."""
        asks, fulls = self._runner.in_flight
        return [
            ("presence_serving", "1 while the shard is whole and its readers answer", float(not self._why)),
            ("presence_asks_open", "Requests for missing versions in flight", asks),
            ("presence_fulls_open", "Full states in transit", fulls),
            ("presence_unpublished", "Changes that are not in the log yet", self._waiting.unpublished),
            (
                "presence_unpublished_age_seconds",
                "Age of the oldest change that is not in the log yet",
                self._waiting.oldest_ms / 1_000,
            ),
            ("presence_read_seconds", "Time that reading the store took at the start", self._read_s),
        ]


def _is_before(place: str, published: str) -> bool:
    """Whether an id of the stream is published."""
    return bool(place and published) and _order(place) <= _order(published)


def _order(place: str) -> tuple[int, int]:
    ms, _, number = place.partition("-")
    return int(ms), int(number)


def companion(
    spec: Spec, settings: PresenceSettings
) -> Callable[[object, structlog.typing.FilteringBoundLogger, Callable[[], int]], Keeper]:
    """The function that starts the keeper of a writer. Raises `SpecError`."""
    place = place_of(spec, settings)
    stores = settings.redis[place.site - 1] if settings.redis else []
    if not stores:
        raise SpecError("presence.redis: missing; a writer needs a store: redis://HOST:PORT/DB")
    url, stamp = stores[place.shard % len(stores)], stamp_of(spec)
    word = password(settings.password_files[place.site - 1])

    def begin(engine: object, log: structlog.typing.FilteringBoundLogger, partitions: Callable[[], int]) -> Keeper:
        store = Shard(
            url,
            word,
            instance=settings.instance,
            site=place.site,
            shards=place.shards,
            shard=place.shard,
            stamp=stamp,
            near=settings.near,
        )
        logs = connect(settings.log, Path(settings.folder) / "presence", partitions=place.shards)
        # If a site changes its number of shards, it gets another log: each begins with an empty view.
        relay = Relay(store, logs, f"presence-site{place.site}-of{place.shards}", place.shard, log)
        return Keeper(cast(Engine, engine), store, relay, place, spec.node, spec.epoch, log)

    return begin

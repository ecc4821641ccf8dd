"""The online reader: looks users up in its copies of the shards of its own site, or in their stores, in one round trip
for each shard.

Owns the check that an answer is fresh: a shard whose keepalive is old is refused with a code, never answered with
outdated data. Callers then ask a reader of another site. Must not know how a shard is written.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from muster_server._engines import PresenceLookup, PresenceTable
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.ownership.errors import Full, StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError, password, secret
from muster_server.systems.presence.feeds import Feed, Watching, missed
from muster_server.systems.presence.near import Near
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.place import site_of
from muster_server.systems.presence.questions import (
    FollowStatuses,
    Found,
    Ping,
    Pong,
    SetStatus,
    ShardStats,
    Stats,
    StatusesFound,
    StatusesOf,
    StatusRecords,
    StatusSet,
    Update,
    User,
    Watch,
    Who,
    WriterStats,
)
from muster_server.systems.presence.seen import Seen, standing
from muster_server.systems.presence.status import Status, check_text
from muster_server.systems.presence.statuses import Statuses
from muster_server.systems.presence.store import BUCKETS, Looked, Shard, stamp_of
from muster_server.systems.presence.twins import Twins

USERS_MAX: Final = 10_000
"""Limit of users in one request."""
QUIET_S: Final = 1.0
"""Longest interval between two answers of a watch, in seconds, even if nothing changes."""
WATCHES_MAX: Final = 10_000
"""Limit of open watches of one reader."""


Part = tuple[int, bytes | PresenceTable, int, int]
"""An argument of `PresenceLookup.found`."""


class Reader:
    """The `plane.service.Service` of a reader."""

    take_trust: Final = None

    def __init__(self, spec: Spec, settings: PresenceSettings, context: Context) -> None:
        """Raises `SpecError`."""
        assert spec.bind is not None
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self.site = site_of(spec, settings)
        self._bind, self._log = spec.bind, context.log
        self._fresh_ms = settings.fresh_ms
        self._shards = shards_of(settings, self.site, stamp_of(spec))
        self._near = [Near(shard, settings.fresh_ms, context.log) for shard in self._shards] if settings.near else []
        self._feeds = [Feed(shard) for shard in self._shards]
        self._statuses = statuses_of(settings, self.site)
        self._status_feed = Feed(self._statuses)
        key = key_of(secret(spec.cluster_secret_file, 32))
        self._twins = Twins(self._statuses, self.site, len(settings.writers), key, context)
        self._server = Server(
            key,
            {
                Ping: self._ping,
                Who: self._who,
                Watch: self._watch,
                Stats: self._stats,
                StatusesOf: self._statuses_of,
                SetStatus: self._set_status,
                FollowStatuses: self._follow_statuses,
            },
        )
        self._lookups = self._found = self._stale = self._failed = self._watches = self._set = 0
        self._looked_near = self._looked_up = 0

    # ---- Life

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set."""
        await self._server.start(*self._bind)
        copying = [asyncio.create_task(near.run(), name="copies a shard") for near in self._near]
        try:
            self._is_ready(True)
            async with self._twins.running():
                await stop.wait()
        finally:
            self.draining = True
            await self._server.stop()
            for task in copying:
                task.cancel()
            for said in await asyncio.gather(*copying, return_exceptions=True):
                if isinstance(said, Exception):
                    self._log.error("a copy of a shard failed", error=repr(said))
            await asyncio.gather(*(feed.close() for feed in (*self._feeds, self._status_feed)))
            await asyncio.gather(*(shard.close() for shard in self._shards), self._statuses.close())
            self.closed = True

    def _is_ready(self, ready: bool) -> None:
        self.ready = ready
        self.on_ready(ready)

    # ---- Requests

    async def _ping(self, _: Ping) -> Pong:
        return Pong(self.site)

    async def _who(self, asked: Who) -> msgspec.Raw:
        return await self._found_of(asked, self._near)

    async def _found_of(self, asked: Who, copies: Sequence[Near]) -> msgspec.Raw:
        """Returns a `Found`, written by compiled code. `copies`: those that may answer; empty: the stores answer. Raises
        `CallError`: `question`, `stale`, `store`."""
        users = asked.users
        if len(users) > USERS_MAX:
            raise CallError("question", f"too many users in one request: {len(users)} (limit {USERS_MAX})")
        lookup = PresenceLookup(users, len(self._shards))
        parts = await self._parts(lookup, copies)
        try:
            found = lookup.found(self.site, parts, asked.lost)
        except ValueError as error:
            self._failed += 1
            raise CallError("store", str(error)) from None
        self._lookups += 1
        self._found += len(users)
        return msgspec.Raw(found)

    async def _parts(self, lookup: PresenceLookup, copies: Sequence[Near]) -> list[Part]:
        """What each shard answers: its copy, or its store where the copy must not be asked. Raises `CallError`."""
        stored: dict[int, Part] = {}
        while True:  # a copy may have changed while a store was asked
            near: list[Part] = []
            asked: list[int] = []
            for index in lookup.shards():
                if index in stored:
                    continue
                if copies and (fresh := copies[index].fresh()) is not None:
                    near.append((index, copies[index].table, fresh.now, fresh.alive))
                else:
                    asked.append(index)
            if not asked:
                self._looked_near, self._looked_up = self._looked_near + len(near), self._looked_up + len(stored)
                return [*near, *stored.values()]
            looked = await asyncio.gather(*(self._looked(self._shards[index], index, lookup) for index in asked))
            stored |= {part[0]: part for part in looked}

    async def _looked(self, shard: Shard, index: int, lookup: PresenceLookup) -> Part:
        """Look users up in the store of one shard, which must be fresh. Raises `CallError`."""
        try:
            looked = await shard.look(*lookup.question(index, BUCKETS))
        except StoreError as error:
            self._failed += 1
            raise CallError("store", str(error)) from None
        if why := self._refused(looked):
            self._stale += 1
            raise CallError("stale", f"{shard.name}: {why}")
        return index, looked.answers, looked.now, looked.alive

    def _refused(self, looked: Looked) -> str:
        """Why the shard must not be used; empty: it may. The store's clock may step in either direction."""
        if not looked.alive:
            return "its writer has not declared it whole"
        age_ms = abs(looked.now - looked.alive)
        return "" if age_ms <= self._fresh_ms else f"its writer last declared it whole {age_ms / 1_000:.1f} s ago"

    async def _stats(self, _: Stats) -> list[ShardStats]:
        return list(await asyncio.gather(*map(self._stats_of, range(len(self._shards)))))

    async def _stats_of(self, index: int) -> ShardStats:
        shard = self._shards[index]
        copy = self._near[index].stats() if self._near else None
        where: dict[str, Any] = {"site": self.site, "shards": len(self._shards), "shard": index, "copy": copy}
        try:
            looked = await shard.look(*PresenceLookup([], 1).question(0, BUCKETS))
            said, users = await shard.stats()
        except StoreError as error:
            return ShardStats(**where, why=str(error), age_ms=None, writer=None)
        writer = msgspec.json.decode(said, type=WriterStats) if said else None
        age = looked.now - looked.alive if looked.alive else None
        why = self._refused(looked)
        if why and writer is not None and writer.why:
            why = writer.why
        return ShardStats(**where, why=why, age_ms=age, writer=writer, users=users)

    async def _watch(self, asked: Watch) -> AsyncIterator[Update]:
        """Answers of one watch. Raises `CallError`: `question`, `busy`, `store`, `stale`, `slow`."""
        if len(asked.users) > USERS_MAX:
            raise CallError("question", f"too many users in one watch: {len(asked.users)} (limit {USERS_MAX})")
        if self._watches >= WATCHES_MAX:
            raise CallError("busy", f"too many open watches at this reader (limit {WATCHES_MAX}); close some")
        count, watching = len(self._shards), Watching(frozenset(asked.users))
        feeds = [self._feeds[index] for index in sorted({user % count for user in watching.users})]
        seen: Seen | None = None
        if asked.statuses:
            feeds.append(self._status_feed)
        self._watches += 1
        try:
            try:
                for feed in feeds:
                    await feed.join(watching)
            except StoreError as error:
                raise CallError("store", str(error)) from None
            if asked.statuses:
                seen = Seen(await self._present(asked.users), asked.own)
            first = await self._first(asked, feeds, watching, seen)
            yield Update(b"")
            for told in first:
                yield told
            while True:
                change = await watching.next(QUIET_S)
                if change is not None and seen is not None:
                    for told in await seen.told(change, self._users):
                        yield told
                elif change is not None:
                    yield Update(change.record, change.id)
                elif watching.failed is not None:
                    raise CallError("store", str(watching.failed))
                elif watching.slow:
                    raise CallError("slow", "changes come faster than they are read")
                else:
                    yield Update(b"")
        finally:
            self._watches -= 1
            for feed in feeds:
                feed.leave(watching)

    async def _first(self, asked: Watch, feeds: Sequence[Feed], watching: Watching, seen: Seen | None) -> list[Update]:
        """The changes since the last one that was read; if these are not stored any more, or for a new watch, the
        present states."""
        changes = missed(feeds, watching.users, asked.after) if asked.after else None
        if changes is not None:
            watching.clear()  # the states include these changes
            if seen is not None:
                return await seen.missed(changes, self._users)
            return [Update(each.record, each.id) for each in changes]
        if not asked.state:
            return []
        found = await self._users(asked.users)
        if seen is not None:
            return seen.standing(found)
        return [Update(record) for user in found for record in standing(user)]

    async def _users(self, users: Sequence[int]) -> list[User]:
        """The present states of users, by their stores: a copy may be behind its feed, and the watch would miss a change.
        Raises `CallError`."""
        return msgspec.msgpack.decode(await self._found_of(Who(list(users)), ()), type=Found).users

    # ---- Statuses

    async def _present(self, users: Sequence[int]) -> dict[int, Status]:
        try:
            return await self._statuses.shown(users)
        except StoreError as error:
            self._failed += 1
            raise CallError("store", str(error)) from None

    async def _statuses_of(self, asked: StatusesOf) -> StatusesFound:
        """Raises `CallError`: `question`, `store`."""
        if len(asked.users) > USERS_MAX:
            raise CallError("question", f"too many users in one request: {len(asked.users)} (limit {USERS_MAX})")
        return StatusesFound(await self._present(asked.users))

    async def _set_status(self, asked: SetStatus) -> StatusSet:
        """Raises `CallError`: `question`, `full`, `store`."""
        try:
            check_text(asked.status.text)
            status = await self._statuses.set(asked.user, asked.status)
        except ValueError as error:
            raise CallError("question", str(error)) from None
        except Full as error:
            raise CallError("full", str(error)) from None
        except StoreError as error:
            self._failed += 1
            raise CallError("store", str(error)) from None
        self._set += 1
        return StatusSet(status)

    async def _follow_statuses(self, _: FollowStatuses) -> AsyncIterator[StatusRecords]:
        """Raises `CallError`: `store`."""
        try:
            place = await self._statuses.end()
            async for page in self._statuses.all():
                yield StatusRecords(page)
            while True:
                place, records = await self._statuses.records_after(place, QUIET_S)
                yield StatusRecords(records)
        except StoreError as error:
            raise CallError("store", str(error)) from None

    # ---- For operators

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        about = {"state": state, "site": self.site, "shards": len(self._shards), "watches": self._watches}
        return about | ({"copies": [msgspec.to_builtins(near.stats()) for near in self._near]} if self._near else {})

    def counters(self) -> list[Figure]:
        """Every counter since the start."""
        return [
            ("presence_lookups", "Requests for users that were answered", self._lookups),
            ("presence_users_found", "Users looked up", self._found),
            ("presence_refused_stale", "Requests refused because the shard's keepalive is old", self._stale),
            ("presence_refused_store", "Requests refused because the store did not answer", self._failed),
            (
                "presence_looked_near",
                "Look-ups in one shard that its copy answered, without the store",
                self._looked_near,
            ),
            ("presence_looked_in_store", "Look-ups in one shard that its store answered", self._looked_up),
            ("presence_near_loads", "Copies of shards read from their stores", sum(near.loads for near in self._near)),
            ("presence_statuses_set", "Statuses that users set at this reader", self._set),
            ("presence_strangers", "Connections that did not prove the cluster's secret", self._server.refused),
        ]

    def gauges(self) -> list[Figure]:
        """Every gauge."""
        return [
            ("presence_watches", "Open watches", self._watches),
            (
                "presence_near_fresh",
                "Shards whose copies answer now",
                sum(near.fresh() is not None for near in self._near),
            ),
            ("presence_near_users", "Users online in the copies", sum(near.table.users for near in self._near)),
            ("presence_near_bytes", "Memory of the copies", sum(near.table.bytes for near in self._near)),
            ("presence_statuses", "Users of the site with a status, or with one that ended lately", self._twins.count),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """The bound address."""
        return [self._bind]

    def take(self, settings: Any) -> None:
        """Does nothing: no setting can change while it runs."""


def shards_of(settings: PresenceSettings, site: int, stamp: str) -> list[Shard]:
    """The stores of a site's shards, in their order. Raises `SpecError`."""
    stores = settings.redis[site - 1] if settings.redis else []
    if not stores:
        raise SpecError("presence.redis: missing; a reader needs a store: redis://HOST:PORT/DB")
    word = password(settings.password_files[site - 1])
    count = settings.writers[site - 1]
    return [
        Shard(
            stores[index % len(stores)],
            word,
            instance=settings.instance,
            site=site,
            shards=count,
            shard=index,
            stamp=stamp,
        )
        for index in range(count)
    ]


def statuses_of(settings: PresenceSettings, site: int) -> Statuses:
    """The statuses of a site, in the first of its stores."""
    word = password(settings.password_files[site - 1])
    return Statuses(settings.redis[site - 1][0], word, instance=settings.instance, site=site)


def build(spec: Spec, settings: PresenceSettings, context: Context) -> Reader:
    """Make a reader. Raises `SpecError`."""
    return Reader(spec, settings, context)

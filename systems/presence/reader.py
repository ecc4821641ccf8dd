"""The online reader: looks users up in the stores of its own site, in one round trip for each shard.

Owns the check that an answer is fresh: a shard whose keepalive is old is refused with a code, never answered with a lie.
Callers then ask a reader of another site. Must not know how a shard is kept.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from muster._core import PresenceLookup
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError, password, secret
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.place import site_of
from muster_server.systems.presence.questions import Ping, Pong, ShardStats, Stats, Told, Watch, Who, WriterStats
from muster_server.systems.presence.store import BUCKETS, Looked, Shard, StoreError

USERS_MAX: Final = 10_000
"""Of one question."""
QUIET_S: Final = 1.0
"""A watch says at least this often that it is there."""
CHANGES_MAX: Final = 65_536
"""Changes that wait for one watch; a slower one is cut off."""
LOOK_S: Final = 1.0


class Named(msgspec.Struct, frozen=True):
    """The user of a change."""

    user: str


_named: Final = msgspec.json.Decoder(Named)


class Reader:
    """A `plane.service.Service`."""

    take_trust: Final = None

    def __init__(self, spec: Spec, settings: PresenceSettings, context: Context) -> None:
        """Raises `SpecError`."""
        assert spec.bind is not None
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self.site = site_of(spec, settings)
        self._bind, self._log = spec.bind, context.log
        self._fresh_ms = settings.fresh_ms
        self._shards = shards_of(settings, self.site)
        self._server = Server(
            key_of(secret(spec.cluster_secret_file, 32)),
            {Ping: self._ping, Who: self._who, Watch: self._watch, Stats: self._stats},
        )
        self._lookups = self._found = self._stale = self._failed = self._watches = 0

    # ---- Life

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Until `stop` is set."""
        await self._server.start(*self._bind)
        try:
            self._is_ready(True)
            await stop.wait()
        finally:
            self.draining = True
            await self._server.stop()
            await asyncio.gather(*(shard.close() for shard in self._shards))
            self.closed = True

    def _is_ready(self, ready: bool) -> None:
        self.ready = ready
        self.on_ready(ready)

    # ---- Questions

    async def _ping(self, _: Ping) -> Pong:
        return Pong(self.site)

    async def _who(self, asked: Who) -> msgspec.Raw:
        """A `Found`, which compiled code writes. Raises `CallError`: `question`, `stale`, `store`."""
        users = asked.users
        if len(users) > USERS_MAX:
            raise CallError("question", f"{len(users)} users; {USERS_MAX} are the most of one question")
        lookup = PresenceLookup(users, len(self._shards))
        looked = await asyncio.gather(*(self._looked(self._shards[index], index, lookup) for index in lookup.shards()))
        try:
            found = lookup.found(self.site, looked)
        except ValueError as error:
            self._failed += 1
            raise CallError("store", str(error)) from None
        self._lookups += 1
        self._found += len(users)
        return msgspec.Raw(found)

    async def _looked(self, shard: Shard, index: int, lookup: PresenceLookup) -> tuple[int, bytes, int, int]:
        """Look up in one shard, which must be fresh: a part of `PresenceLookup.found`. Raises `CallError`."""
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
        """Why the shard is not to be believed; empty: it is. The store's clock may step in either direction."""
        if not looked.alive:
            return "its writer has not said that it is whole"
        age_ms = abs(looked.now - looked.alive)
        return "" if age_ms <= self._fresh_ms else f"its writer said {age_ms / 1_000:.1f} s ago that it is whole"

    async def _stats(self, _: Stats) -> list[ShardStats]:
        return list(await asyncio.gather(*map(self._stats_of, range(len(self._shards)))))

    async def _stats_of(self, index: int) -> ShardStats:
        shard = self._shards[index]
        where = {"site": self.site, "shards": len(self._shards), "shard": index}
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

    async def _watch(self, asked: Watch) -> AsyncIterator[Told]:
        """Raises `CallError`: `question`, `store`, `slow`."""
        if len(asked.users) > USERS_MAX:
            raise CallError("question", f"{len(asked.users)} users; {USERS_MAX} are the most of one watch")
        users = frozenset(asked.users)
        count = len(self._shards)
        queue: asyncio.Queue[bytes | StoreError] = asyncio.Queue(CHANGES_MAX)
        shards = [self._shards[index] for index in sorted({user % count for user in users})]
        begun = [asyncio.Event() for _ in shards]
        tasks = [
            asyncio.create_task(self._follow(shard, users, queue, each), name=f"watches {shard.name}")
            for shard, each in zip(shards, begun, strict=True)
        ]
        self._watches += 1
        try:
            for each in begun:
                await each.wait()
            yield Told(b"")
            while True:
                try:
                    change = await asyncio.wait_for(queue.get(), QUIET_S)
                except TimeoutError:
                    yield Told(b"")
                    continue
                if isinstance(change, StoreError):
                    raise CallError("store", str(change))
                if queue.full():
                    raise CallError("slow", "changes come faster than they are read")
                yield Told(change)
        finally:
            self._watches -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self,
        shard: Shard,
        users: frozenset[int],
        queue: asyncio.Queue[bytes | StoreError],
        begun: asyncio.Event,
    ) -> None:
        """Put changes of these users into the queue as they come."""
        try:
            place = await shard.newest()
            begun.set()
            while True:
                for entry in await shard.coming(place, LOOK_S):
                    place = entry.place
                    for change in entry.told.records():
                        if int(_named.decode(change).user) in users:
                            await queue.put(change)
        except StoreError as error:
            begun.set()
            await queue.put(error)

    # ---- For operators

    def status(self) -> dict[str, Any]:
        """For `/api/v1/status`."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        return {"state": state, "site": self.site, "shards": len(self._shards), "watches": self._watches}

    def counters(self) -> list[Figure]:
        """Every counter since the start."""
        return [
            ("presence_lookups", "Questions for users answered", self._lookups),
            ("presence_users_found", "Users looked up", self._found),
            ("presence_refused_stale", "Look-ups refused: the shard's keepalive is old", self._stale),
            ("presence_refused_store", "Look-ups refused: the store did not answer", self._failed),
            ("presence_strangers", "Connections that did not prove the cluster's secret", self._server.refused),
        ]

    def gauges(self) -> list[Figure]:
        """Every gauge."""
        return [("presence_watches", "Watches that are open", self._watches)]

    def addresses(self) -> list[tuple[str, int]]:
        """The bound address."""
        return [self._bind]

    def take(self, settings: Any) -> None:
        """Nothing changes while it runs."""


def shards_of(settings: PresenceSettings, site: int) -> list[Shard]:
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
        )
        for index in range(count)
    ]


def build(spec: Spec, settings: PresenceSettings, context: Context) -> Reader:
    """Make a reader. Raises `SpecError`."""
    return Reader(spec, settings, context)

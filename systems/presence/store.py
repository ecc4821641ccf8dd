"""A shard's store in Redis: the calls of its writer and its readers.

Owns the calls of the scripts and the texts of their refusals. Must not know how a writer decides, nor the content of a
record. A call that was cut short may have been executed: the next call's answer tells.
"""

import hashlib
import os
import secrets
import struct
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from muster_server.plane.log import Batch
from muster_server.plane.ownership.errors import Fenced, StoreError, WentBack
from muster_server.plane.ownership.redis import RedisStore
from muster_server.plane.spec import Spec, secret
from muster_server.systems.presence import scripts

BUCKETS: Final = 8_192
"""Number of buckets of one shard, for the times at which users were last seen."""
PAGE_USERS: Final = 10_000
WATCHED: Final = 16
"""Limit of entries that a watch reads at once."""
WAIT_S: Final = 2.0
_HEAD: Final = struct.Struct(">II")


def seconds() -> float:
    """A clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Foreign(StoreError):
    """Another instance owns the store."""


class Packed(NamedTuple):
    """A batch as the script takes it; `core/presence/src/pack.rs` has the layouts."""

    users: bytes
    gone: bytes
    vector: bytes
    told: bytes
    """Changes, packed as `plane.log.Batch` does."""
    changes: int
    """The number of changes."""


NOBODY: Final = b"\x90"
"""An empty list of users."""


class Claimed(NamedTuple):
    """The state that a writer finds."""

    batches: int
    published: str
    logged: int
    """The end of the log when the last entry was published."""


class Waiting(NamedTuple):
    """The number of changes in a shard's stream."""

    all: int
    unpublished: int
    oldest_ms: int
    """Age of the oldest unpublished change."""


class Looked(NamedTuple):
    """The answer of a look-up; times in ms of the store's clock."""

    now: int
    alive: int
    """Time of the last keepalive; 0: never."""
    epoch: str
    batches: str
    answers: bytes


class Head(NamedTuple):
    """The state of a store for a copy of it; times in ms of the store's clock."""

    now: int
    alive: int
    """Time of the last keepalive; 0: never."""
    life: str
    """A mark that each claim of a writer and each rewriting replaces; empty: its writer gives no batches to copies."""
    batches: int
    place: str
    """The stream's id of the last batch of this life; empty: none."""


class Written(NamedTuple):
    """A batch in the stream of batches."""

    place: str
    life: str
    number: int
    at_s: int
    """When it was written, by the store's clock."""
    users: bytes
    gone: bytes


class Entry(NamedTuple):
    """Changes of one batch, an entry of the stream."""

    place: str
    told: Batch


def stamp_of(spec: Spec) -> str:
    """A mark of the instance, derived from the key of room names, which its nodes share and never change; empty: this
    node has no such key. Raises `SpecError`."""
    if not os.access(spec.name_key_file, os.R_OK):
        return ""
    return hashlib.blake2b(secret(spec.name_key_file, 16), digest_size=8, person=b"muster instance").hexdigest()


class Shard:
    """One shard's store. All calls come from one loop; `close` ends it."""

    def __init__(
        self,
        url: str,
        password: str,
        *,
        instance: str,
        site: int,
        shards: int,
        shard: int,
        stamp: str = "",
        near: bool = True,
    ) -> None:
        """`stamp`: the mark of the instance (`stamp_of`); empty: not known, so every store is accepted. `near`: its writer
        leaves its batches for copies in readers."""
        self._instance, self._stamp, self._near = instance, stamp, near
        self.name = f"site {site}, shard {shard} of {shards}"
        self.shards, self.shard = shards, shard
        self._prefix = f"{{muster:{instance}:presence:{site}:{shards}.{shard}}}:"
        self._keys = [f"{self._prefix}{name}" for name in ("meta", "vector", "outbox", "users", "batches")]
        self._redis = RedisStore(url, password, f"{self.name}: the store", WAIT_S)
        self._clock = 0, seconds()
        """The store's clock in ms in its last answer to a writer, and when that came: since then at least as much time
        has passed there as here, so a time by it is never too late."""

    async def close(self) -> None:
        """Close its connections."""
        await self._redis.close()

    # ---- For its writer

    async def claim(self, epoch: int) -> Claimed:
        """Claim the shard for the writer of this epoch. Raises `Fenced`, `Foreign` and `Away`."""
        life = secrets.token_hex(8) if self._near else ""
        in_force, count, published, logged, now = await self._run(scripts.CLAIM, epoch, self._stamp, life)
        if not in_force:
            raise self._foreign()
        if int(in_force) != epoch:
            raise Fenced(f"{self.name}: a later writer owns it (epoch {int(in_force)}, this one has {epoch})")
        self._clock = int(now), seconds()
        return Claimed(int(count), published.decode(), int(logged))

    async def vector(self) -> list[tuple[int, int, int]]:
        """The applied vector: gateway, epoch, version. Raises `Away`."""
        found = await self._redis.call("hgetall", self._keys[1])
        split = ((int(gateway), *map(int, value.split())) for gateway, value in found.items())
        return [(gateway, epoch, version) for gateway, epoch, version in split]

    async def pages(self) -> AsyncIterator[bytes]:
        """All records, packed. Raises `Away`."""
        cursor = b"0"
        while True:
            cursor, page = await self._run(scripts.PAGE, cursor, PAGE_USERS)
            yield page
            if cursor == b"0":
                return

    async def write(self, epoch: int, count: int, batch: Packed) -> str:
        """Write batch number `count`; returns the stream's id of its changes. Raises `WentBack`, `Fenced`, `Away`."""
        said = await self._run(scripts.WRITE, epoch, count - 1, count, *batch, self._prefix)
        self._check(epoch, count, said)
        return said[0].decode() if len(said) == 1 else ""

    async def keep_alive(self, epoch: int, count: int, stats: bytes, *, whole_at: float | None) -> Waiting:
        """Report the shard's state, and declare that it was whole at a time of `seconds`; None: it is not. Returns the
        numbers of waiting changes.

        Raises `WentBack`, `Fenced`, `Away`.
        """
        at = "" if whole_at is None else self._clock[0] + round((whole_at - self._clock[1]) * 1_000)
        *said, now = await self._run(scripts.ALIVE, epoch, count, at, stats)
        if len(said) == 1:
            self._check(epoch, count, [*said, now])
            return Waiting(0, 0, 0)
        self._clock = int(now), seconds()
        return Waiting(*map(int, said))

    def _check(self, epoch: int, count: int, said: list[bytes]) -> None:
        if len(said) == 1:
            return
        has = (int(said[0] or 0), int(said[1] or -1))
        if has == (epoch, count):
            return  # done by a call that was cut short
        if has[0] > epoch:
            raise Fenced(f"{self.name}: a later writer owns it (epoch {has[0]}, this one has {epoch})")
        raise WentBack(f"{self.name}: has batch {has[1]} of epoch {has[0]}, not the last written one")

    async def wipe(self, epoch: int) -> None:
        """Empty the store, to be rewritten: from here on no reader takes it as whole. Raises `Fenced` and `Away`."""
        said = await self._run(scripts.WIPE, epoch)
        if len(said) > 1:
            raise Fenced(f"{self.name}: a later writer owns it (epoch {int(said[0])}, this one has {epoch})")
        await self.claim(epoch)

    async def drop_feed(self) -> int:
        """Drop the oldest changes beyond `FEED_MAX`; returns their number. Raises `Away`."""
        return int(await self._run(scripts.DROP))

    # ---- For the change feed

    async def changes(self, after: str) -> list[Entry]:
        """Entries after an id, empty for the first ones, up to `scripts.PAGE_BYTES` and one more. Raises `Away`."""
        page = await self._run(scripts.CHANGES, f"({after}" if after else "-")
        entries, at = [], 0
        while at < len(page):
            begin = at + 1 + page[at]
            count, length = _HEAD.unpack_from(page, begin)
            place, at = page[at + 1 : begin].decode(), begin + _HEAD.size + length
            entries.append(Entry(place, Batch(page[at - length : at], count)))
        return entries

    async def published(self, epoch: int, place: str, logged: int) -> None:
        """Record that the log, which ends at `logged`, has the entries up to this one. Raises `Away`."""
        await self._run(scripts.PUBLISHED, epoch, place, logged)

    async def recent(self, changes_max: int) -> tuple[list[Entry], bool]:
        """The newest entries, in order, with about as many changes; and whether these are all. Raises `Away`."""
        entries: list[Entry] = []
        before = "+"
        while sum(entry.told.count for entry in entries) < changes_max:
            page = await self._redis.call("xrevrange", self._keys[2], before, count=WATCHED)
            entries += [_entry(place, told) for place, told in page]
            if len(page) < WATCHED:
                return entries[::-1], True
            before = f"({entries[-1].place}"
        return entries[::-1], False

    async def coming(self, after: str, wait_s: float) -> list[Entry]:
        """Entries after an id, as soon as there is one, or none after a while. Raises `Away`."""
        return [_entry(*each) for each in await self._redis.after(self._keys[2], after, WATCHED, wait_s)]

    def _foreign(self) -> "Foreign":
        keys = self._prefix.partition(":presence:")[0] + ":presence:*"
        return Foreign(
            f"{self.name}: another instance with the same name {self._instance!r} owns the store; give this one "
            f"its own name (instance.name) or database (presence.redis), or delete the keys {keys} if the other "
            "one does not exist any more"
        )

    # ---- For readers

    async def look(self, users: bytes, buckets: bytes) -> Looked:
        """Look users up. Raises `Foreign` and `Away`."""
        now, alive, epoch, count, answers, owner = await self._run(scripts.LOOK, users, buckets, self._prefix)
        if self._stamp and owner and owner.decode() != self._stamp:
            raise self._foreign()
        return Looked(int(now), int(alive), epoch.decode(), count.decode(), answers)

    # ---- For copies in readers

    async def head(self) -> Head:
        """The state of the store. Raises `Foreign` and `Away`."""
        now, alive, life, count, place, owner = await self._run(scripts.HEAD)
        if self._stamp and owner and owner.decode() != self._stamp:
            raise self._foreign()
        return Head(int(now), int(alive), life.decode(), int(count), place.decode())

    async def seen(self, first: int, last: int) -> bytes:
        """Last-seen times of these buckets, packed. Raises `Away`."""
        page: bytes = await self._run(scripts.SEEN, first, last, self._prefix)
        return page

    async def written(self, after: str, wait_s: float | None) -> list[Written]:
        """Batches after an id, as soon as there is one, or none after a while. `wait_s` None: without waiting. Raises
        `Away`, and `ValueError` for an entry of another form."""
        try:
            return [
                Written(place.decode(), each[b"l"].decode(), int(each[b"n"]), int(each[b"t"]), each[b"u"], each[b"g"])
                for place, each in await self._redis.after(self._keys[4], after, WATCHED, wait_s)
            ]
        except KeyError as error:
            raise ValueError(f"{self.name}: an entry of its batches lacks {error}") from None

    # ---- For operators

    async def stats(self) -> tuple[bytes, int]:
        """Its writer's report in JSON, or empty; and the number of users with a record. Raises `Away`."""
        said = await self._redis.call("hget", self._keys[0], "stats")
        return bytes(said or b""), int(await self._redis.call("hlen", self._keys[3]))

    async def _run(self, script: str, *arguments: Any) -> Any:
        return await self._redis.run(script, self._keys, arguments)


def _entry(place: bytes, told: dict[bytes, bytes]) -> Entry:
    return Entry(place.decode(), Batch(told[b"c"], int(told[b"k"])))

"""The statuses of users in a site's store.

Owns the layout of these keys, and the scripts that change them. Must not know devices, nor who may see a status. Statuses
are apart from shards: they stay when a site changes their number, and when a writer writes a shard again.

All keys have one hash tag: `records`, a hash of users with their records in JSON; `due`, the users whose status changes
by itself, by the time of the next change; `changes`, a stream of the changes of the last minute; `mark:READER`, the last
step of a reader, by which it finds that the store came back empty or older.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from muster_server.plane.log import Batch
from muster_server.plane.ownership.errors import Full
from muster_server.plane.ownership.redis import RedisStore
from muster_server.systems.presence.status import NewStatus, Record, Status, record_of, shown
from muster_server.systems.presence.store import WAIT_S, WATCHED, Entry

STATUSES_MAX: Final = 1_000_000
"""Limit of statuses of one site: some 300 B each in its store."""
CHANGES_MAX: Final = 100_000
"""Limit of changes in the stream."""
KEPT_MS: Final = 60_000
BURIED_MS: Final = 3_600_000
"""A status that has ended stays for this time, so that an older one of another site does not come back."""
MARK_S: Final = 60
"""A reader's mark goes after this time without a step of it."""
DUE_MAX: Final = 500
"""Limit of statuses that change by themselves in one step."""
PAGE: Final = 1_000
TRIES: Final = 4


_decoder: Final = msgspec.json.Decoder(Record)


def decoded(content: bytes | None) -> Record | None:
    """A record from the store."""
    return _decoder.decode(content) if content else None


LOOK: Final = """
local time = redis.call('TIME')
local found = #ARGV > 0 and redis.call('HMGET', KEYS[1], unpack(ARGV)) or {}
return {time[1] * 1000 + math.floor(time[2] / 1000), found}
"""
"""The time, and the records of these users."""

_TELL: Final = f"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function tell(user, record)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', {CHANGES_MAX}, '*', 'u', user, 'r', record)
end
local function due(user, record)
  local at = record['until'] + {BURIED_MS}
  if record['until'] > now then at = record['until'] end
  if record.away_at > now and record.away_at < at then at = record.away_at end
  redis.call('ZADD', KEYS[2], at, user)
end
"""

PUT: Final = f"""{_TELL}
local taken = {{}}
for at = 1, #ARGV, 2 do
  local user, record = ARGV[at], cjson.decode(ARGV[at + 1])
  local known = redis.call('HGET', KEYS[1], user)
  if known and cjson.decode(known).version >= record.version then
    taken[#taken + 1] = 0
  elseif not known and redis.call('HLEN', KEYS[1]) >= {STATUSES_MAX} then
    taken[#taken + 1] = -1
  else
    redis.call('HSET', KEYS[1], user, ARGV[at + 1])
    due(user, record)
    tell(user, ARGV[at + 1])
    taken[#taken + 1] = 1
  end
end
redis.call('XTRIM', KEYS[3], 'MINID', '~', string.format('%d', now - {KEPT_MS}))
return taken
"""
"""Take each of these records that is newer than the known one. Returns for each 1: taken, 0: it is older, -1: full."""

STEP: Final = f"""{_TELL}
local users = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, {DUE_MAX})
for _, user in ipairs(users) do
  local known = redis.call('HGET', KEYS[1], user)
  local record = known and cjson.decode(known)
  if not record or record['until'] + {BURIED_MS} <= now then
    redis.call('HDEL', KEYS[1], user)
    redis.call('ZREM', KEYS[2], user)
  else
    due(user, record)
    tell(user, known)
  end
end
local before = redis.call('GET', ARGV[1])
redis.call('SET', ARGV[1], ARGV[2], 'EX', {MARK_S})
return {{redis.call('HLEN', KEYS[1]), before or ''}}
"""
"""Tell of the statuses that turned away or ended by now, and remove those that ended long ago. Returns the number of all
statuses, and the mark of the caller's step before this one."""


class Statuses:
    """The statuses of one site. A feed (`feeds.py`) takes it as a shard that has all users. All calls come from one loop,
    and raise `Away`; `close` ends it."""

    shards: Final = 1
    shard: Final = 0

    def __init__(self, url: str, password: str, *, instance: str, site: int) -> None:
        self.name = f"statuses of site {site}"
        self._site = site
        self._prefix = f"{{muster:{instance}:presence:{site}:status}}:"
        self._keys = [self._prefix + name for name in ("records", "due", "changes")]
        self._redis = RedisStore(url, password, f"{self.name}: the store", WAIT_S)

    async def close(self) -> None:
        """Close its connections."""
        await self._redis.close()

    async def look(self, users: Sequence[int]) -> tuple[int, dict[int, Record]]:
        """The store's time, and the records of those users that have one."""
        found: dict[int, Record] = {}
        now = 0
        for at in range(0, len(users) or 1, PAGE):
            part = users[at : at + PAGE]
            now, records = await self._run(LOOK, *part)
            found |= {user: record for user, each in zip(part, records, strict=True) if (record := decoded(each))}
        return int(now), found

    async def shown(self, users: Sequence[int]) -> dict[int, Status]:
        """The present statuses of those users that have one."""
        now, found = await self.look(users)
        return {user: status for user, record in found.items() if (status := shown(record, now))}

    async def set(self, user: int, new: NewStatus) -> Status | None:
        """Set a status. Raises `Full`."""
        for _ in range(TRIES):
            now, found = await self.look([user])
            record = record_of(new, found.get(user), now, self._site)
            (taken,) = await self.take([(user, record)])
            if taken < 0:
                raise Full(f"{self.name}: {STATUSES_MAX} users have a status; no further one can set one")
            if taken:
                return shown(record, now)
        return (await self.shown([user])).get(user)  # later ones came at the same time

    async def take(self, records: Sequence[tuple[int, Record]]) -> list[int]:
        """Take those that are newer, at most `PAGE`. Returns for each as `PUT`."""
        told = (part for user, record in records for part in (user, msgspec.json.encode(record)))
        taken: list[int] = await self._run(PUT, *told)
        return taken

    async def step(self, reader: str, mark: str) -> tuple[int, str]:
        """As `STEP`. `reader` names the caller; its `mark` is written for the next step."""
        count, before = await self._run(STEP, f"{self._prefix}mark:{reader}", mark)
        return int(count), before.decode()

    async def all(self) -> AsyncIterator[list[tuple[int, Record]]]:
        """All records, a page at a time; one may come twice."""
        cursor = 0
        while True:
            cursor, page = await self._redis.call("hscan", self._keys[0], cursor, count=PAGE)
            found = [(int(user), _decoder.decode(content)) for user, content in page.items()]
            for at in range(0, len(found), PAGE):
                yield found[at : at + PAGE]
            if not cursor:
                return

    # ---- As a feed's shard

    async def end(self) -> str:
        """The place of the newest change."""
        newest = await self._redis.call("xrevrange", self._keys[2], count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def records_after(self, place: str, wait_s: float) -> tuple[str, list[tuple[int, Record]]]:
        """The records of changes after a place, as soon as there is one, or none after a while; and the next place."""
        page = await self._page(place, wait_s)
        at = page[-1][0].decode() if page else place
        return at, [(int(told[b"u"]), _decoder.decode(told[b"r"])) for _, told in page]

    async def coming(self, after: str, wait_s: float) -> list[Entry]:
        """As `Shard.coming`."""
        return [self._entry(*each) for each in await self._page(after, wait_s)]

    async def recent(self, changes_max: int) -> tuple[list[Entry], bool]:
        """As `Shard.recent`."""
        page = await self._redis.call("xrevrange", self._keys[2], count=changes_max)
        return [self._entry(*each) for each in reversed(page)], len(page) < changes_max

    async def _page(self, after: str, wait_s: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return await self._redis.after(self._keys[2], after, 16 * WATCHED, wait_s)

    def _entry(self, place: bytes, told: dict[bytes, bytes]) -> Entry:
        """A change as a feed takes it: one record, with the user and an id that no change of a device has."""
        at = place.decode()
        record = {"user": told[b"u"].decode(), "id": f"0-{self._site}-{at}", "record": msgspec.Raw(told[b"r"])}
        return Entry(at, Batch.of([msgspec.json.encode(record)]))

    async def _run(self, script: str, *arguments: Any) -> Any:
        return await self._redis.run(script, self._keys, arguments)


class Told(msgspec.Struct, frozen=True):
    """A change of a status, as a feed has it."""

    user: str
    id: str
    record: Record


told_of: Final = msgspec.json.Decoder(Told).decode


def is_status(change: str) -> bool:
    """Return whether the change with this id is one of a status. No gateway has the number 0."""
    return change.startswith("0-")

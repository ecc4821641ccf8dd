"""The scripts of a shard's store, in Lua: Redis runs each of them atomically.

Owns the layout of the store. `core/presence/src/pack.rs` packs arguments and results; `store.py` calls them. All keys
of a shard have one hash tag, so that a cluster of Redis keeps them together.

- `meta`: a hash with `epoch` (of the writer), `count` (its batches), `at` (the keepalive: when the shard was whole, in ms
of the store's own clock), `relay` and `logged` (the last published entry, and the end of the log after it), `told` (number
of all changes), `stats` and `instance` (the owning instance, if its writer knows it); and for copies of the shard in
readers `life`, a mark that each claim of a writer and each rewriting replaces, and `place`, the id of the last batch.
- `vector`: a hash of gateways; a value is the epoch and the highest version up to which all versions are applied.
- `outbox`: a stream of changes, until they are published and a minute longer. An entry has those of a batch: `n`, the
number of earlier changes; `k`, the number of these; `c`, all of them as one batch of the log, which no script parses.
- `users`: a hash of all users with their records. Lists for one command come as MessagePack: compiled code of the store
reads and writes them; a script's loop would cost more than the command.
- `batches`: a stream of the last batches, for copies in readers: `l`, the life; `n`, its number; `t`, the second; `u` and
`g`, users and those that went, as `WRITE` takes them. Empty if `presence.near` is off.
- `s:N`: a hash of one bucket of users: when those that went offline were last seen.
"""

from typing import Final

SEEN_S: Final = 7 * 86_400
"""A bucket's last-seen times are deleted when none of them changed for this many seconds."""
SEEN_MAX: Final = 256
"""Limit of last-seen times of one bucket: with 8,192 buckets 2 million users. A bucket with more discards all of them."""

BATCHES_MAX: Final = 400
"""Limit of batches in the stream, some 50 KB each at most: three seconds of a store that does nothing else."""
BATCHES_MS: Final = 10_000
"""Batches that are older are dropped with the next keepalive."""

PAGE_BYTES: Final = 1 << 20
"""Limit of changes that are read at once, plus one entry."""
FEED_MAX: Final = 2_000_000
"""Limit of changes that wait to be published, 250 B each; older ones are dropped and counted."""

PART: Final = 4_000
"""Limit of arguments of one command: a script's stack has 8,000 slots."""

CLAIM: Final = """
local owner = redis.call('HGET', KEYS[1], 'instance')
if owner and ARGV[2] ~= '' and owner ~= ARGV[2] then return {'', owner, '', '', 0} end
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'instance', ARGV[2]) end
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return {epoch, '', '', '', 0} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
redis.call('HSETNX', KEYS[1], 'count', '0')
redis.call('HDEL', KEYS[1], 'at', 'place')
redis.call('DEL', KEYS[5])
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], 'life') else redis.call('HSET', KEYS[1], 'life', ARGV[3]) end
local known = redis.call('HMGET', KEYS[1], 'count', 'relay', 'logged')
local time = redis.call('TIME')
return {ARGV[1], known[1], known[2] or '', known[3] or '0', time[1] * 1000 + math.floor(time[2] / 1000)}
"""
"""A writer claims the shard: earlier ones are fenced (I-1). Returns the current epoch, number of batches, last published
entry, the end of the log after it, and now in ms. An empty epoch: the store belongs to another instance. The third
argument: the life that begins; empty: no batches for copies."""

WRITE: Final = f"""
local head = redis.call('HMGET', KEYS[1], 'epoch', 'count', 'life')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then return {{head[1] or '', head[2] or ''}} end
local users, gone, vector, changes, prefix = cmsgpack.unpack(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[8]), ARGV[9]
for first = 1, #users, {PART} do
  redis.call('HSET', KEYS[4], unpack(users, first, math.min(first + {PART - 1}, #users)))
end
local now = redis.call('TIME')[1]
local at, left = 1, {{}}
while at <= #gone do
  local bucket, ago, user
  bucket, ago, user, at = struct.unpack('>I4I4I1c0', gone, at)
  local seen = prefix .. 's:' .. bucket
  left[#left + 1] = user
  local fresh = redis.call('HSET', seen, user, now - ago)
  if fresh == 1 and redis.call('HLEN', seen) > {SEEN_MAX} then redis.call('DEL', seen) end
  redis.call('EXPIRE', seen, {SEEN_S})
end
for first = 1, #left, {PART} do
  redis.call('HDEL', KEYS[4], unpack(left, first, math.min(first + {PART - 1}, #left)))
end
at = 1
while at <= #vector do
  local gateway, applied
  gateway, applied, at = struct.unpack('>I1c0I1c0', vector, at)
  if #applied == 0 then redis.call('HDEL', KEYS[2], gateway) else redis.call('HSET', KEYS[2], gateway, applied) end
end
local last = ''
if changes > 0 then
  local before = redis.call('HINCRBY', KEYS[1], 'told', changes) - changes
  last = redis.call('XADD', KEYS[3], '*', 'n', before, 'k', changes, 'c', ARGV[7])
end
if head[3] then
  local place = redis.call('XADD', KEYS[5], 'MAXLEN', '=', {BATCHES_MAX}, '*',
    'l', head[3], 'n', ARGV[3], 't', now, 'u', ARGV[4], 'g', gone)
  redis.call('HSET', KEYS[1], 'count', ARGV[3], 'place', place)
else
  redis.call('HSET', KEYS[1], 'count', ARGV[3])
end
return {{last}}
"""
"""A batch: users, the vector that covers them and the changes together (H7, H8), if nothing was lost since the last
one.
Returns one value: the stream's id of its changes. Or two: the epoch and the number of batches that the store has
instead."""

ALIVE: Final = f"""
local head = redis.call('HMGET', KEYS[1], 'epoch', 'count')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then return {{head[1] or '', head[2] or ''}} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'at', string.format('%d', math.min(now, tonumber(ARGV[3])))) end
redis.call('HSET', KEYS[1], 'stats', ARGV[4])
redis.call('XTRIM', KEYS[5], 'MINID', string.format('%d', time[1] * 1000 - {BATCHES_MS}))
local told = redis.call('HMGET', KEYS[1], 'told', 'relay')
local function since(place)
  local first = redis.call('XRANGE', KEYS[3], place, '+', 'COUNT', 1)[1]
  if not first then return 0, '' end
  return told[1] - first[2][2], first[1]
end
local all = since('-')
local waiting, oldest = since(told[2] and '(' .. told[2] or '-')
local age = 0
if oldest ~= '' then age = now - tonumber(string.match(oldest, '^%d+')) end
return {{all, waiting, age, now}}
"""
"""The keepalive. The third argument: when the shard was whole, in ms of the store's clock, as a keepalive may be executed
long after it was sent; empty: it is not whole. Returns the number of changes in the stream, of unpublished ones, the age
in ms of the oldest of these, and now."""

WIPE: Final = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return {epoch, ''} end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
redis.call('UNLINK', KEYS[4])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
return {ARGV[1]}
"""
"""The store is rewritten: no shard passes as whole from here on, until `count` exists again."""

PAGE: Final = """
local page = redis.call('HSCAN', KEYS[4], ARGV[1], 'COUNT', ARGV[2])
return {page[1], cmsgpack.pack(page[2])}
"""
"""A page of the records, from a cursor on. Returns the next cursor, 0 after the last, and users with their records in
MessagePack. One may come twice."""

HEAD: Final = """
local meta = redis.call('HMGET', KEYS[1], 'at', 'life', 'count', 'place', 'instance')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {now, tonumber(meta[1] or 0), meta[2] or '', tonumber(meta[3] or 0), meta[4] or '', meta[5] or ''}
"""
"""The state of the store for a copy: now and the keepalive in ms of one clock, the life, the number of batches, the id of
the last one, the owning instance."""

SEEN: Final = """
local time, parts = redis.call('TIME')[1], {}
parts[1] = struct.pack('>I4', time)
for bucket = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local name = ARGV[3] .. 's:' .. bucket
  local known = redis.call('HGETALL', name)
  if #known > 0 then
    local left = redis.call('PTTL', name)
    parts[#parts + 1] = struct.pack('>I4I4I4', bucket, math.max(0, math.floor(left / 1000)), #known / 2)
    for at = 1, #known, 2 do
      parts[#parts + 1] = struct.pack('>I1c0I4', #known[at], known[at], known[at + 1])
    end
  end
end
return table.concat(parts)
"""
"""Last-seen times of some buckets, from the first number to the last: the second now; then for each bucket its number,
the seconds that it stays, the number of its users, and its users with the second of each."""

LOOK: Final = f"""
local meta = redis.call('HMGET', KEYS[1], 'at', 'epoch', 'count', 'instance')
local time = redis.call('TIME')
local users, found = cmsgpack.unpack(ARGV[1]), {{}}
for first = 1, #users, {PART} do
  local part = redis.call('HMGET', KEYS[4], unpack(users, first, math.min(first + {PART - 1}, #users)))
  if #part == #users then
    found = part
  else
    for at = 1, #part do found[first + at - 1] = part[at] end
  end
end
for at = 1, #users do
  if not found[at] then
    local bucket = struct.unpack('>I4', ARGV[2], 4 * at - 3)
    found[at] = tonumber(redis.call('HGET', ARGV[3] .. 's:' .. bucket, users[at]) or 0)
  end
end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {{now, tonumber(meta[1] or 0), meta[2] or '', meta[3] or '', cmsgpack.pack(found), meta[4] or ''}}
"""
"""Some users, with the data that show how fresh they are: now and the keepalive in ms of one clock, epoch, number of
batches; and the owning instance. For a user without a record: the second at which it was last seen, or 0."""

CHANGES: Final = f"""
local at, bytes, parts = ARGV[1], 0, {{}}
repeat
  local page = redis.call('XRANGE', KEYS[3], at, '+', 'COUNT', 16)
  for _, entry in ipairs(page) do
    local place, told = entry[1], entry[2][6]
    parts[#parts + 1] = struct.pack('>I1c0I4I4c0', #place, place, entry[2][4], #told, told)
    bytes, at = bytes + #told, '(' .. place
  end
until #page < 16 or bytes >= {PAGE_BYTES}
return table.concat(parts)
"""
"""Entries from an id on, up to a limit of bytes: the id, the number of changes, the changes."""

PUBLISHED: Final = """
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'relay', ARGV[2], 'logged', ARGV[3])
local minute = redis.call('TIME')[1] * 1000 - 60000
local published = tonumber(string.match(ARGV[2], '^%d+'))
return redis.call('XTRIM', KEYS[3], 'MINID', '~', string.format('%d', math.min(minute, published)))
"""
"""Entries up to this one are published. Those of the last minute stay for watches."""

DROP: Final = f"""
local kept, first, told, at = (redis.call('HGET', KEYS[1], 'told') or 0) - {FEED_MAX}, nil, nil, nil
for _ = 1, 10000 do
  local entry = redis.call('XRANGE', KEYS[3], at and '(' .. at or '-', '+', 'COUNT', 1)[1]
  if not entry then break end
  told, at = tonumber(entry[2][2]), entry[1]
  first = first or told
  if told >= kept then break end
end
if not at then return 0 end
redis.call('XTRIM', KEYS[3], 'MINID', at)
return told - first
"""
"""Drop the oldest entries, some at a time, so that the number of waiting changes stays within the limit. Returns the
number of dropped changes."""

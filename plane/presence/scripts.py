"""The scripts of a shard's store, in Lua: each is one step that Redis does whole or not at all.

Owns what lies in the store. `core/presence/src/pack.rs` packs what they take and give; `store.py` calls them. All keys of a
shard have one hash tag, so that a cluster of Redis keeps them together.

- `meta`: a hash with `epoch` (of the writer), `count` (its batches), `at` (the keepalive, in ms of the store's own clock),
  `relay` and `logged` (the last change that was published, and the end of the log after it) and `stats`.
- `vector`: a hash of gateways; a value is the epoch and the highest version that is applied with all before it.
- `feed`: a stream of changes, until they are published and a minute more.
- `b:N`: a hash of the users of one bucket with their records. `s:N`: when those that went offline were last seen.
"""

from typing import Final

SEEN_S: Final = 7 * 86_400
"""A bucket's last-seen times go when none of them changed for so long."""
SEEN_MAX: Final = 256
"""Last-seen times of one bucket: with 8,192 buckets 2 million users. A bucket with more forgets all of them."""

BEGIN: Final = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return {epoch, '', '', ''} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
redis.call('HSETNX', KEYS[1], 'count', '0')
redis.call('HDEL', KEYS[1], 'at')
local known = redis.call('HMGET', KEYS[1], 'count', 'relay', 'logged')
return {ARGV[1], known[1], known[2] or '', known[3] or '0'}
"""
"""A writer begins: earlier ones are fenced (I-1). Epoch in force, number of batches, last
published change, end of the log after it."""

WRITE: Final = f"""
local head = redis.call('HMGET', KEYS[1], 'epoch', 'count')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then return {{head[1] or '', head[2] or ''}} end
local users, vector, feed, prefix = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local now = redis.call('TIME')[1]
local at = 1
while at <= #users do
  local bucket, user, record
  bucket, user, record, at = struct.unpack('>I4I1c0I4c0', users, at)
  if #record == 0 then
    local seen = prefix .. 's:' .. bucket
    redis.call('HDEL', prefix .. 'b:' .. bucket, user)
    redis.call('HSET', seen, user, now)
    if redis.call('HLEN', seen) > {SEEN_MAX} then redis.call('DEL', seen) end
    redis.call('EXPIRE', seen, {SEEN_S})
  else
    redis.call('HSET', prefix .. 'b:' .. bucket, user, record)
  end
end
at = 1
while at <= #vector do
  local gateway, applied
  gateway, applied, at = struct.unpack('>I1c0I1c0', vector, at)
  if #applied == 0 then redis.call('HDEL', KEYS[2], gateway) else redis.call('HSET', KEYS[2], gateway, applied) end
end
at = 1
local last = ''
while at <= #feed do
  local user, change
  user, change, at = struct.unpack('>I1c0I4c0', feed, at)
  last = redis.call('XADD', KEYS[3], '*', 'u', user, 'c', change)
end
redis.call('HSET', KEYS[1], 'count', ARGV[3])
return {{last}}
"""
"""A batch: users, the vector that speaks of them and the changes together (H7, H8), if nothing was lost since the last one.
One value: the last change's place in the stream. Two: the epoch and the number of batches that the store has instead."""

ALIVE: Final = """
local head = redis.call('HMGET', KEYS[1], 'epoch', 'count')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then return {head[1] or '', head[2] or ''} end
local time = redis.call('TIME')
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'at', time[1] * 1000 + math.floor(time[2] / 1000))
end
redis.call('HSET', KEYS[1], 'stats', ARGV[4])
return {redis.call('XLEN', KEYS[3])}
"""
"""The keepalive; the number of changes in the stream."""

WIPE: Final = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return {epoch, ''} end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
return {ARGV[1]}
"""
"""Everything is written anew: nothing passes as whole from here on, until `count` is there again."""

EMPTY: Final = """
for bucket = ARGV[1], ARGV[2] - 1 do redis.call('UNLINK', ARGV[3] .. 'b:' .. bucket) end
return redis.status_reply('OK')
"""
"""Some of the buckets."""

PAGE: Final = """
local parts = {}
for bucket = ARGV[1], ARGV[2] - 1 do
  local all = redis.call('HGETALL', ARGV[3] .. 'b:' .. bucket)
  for at = 1, #all, 2 do
    parts[#parts + 1] = struct.pack('>I1c0I4c0', #all[at], all[at], #all[at + 1], all[at + 1])
  end
end
return table.concat(parts)
"""
"""The records of some of the buckets."""

LOOK: Final = """
local meta = redis.call('HMGET', KEYS[1], 'at', 'epoch', 'count')
local time = redis.call('TIME')
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local asked, users, seen, parts, at, count = ARGV[1], ARGV[2] .. 'b:', ARGV[2] .. 's:', {}, 1, 0
while at <= #asked do
  local bucket, user
  bucket, user, at = unpack('>I4I1c0', asked, at)
  local record = call('HGET', users .. bucket, user)
  count = count + 1
  if record then
    parts[count] = pack('>I4c0I4', #record, record, time[1])
  else
    parts[count] = pack('>I4I4', 0, tonumber(call('HGET', seen .. bucket, user) or 0))
  end
end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {now, tonumber(meta[1] or 0), meta[2] or '', meta[3] or '', table.concat(parts)}
"""
"""Some users, with what says how fresh they are: now and the keepalive in ms of one clock, epoch, number of batches. A user
whose last device went within the grace time still has a record, and was seen now."""

PUBLISHED: Final = """
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'relay', ARGV[2], 'logged', ARGV[3])
local minute = redis.call('TIME')[1] * 1000 - 60000
local published = tonumber(string.match(ARGV[2], '^%d+'))
return redis.call('XTRIM', KEYS[3], 'MINID', '~', string.format('%d', math.min(minute, published)))
"""
"""Changes up to one are published. Those of the last minute stay for who watches."""

"""The scripts of level 2. Each one is atomic, and judges by the clock and the life of its own Redis.

A key has an entry, `KEYS[1]`, and a state, `KEYS[2]`, a hash: the token `t` of a load with its end `u` and the life `r` in
which it was taken; `h`, until when loads read the primary; and `m:WRITER`, until when a writer's mark stands. Both have an
expiry. An entry is `1`, the `master_replid`, the time at which it was made, and what `muster.cache.entry` puts behind them.
"""

from typing import Final

NOW: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
LIFE: Final = """
local life = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
"""
KEEP: Final = """
local function keep(key, till)
  if redis.call('PTTL', key) < till - now then redis.call('PEXPIRE', key, till - now) end
end
"""

TAKE: Final = (
    NOW
    + LIFE
    + KEEP
    + """
local state, marked = {}, false
local all = redis.call('HGETALL', KEYS[2])
for place = 1, #all, 2 do
  if string.sub(all[place], 1, 2) ~= 'm:' then state[all[place]] = all[place + 1]
  elseif tonumber(all[place + 1]) > now then marked = true
  else redis.call('HDEL', KEYS[2], all[place]) end
end
if marked then return {'marked'} end
local entry = redis.call('GET', KEYS[1])
if entry then
  if string.sub(entry, 1, 41) ~= '1' .. life then redis.call('DEL', KEYS[1])
  elseif string.sub(entry, 42, 54) ~= ARGV[3] then return {'there', entry} end
end
if state.t and tonumber(state.u) > now and state.r == life then return {'wait', tonumber(state.u) - now} end
local till = now + ARGV[2]
redis.call('HSET', KEYS[2], 't', ARGV[1], 'u', till, 'r', life)
keep(KEYS[2], till)
return {'yours', tonumber(state.h or 0) > now and 1 or 0}
"""
)
"""A miss. ARGV: a token, its lifetime in ms, and the creation time of the entry that the caller has seen."""

FILL: Final = (
    NOW
    + LIFE
    + """
local had = redis.call('HMGET', KEYS[2], 't', 'r')
if had[1] ~= ARGV[1] then return '' end
redis.call('HDEL', KEYS[2], 't', 'u', 'r')
if had[2] ~= life then return '' end
local made = string.format('%013d', now)
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[1], '1' .. life .. made .. ARGV[3], 'PX', ARGV[2]) end
return made
"""
)
"""The end of a load. Returns the entry's creation time, or nothing if the token has lapsed. ARGV: the token, the
lifetime of the entry in ms (0: only return the token), the entry."""

CHANGE: Final = (
    NOW
    + KEEP
    + """
local mark, hold = tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[4], string.format('%d ', now) .. ARGV[5]) end
for place = 1, #KEYS, 2 do
  redis.call('DEL', KEYS[place])
  redis.call('HDEL', KEYS[place + 1], 't', 'u', 'r')
  if mark > 0 then redis.call('HSET', KEYS[place + 1], 'm:' .. ARGV[1], now + mark)
  else redis.call('HDEL', KEYS[place + 1], 'm:' .. ARGV[1]) end
  local till = now + mark + hold
  if hold > 0 and tonumber(redis.call('HGET', KEYS[place + 1], 'h') or 0) < till then
    redis.call('HSET', KEYS[place + 1], 'h', till)
  end
  if mark + hold > 0 then keep(KEYS[place + 1], till) end
end
return now
"""
)
"""A drop or a mark. Each key has an entry and a state in KEYS. ARGV: the writer, the lifetime of its mark in ms (0:
remove it), the hold in ms, the channel, and the message to publish there."""

RENEW: Final = (
    NOW
    + KEEP
    + """
for place = 2, #KEYS, 2 do
  if redis.call('HEXISTS', KEYS[place], 'm:' .. ARGV[1]) == 0 then return 0 end
end
for place = 2, #KEYS, 2 do
  local till = now + ARGV[2]
  redis.call('HSET', KEYS[place], 'm:' .. ARGV[1], till)
  if tonumber(ARGV[3]) > 0 then redis.call('HSET', KEYS[place], 'h', till + ARGV[3]) end
  keep(KEYS[place], till + ARGV[3])
end
return 1
"""
)
"""Extend a writer's marks; returns 0 if one has lapsed. ARGV: the writer, the lifetime of the mark in ms, the hold in
ms."""

BEAT: Final = (
    NOW
    + """
local info = redis.call('INFO', 'replication')
if ARGV[1] ~= '' then redis.call('PUBLISH', ARGV[1], ARGV[2]) end
return {now, string.match(info, 'master_replid:(%x+)'), string.match(info, 'role:(%a+)')}
"""
)
"""A heartbeat on the path that drops take. ARGV: a channel, and the message to publish there."""

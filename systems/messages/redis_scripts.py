"""Scripts of the schedule in Redis. Each is one step there, whole or not at all.

Owns the keys and their meaning. An entry is the 64 bytes of `_engines.stored_new`, with the body behind them: the id in
bytes 1 to 8, the topic from 13, the due time from 17, the state in byte 60. `_engines` decides what they say, and a script
sets an entry only where the expected one is. All keys share one hash tag:

    PREFIX owner      the life of the center that may write
    PREFIX lease      the same, for as long as it is kept up
    PREFIX count      changes ever made
    PREFIX mark       the place in a log up to which it is here
    PREFIX topics     numbers of topics
    PREFIX m:ID       the entry and the body of a message
    PREFIX w:TOPIC    ids by the time at which to look at them again
    PREFIX e:TOPIC    ids of ended messages by due time
    PREFIX x          ids by the time at which to forget them, by the clock of Redis

Every script begins with `prefix, owner, seen` and answers `status, count, …`: status 0; -1, another center writes; -2, Redis
has fewer changes than were seen, so it came back older. Nothing is changed then.
"""

from typing import Final

_BEGIN: Final = """
local prefix, owner, seen = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count = tonumber(redis.call('GET', prefix .. 'count') or '0')
if redis.call('GET', prefix .. 'owner') ~= owner then return {-1, count} end
if count < seen then return {-2, count} end
"""

LEASE: Final = """
local prefix, owner, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local there = redis.call('GET', prefix .. 'lease')
local count = tonumber(redis.call('GET', prefix .. 'count') or '0')
if there and there ~= owner then return {-1, count} end
redis.call('SET', prefix .. 'lease', owner, 'PX', lease_ms)
redis.call('SET', prefix .. 'owner', owner)
return {0, count}
"""
"""Take the lease if no center has it."""

LEAVE: Final = """
local prefix, owner = ARGV[1], ARGV[2]
if redis.call('GET', prefix .. 'lease') == owner then redis.call('DEL', prefix .. 'lease') end
return {0, 0}
"""

KEEP: Final = (
    _BEGIN
    + """
redis.call('SET', prefix .. 'lease', owner, 'PX', ARGV[4])
if ARGV[5] ~= '' then redis.call('SET', prefix .. 'mark', ARGV[5]) end
return {0, count}
"""
)
"""Renew the lease, and the mark if there is one."""

READ: Final = (
    _BEGIN
    + """
local found = {0, count}
local last = ARGV[4] == '1' and -1 or 63
for i = 5, #ARGV do found[i - 2] = redis.call('GETRANGE', prefix .. 'm:' .. ARGV[i], 0, last) end
return found
"""
)
"""`1` with bodies, and ids. Returns each entry, empty if there is none."""

INSERT: Final = (
    _BEGIN
    + """
local topic, messages = ARGV[4], prefix .. 'm:'
local wakes, known = {}, {}
for i = 5, #ARGV do
  local new = ARGV[i]
  local id = string.reverse(string.sub(new, 1, 8))
  if redis.call('SET', messages .. id, new, 'NX') then
    wakes[#wakes + 1] = struct.unpack('<I8', new, 17)
    wakes[#wakes + 1] = id
  else
    known[#known + 1] = i - 4
  end
end
if #wakes > 0 then
  redis.call('SADD', prefix .. 'topics', topic)
  redis.call('ZADD', prefix .. 'w:' .. topic, unpack(wakes))
  count = redis.call('INCRBY', prefix .. 'count', #wakes / 2)
end
return {0, count, known}
"""
)
"""A topic, and at most `redis.AT_ONCE` entries of new messages with their bodies. Returns the indexes, from 1, of those
that were not set because an entry exists."""

WRITE: Final = (
    _BEGIN
    + """
local found, made, topics = {0, count}, 0, {}
local time = redis.call('TIME')
local here = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 4, #ARGV, 8 do
  local id, expected, new, body, topic, mode, score, kept = unpack(ARGV, i, i + 7)
  local key = prefix .. 'm:' .. id
  local there = redis.call('GETRANGE', key, 0, 63)
  if there ~= expected then
    found[#found + 1] = there
  else
    if body ~= '' then
      redis.call('SET', key, new .. string.sub(body, 2))
    else
      redis.call('SETRANGE', key, 0, new)
    end
    if mode == 'ahead' then
      redis.call('ZADD', prefix .. 'x', here + kept, id)
    else
      if not topics[topic] then
        topics[topic] = true
        redis.call('SADD', prefix .. 'topics', topic)
      end
      if mode == 'ended' then
        redis.call('ZREM', prefix .. 'w:' .. topic, id)
        redis.call('ZADD', prefix .. 'e:' .. topic, score, id)
        redis.call('ZADD', prefix .. 'x', here + kept, id)
      else
        if mode == 'again' then
          redis.call('ZREM', prefix .. 'e:' .. topic, id)
          redis.call('ZREM', prefix .. 'x', id)
        end
        redis.call('ZADD', prefix .. 'w:' .. topic, score, id)
      end
    end
    made = made + 1
    found[#found + 1] = 1
  end
end
if made > 0 then found[2] = redis.call('INCRBY', prefix .. 'count', made) end
return found
"""
)
"""Groups of id, the expected entry, the new one, `+` and its body (empty: unchanged), topic, mode, its score, its
lifetime.

Modes: `waits`; `again`, which waits again; `ended`; `ahead`. Returns 1 for each that was set, else the existing entry."""

DUE: Final = (
    _BEGIN
    + """
local now = tonumber(ARGV[4])
local time = redis.call('TIME')
local here = time[1] * 1000 + math.floor(time[2] / 1000)
local by = math.min(now, here)
local found = {0, count, here}
for i = 5, #ARGV, 2 do
  local wakes = prefix .. 'w:' .. ARGV[i]
  local ids = redis.call('ZRANGEBYSCORE', wakes, '-inf', by, 'LIMIT', 0, ARGV[i + 1])
  local due = {''}
  for _, id in ipairs(ids) do
    due[#due + 1] = id
    due[#due + 1] = redis.call('GET', prefix .. 'm:' .. id) or ''
  end
  local next = redis.call('ZRANGEBYSCORE', wakes, '(' .. by, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  due[1] = next[2] or ''
  found[#found + 1] = due
end
return found
"""
)
"""The time, and pairs of topic and limit. Returns the time of Redis, and for each topic the next due time, then ids and
entries with bodies of messages that are due by both clocks, oldest first."""

FORGET: Final = (
    _BEGIN
    + """
local time = redis.call('TIME')
local here = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', prefix .. 'x', '-inf', here, 'LIMIT', 0, ARGV[4])
local dead = 0
for _, id in ipairs(ids) do
  local key = prefix .. 'm:' .. id
  local there = redis.call('GETRANGE', key, 0, 63)
  if #there == 64 then
    if string.byte(there, 60) == 4 then dead = dead + 1 end
    redis.call('ZREM', prefix .. 'e:' .. struct.unpack('<I4', there, 13), id)
    redis.call('DEL', key)
  end
  redis.call('ZREM', prefix .. 'x', id)
end
if #ids > 0 then count = redis.call('INCRBY', prefix .. 'count', #ids) end
return {0, count, #ids, dead}
"""
)
"""A limit. Returns the number of forgotten messages, and of dead letters among them."""

LIST: Final = (
    _BEGIN
    + """
local ids = redis.call('ZRANGE', prefix .. ARGV[4], ARGV[5], ARGV[6])
local found = {0, count}
for _, id in ipairs(ids) do
  found[#found + 1] = id
  found[#found + 1] = redis.call('GETRANGE', prefix .. 'm:' .. id, 0, 63)
end
return found
"""
)
"""A key of ids, the first and the last rank. Returns ids and entries."""

STATS: Final = (
    _BEGIN
    + """
local live, ready, ended = 0, 0, 0
for _, topic in ipairs(redis.call('SMEMBERS', prefix .. 'topics')) do
  live = live + redis.call('ZCARD', prefix .. 'w:' .. topic)
  ready = ready + redis.call('ZCOUNT', prefix .. 'w:' .. topic, '-inf', ARGV[4])
  ended = ended + redis.call('ZCARD', prefix .. 'e:' .. topic)
end
return {0, count, live, ready, ended}
"""
)

SCRUB: Final = (
    _BEGIN
    + """
local page = redis.call('SCAN', ARGV[4], 'MATCH', ARGV[5], 'COUNT', ARGV[6])
local found = {0, count, page[1]}
for _, key in ipairs(page[2]) do
  local id = string.sub(key, #prefix + 3)
  local there = redis.call('GETRANGE', key, 0, 63)
  local topic = #there == 64 and struct.unpack('<I4', there, 13) or 0
  found[#found + 1] = id
  found[#found + 1] = there
  found[#found + 1] = redis.call('ZSCORE', prefix .. 'w:' .. topic, id) or ''
  found[#found + 1] = redis.call('ZSCORE', prefix .. 'e:' .. topic, id) or ''
  found[#found + 1] = redis.call('ZSCORE', prefix .. 'x', id) or ''
end
return found
"""
)
"""A cursor, the pattern of keys of messages, about how many. Returns the next cursor, and for each key its id, its
entry, and its scores in `w:`, `e:` and `x`, empty if it is missing there."""

MARKED: Final = (
    _BEGIN
    + """
return {0, count, redis.call('GET', prefix .. 'mark') or ''}
"""
)

TOPICS: Final = (
    _BEGIN
    + """
return {0, count, redis.call('SMEMBERS', prefix .. 'topics')}
"""
)

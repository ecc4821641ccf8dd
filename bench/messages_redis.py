"""What a team writes without Muster: a sorted set by due time, bodies in a hash, and a pump with a Lua script.

`python -m bench.messages_redis REDIS_PORT HOOK_URL`. The pump takes up to 100 due messages, calls back by the same client as
Muster, and deletes what was answered; it looks again after 10 ms, as lmstfy does. What it holds when it dies is lost.
"""

import asyncio
import sys
from typing import Any, Final

import uvloop
from redis.asyncio import Redis

from muster.clock import now_ms
from muster_server import _engines

DUE, BODIES = "due", "bodies"
POP: Final = """\
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 100)
if #ids == 0 then return {} end
redis.call('ZREM', KEYS[1], unpack(ids))
local out = {}
for _, id in ipairs(ids) do
  out[#out + 1] = id
  out[#out + 1] = redis.call('HGET', KEYS[2], id)
end
return out
"""
PUSH: Final = """\
for i = 1, #ARGV, 3 do
  if redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 2]) == 1 then redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i]) end
end
return #ARGV / 3
"""
IDLE_S: Final = 0.01
SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def pump(port: int, url: str) -> None:
    """Until it is ended."""
    redis: Any = Redis(port=port)
    pop = redis.register_script(POP)
    client = _engines.CallbackClient(b'{"allowed": ["127.0.0.0/8"], "concurrency": 64, "in_flight_max": 4096}')
    number = 0
    held: dict[int, bytes] = {}

    def answered() -> None:
        done = [held.pop(each[0]) for each in client.take()]
        if done:
            asyncio.ensure_future(redis.hdel(BODIES, *done))  # noqa: RUF006 - it is not waited for

    asyncio.get_running_loop().add_reader(client.fd(), answered)
    while True:
        found = await pop(keys=[DUE, BODIES], args=[now_ms()])
        calls = []
        for id, body in zip(found[::2], found[1::2], strict=True):
            number += 1
            held[number] = id
            calls.append((number, id.decode(), url, "application/json", body, [SECRET], 10.0))
        client.submit(calls)
        if not calls:
            await asyncio.sleep(IDLE_S)


if __name__ == "__main__":
    uvloop.run(pump(int(sys.argv[1]), sys.argv[2]))

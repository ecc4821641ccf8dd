"""What a team writes without Muster: Redis streams by redis-py behind the same framework and server.

`python -m bench.http_redis REDIS_PORT PORT`. No keys, no limits, no ids of requests; a task reads each room for all streams.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar import Litestar, Request, Response, get, post
from litestar.params import FromPath
from litestar.response import Stream
from redis.asyncio import Redis

KEPT = 1_000
WAITING_MAX = 100_000
AnyRequest = Request[Any, Any, Any]


class Rooms:
    """Rooms in Redis."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._readers: dict[str, set[asyncio.Queue[bytes]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def one(self, room: str, data: bytes) -> str:
        """Publish; the id that Redis gave."""
        given: bytes = await self._redis.xadd(room, {"d": data}, maxlen=KEPT, approximate=True)
        return given.decode()

    async def batch(self, room: str, data: list[str]) -> list[str]:
        """The same of several, in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for each in data:
                pipeline.xadd(room, {"d": each}, maxlen=KEPT, approximate=True)
            given: list[bytes] = await pipeline.execute()
        return [each.decode() for each in given]

    async def read(self, room: str) -> AsyncIterator[bytes]:
        """Events, encoded once for all streams."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
        readers = self._readers.setdefault(room, set())
        if not readers:
            self._tasks.append(asyncio.create_task(self._follow(room, readers)))
        readers.add(queue)
        try:
            yield b":\n\n"
            while True:
                chunk = await queue.get()
                while not queue.empty():
                    chunk += queue.get_nowait()
                yield chunk
        finally:
            readers.discard(queue)

    async def _follow(self, room: str, readers: "set[asyncio.Queue[bytes]]") -> None:
        last = b"$"
        while True:
            for _, entries in await self._redis.xread({room: last}, block=1_000, count=1_000) or []:
                events = b""
                for last, fields in entries:
                    document = {"position": last.decode(), "data": fields[b"d"].decode()}
                    events += b"id: " + last + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
                for reader in readers:
                    reader.put_nowait(events)


def application(redis_port: int) -> Litestar:
    """The routes that are measured."""
    rooms = Rooms(Redis(port=redis_port))

    @post("/api/v1/rooms/{room:str}/messages", status_code=200)
    async def publish(request: AnyRequest, room: FromPath[str]) -> Response[bytes]:
        body = await request.body()
        if request.headers.get("content-type") == "application/x-ndjson":
            lines = [msgspec.json.decode(line, type=str) for line in body.split(b"\n") if line]
            positions = [{"position": each} for each in await rooms.batch(room, lines)]
            return Response(msgspec.json.encode({"messages": positions}))
        return Response(msgspec.json.encode({"position": await rooms.one(room, body)}))

    @get("/api/v1/rooms/{room:str}/messages")
    async def messages(room: FromPath[str]) -> Stream:
        return Stream(rooms.read(room), media_type="text/event-stream")

    return Litestar([publish, messages], openapi_config=None, logging_config=None)


async def run(redis_port: int, port: int) -> None:
    """Serve until SIGTERM."""
    options: dict[str, Any] = {"loop": "none", "http": "httptools", "ws": "none", "lifespan": "off"}
    config = uvicorn.Config(application(redis_port), port=port, log_level="error", access_log=False, **options)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))

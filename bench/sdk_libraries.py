"""Muster, redis-py with hiredis and nats-py as the libraries of a bench, each as its documents advise where speed counts.

Owns the calls into each library. It knows no load and no figure.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from redis.asyncio import Redis
from redis.utils import HIREDIS_AVAILABLE

import muster
from bench.sdk_programs import Publisher, Take

if not HIREDIS_AVAILABLE:
    raise ModuleNotFoundError("redis-py without hiredis", name="hiredis")

Messages = Callable[[], bytes | None]


@dataclass(frozen=True)
class OfMuster:
    """`muster.connect`, from the folder of an instance."""

    folder: Path

    async def read(self, stack: AsyncExitStack, room: str, takes: Sequence[Take]) -> None:
        for take in takes:
            client = await stack.enter_async_context(muster.connect(self.folder, proxies=[]))
            _spawn(stack, _read_room(await client.join(room), take))

    async def publisher(self, stack: AsyncExitStack, room: str) -> Publisher:
        return _ToMuster(await stack.enter_async_context(muster.connect(self.folder, gateways=[])), room)


async def _read_room(room: muster.Room, take: Take) -> None:
    async for item in room:
        take(item.data if isinstance(item, muster.Message) else b"")


@dataclass(frozen=True)
class _ToMuster:
    client: muster.Client
    room: str

    async def publish(self, data: bytes) -> None:
        while not self.client.publish_nowait(self.room, data):
            await self.client.writable(self.room)

    async def publish_all(self, messages: Messages, in_flight: int) -> None:
        async def each() -> None:
            while (data := messages()) is not None:
                await self.client.publish(self.room, data)

        await asyncio.gather(*(each() for _ in range(in_flight)))


@dataclass(frozen=True)
class OfRedis:
    """Pub/sub. Publishes that are under way together are a pipeline."""

    port: int

    async def read(self, stack: AsyncExitStack, room: str, takes: Sequence[Take]) -> None:
        for take in takes:
            client = Redis(port=self.port, socket_timeout=None)
            stack.push_async_callback(client.aclose)
            reader = client.pubsub()
            stack.push_async_callback(reader.aclose)
            await reader.subscribe(room)
            await reader.get_message(timeout=None)
            _spawn(stack, _read_channel(reader, take))

    async def publisher(self, stack: AsyncExitStack, room: str) -> Publisher:
        client = Redis(port=self.port)
        stack.push_async_callback(client.aclose)
        return _ToRedis(client, room)


async def _read_channel(reader: Any, take: Take) -> None:
    async for message in reader.listen():
        take(message["data"])


@dataclass(frozen=True)
class _ToRedis:
    client: Any
    room: str

    async def publish(self, data: bytes) -> None:
        await self.client.publish(self.room, data)

    async def publish_all(self, messages: Messages, in_flight: int) -> None:
        data = messages()
        while data is not None:
            async with self.client.pipeline(transaction=False) as pipeline:
                while data is not None and len(pipeline) < in_flight:
                    pipeline.publish(self.room, data)
                    data = messages()
                await pipeline.execute()


@dataclass(frozen=True)
class OfNats:
    """Subjects. A callback takes messages; the iterator of a subscription makes a task for each. Publishes have no answer:
    a flush waits until the server has those before it."""

    port: int

    async def read(self, stack: AsyncExitStack, room: str, takes: Sequence[Take]) -> None:
        for take in takes:
            client = await self._connected(stack)
            await client.subscribe(room, cb=_callback(take))
            await client.flush()

    async def publisher(self, stack: AsyncExitStack, room: str) -> Publisher:
        return _ToNats(await self._connected(stack), room)

    async def _connected(self, stack: AsyncExitStack) -> Any:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        stack.push_async_callback(client.close)
        return client


def _callback(take: Take) -> Any:
    async def came(message: Any) -> None:
        take(message.data)

    return came


@dataclass(frozen=True)
class _ToNats:
    client: Any
    room: str

    async def publish(self, data: bytes) -> None:
        await self.client.publish(self.room, data)

    async def publish_all(self, messages: Messages, in_flight: int) -> None:
        left = True
        while left:
            for _ in range(in_flight):
                data = messages()
                left = data is not None
                if data is None:
                    break
                await self.client.publish(self.room, data)
            await self.client.flush()


def _spawn(stack: AsyncExitStack, work: Any) -> None:
    """Run it until the stack is left."""
    task = asyncio.ensure_future(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)

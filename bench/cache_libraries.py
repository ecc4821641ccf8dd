"""Muster's cache, cashews, aiocache and dogpile.cache in a bench, each as its documents advise for two levels or a stampede.

Owns the calls into each library. It knows no load and no figure.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import aiocache as untyped
from cashews import Cache as Cashews
from dogpile.cache import make_region

from muster.cache import Cache

aiocache: Final[Any] = untyped
FRESH_S: Final = 600
VALUE: Final = {"id": 0, "title": "a title", "text": "x" * 200}
Load = Callable[[int], Awaitable[Any]]
Read = Callable[[int], Any]
"""The decorated function: gives a value, or what is awaited for it."""


async def muster(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """Two levels."""
    cache = await stack.enter_async_context(Cache(f"redis://127.0.0.1:{port}", name=name))

    @cache.cached("share:{id}", fresh_s=FRESH_S, early=0)
    async def read(id: int) -> Any:
        return await load(id)

    return read


async def cashews_hit(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """Two levels: `client_side`. RESP2, as it hears of nothing over RESP3."""
    cache = Cashews(name)
    cache.setup(f"redis://127.0.0.1:{port}?protocol=2", client_side=True)
    await cache.init()
    stack.push_async_callback(cache.close)

    @cache(ttl=FRESH_S, key="share:{id}")
    async def read(id: int) -> Any:
        return await load(id)

    return read


async def cashews(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """The same with a lock, which a hit asks for, too."""
    cache = Cashews(name)
    cache.setup(f"redis://127.0.0.1:{port}?protocol=2", client_side=True)
    await cache.init()
    stack.push_async_callback(cache.close)

    @cache(ttl=FRESH_S, key="share:{id}", lock=True)
    async def read(id: int) -> Any:
        return await load(id)

    return read


async def aiocache_hit(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """One level, in memory."""

    cached = aiocache.cached(ttl=FRESH_S, key_builder=lambda function, id: f"share:{id}")
    read: Read = cached(_plain(load))
    return read


async def aiocache_stampede(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """One level, in the Redis, with a lock."""

    cached = aiocache.cached_stampede(
        ttl=FRESH_S,
        lease=10,
        key_builder=lambda function, id: f"share:{id}",
        cache=aiocache.RedisCache,
        endpoint="127.0.0.1",
        port=port,
        namespace=name,
        serializer=aiocache.serializers.JsonSerializer(),
    )
    read: Any = cached(_plain(load))

    async def close() -> None:
        await read.cache.client.aclose()

    stack.push_async_callback(close)
    made: Read = read
    return made


async def dogpile(stack: AsyncExitStack, port: int, load: Load, name: str = "bench") -> Read:
    """One level, in memory, for plain functions."""
    region = make_region().configure("dogpile.cache.memory", expiration_time=FRESH_S)

    @region.cache_on_arguments()
    def read(id: int) -> Any:
        return VALUE | {"id": id}

    return read


def _plain(load: Load) -> Load:
    async def read(id: int) -> Any:
        return await load(id)

    return read

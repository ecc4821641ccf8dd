"""One Redis for all tests of the cache; each test has caches of its own name."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import pytest

from muster.cache import Cache
from tests.cache.way import Way
from tests.redis_server import RedisServer

_NAMES: Final = itertools.count()


class Makes(Protocol):
    """Makes a cache of the test, as another process has one, and waits until it hears of drops."""

    async def __call__(self, url: str = ..., **options: Any) -> Cache: ...


@pytest.fixture(scope="session")
def redis_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("cache") / "redis", appendonly=False).start()
    yield server
    server.end()


@pytest.fixture
async def caches() -> AsyncIterator[Makes]:
    """They share a name."""
    name = f"test-{next(_NAMES)}"
    async with AsyncExitStack() as stack:

        async def make(url: str = "", **options: Any) -> Cache:
            cache = Cache(url, **({"name": name} | options))
            stack.push_async_callback(cache.close)
            assert await cache.open(30)
            return cache

        yield make


@pytest.fixture
async def way(redis_of_the_run: RedisServer) -> AsyncIterator[Way]:
    """To the Redis."""
    way = await Way(redis_of_the_run.port).opened()
    yield way
    await way.close()


@pytest.fixture(params=["alone", "redis"])
async def cache(request: pytest.FixtureRequest, caches: Makes) -> Cache:
    """A cache of each kind."""
    return await caches("" if request.param == "alone" else request.getfixturevalue("redis_of_the_run").url)


class Database:
    """Versions of keys, how often each was loaded, and a hand on when a load is answered."""

    def __init__(self) -> None:
        self.versions: dict[int, int | None] = {}
        self.loads = 0
        self.now = self.most = 0

    def begin(self) -> None:
        self.loads += 1
        self.now += 1
        self.most = max(self.most, self.now)

    def end(self) -> None:
        self.now -= 1


@pytest.fixture
def database() -> Database:
    return Database()

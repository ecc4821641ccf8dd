"""A writer's keeper wakes by its engine's events: it looks for no work while there is none."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import structlog

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.presence import keeper
from muster_server.systems.presence.keeper import Keeper
from muster_server.systems.presence.place import Place
from muster_server.systems.presence.relay import Relay
from muster_server.systems.presence.store import Claimed, Packed, Shard, Waiting
from tests.waiting import PATIENT_S, until

IDLE_S = 0.3


class Engine:
    """Has work when a test says so, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.users, self.missing = 0, False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def now(self) -> int:
        return time.monotonic_ns() // 1_000

    def standing(self) -> tuple[str, None]:
        return "in_sync", None

    def sources(self) -> list[Any]:
        return []

    def online_len(self) -> int:
        return 0

    def fulls(self) -> list[Any]:
        return []

    def due(self, now: int) -> list[Any]:
        self.asked["due"] += 1
        return []

    def is_whole(self) -> bool:
        return not self.missing

    def batch(self, users_max: int, buckets: int) -> tuple[int, int, bytes, bytes, bytes, bytes] | None:
        self.asked["batch"] += 1
        return (self.users, 0, b"", b"", b"", b"") if self.users else None

    def written(self) -> None:
        self.users = 0


class Store:
    """Takes batches, or fails."""

    def __init__(self) -> None:
        self.written: list[float] = []
        self.fails = False

    async def claim(self, epoch: int) -> Claimed:
        return Claimed(0, "", 0)

    async def vector(self) -> list[tuple[int, int, int]]:
        return []

    async def pages(self) -> AsyncIterator[bytes]:
        for page in list[bytes]():
            yield page

    async def write(self, epoch: int, count: int, batch: Packed) -> str:
        if self.fails:
            raise StoreError("away")
        self.written.append(time.monotonic())
        return ""

    async def keep_alive(self, epoch: int, count: int, stats: bytes, *, whole_at: float | None) -> Waiting:
        return Waiting(0, 0, 0)

    async def close(self) -> None:
        pass


class Feed:
    """A relay without changes."""

    waiting_max = 1

    async def recall(self, logged: int, published: str) -> list[Any]:
        return []

    async def run(self, epoch: int, published: str) -> None:
        await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Any:
        return 0

    async def close(self) -> None:
        pass


class Kept:
    """A keeper and what it works with."""

    def __init__(self) -> None:
        self.engine, self.store = Engine(), Store()
        self.keeper = Keeper(
            cast(Any, self.engine), cast(Shard, self.store), cast(Relay, Feed()), Place(1, 1, 0), 1, 1,
            structlog.get_logger(),
        )  # fmt: skip

    async def idle(self) -> Counter[str]:
        """What the keeper asks its engine within a time without work."""
        before = self.engine.asked.copy()
        await asyncio.sleep(IDLE_S)
        return self.engine.asked - before


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr(keeper, "ALIVE_S", PATIENT_S)
    made = Kept()
    async with made.keeper:
        await until(lambda: made.engine.asked["batch"] and made.engine.asked["due"])
        await asyncio.sleep(2 * keeper.TICK_S)
        yield made


async def test_without_work_the_engine_is_not_asked(kept: Kept) -> None:
    assert not await kept.idle()


async def test_changes_are_written_when_the_engine_tells_of_them_and_no_faster_than_the_interval(kept: Kept) -> None:
    for _ in range(3):
        kept.engine.users = 1
        kept.keeper.handlers["unwritten"]()
        await until(lambda: not kept.engine.users)
    gaps = [later - earlier for earlier, later in zip(kept.store.written, kept.store.written[1:], strict=False)]
    assert len(kept.store.written) == 3
    assert min(gaps) >= keeper.TICK_S * 0.9
    assert not await kept.idle()


async def test_a_store_that_fails_is_tried_again_without_another_event(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "AGAIN_S", 0.01)
    kept.store.fails, kept.engine.users = True, 1
    kept.keeper.handlers["unwritten"]()
    await until(lambda: kept.engine.asked["batch"] > 4)
    kept.store.fails = False
    await until(lambda: not kept.engine.users)


async def test_while_versions_are_missing_the_runner_goes_on(kept: Kept) -> None:
    kept.engine.missing = True
    kept.keeper.handlers["missing"]()
    before = kept.engine.asked["due"]
    await until(lambda: kept.engine.asked["due"] > before + 3)
    kept.engine.missing = False
    await asyncio.sleep(2 * keeper.TICK_S)
    assert not await kept.idle()

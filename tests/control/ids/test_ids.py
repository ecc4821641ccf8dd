"""Ids of several processes: none twice, though clocks step, registries fail and processes stand still."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import structlog

from muster_server.control.ids import DenseIds, RegistrySegments, Snowflakes, parts
from muster_server.control.ids.snowflake import EPOCH_MS, SEQUENCES, WORKERS
from muster_server.control.registry.server import RegistryServer
from muster_server.control.registry.tree import ANY, Entry, Tree, Unavailable
from muster_server.plane.database.counters import SqlSegments
from muster_server.plane.database.url import location
from tests.control.registry.services import SESSION_S, Embedded, Service, connected
from tests.databases import Database
from tests.fakes.memory import Memory, MemoryTree
from tests.waiting import PATIENT_S

NOW = EPOCH_MS + 1_000_000


@pytest.fixture
async def memory() -> AsyncIterator[Callable[[], Awaitable[Tree]]]:
    kept = Memory()
    kept.start()
    trees: list[MemoryTree] = []

    async def made() -> Tree:
        trees.append(kept.tree())
        await connected(trees[-1])
        return trees[-1]

    yield made
    for tree in trees:
        await tree.close()


Make = Callable[[], Awaitable[Tree]]


async def given(tree: Tree, name: str = "users") -> list[int]:
    return await DenseIds(RegistrySegments(tree), name, segment=4).take(6)


async def test_dense_ids_have_no_gap_but_at_the_end_of_a_process(memory: Make) -> None:
    assert [await given(await memory()), await given(await memory())] == [[*range(6)], [*range(8, 14)]]
    assert await given(await memory(), "items") == [*range(6)]


async def race(memory: Make) -> list[int]:
    takers = [DenseIds(RegistrySegments(await memory()), "users", segment=2) for _ in range(8)]
    lists = await asyncio.gather(*(taker.take(3) for taker in takers for _ in range(4)))
    return [one for ids in lists for one in ids]


async def test_processes_that_race_for_a_segment_get_different_ones(memory: Make) -> None:
    ids = await race(memory)
    assert len(set(ids)) == len(ids)


async def test_planted_id_that_is_given_twice_is_found(memory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MemoryTree.set

    async def blindly(self: MemoryTree, path: str, data: bytes, version: int = ANY) -> int:
        return await whole(self, path, data, ANY)

    monkeypatch.setattr(MemoryTree, "set", blindly)
    ids = await race(memory)
    assert len(set(ids)) < len(ids)


async def test_dense_ids_from_a_database_are_given_once(database: Database) -> None:
    stores = [SqlSegments(location(database.url)) for _ in range(3)]
    takers = [DenseIds(store, "users", segment=50) for store in stores]
    lists = await asyncio.gather(*(taker.take(30) for taker in takers for _ in range(4)))
    ids = sorted(one for of in lists for one in of)
    assert len(set(ids)) == len(ids)
    assert ids[0] == 0
    assert ids[-1] < 50 * (len(ids) // 50 + len(takers)), "no gap but at the ends"
    assert await stores[0].take("items", 7) == range(7)
    with pytest.raises(OverflowError, match="counter items"):
        await stores[0].take("items", (1 << 63) - 1)
    for store in stores:
        await store.close()


class Clock:
    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


async def test_snowflake_tells_its_time_and_its_worker(memory: Make) -> None:
    giver = Snowflakes(await memory(), now_ms=Clock())
    ids = await giver.take(SEQUENCES + 1)
    assert [parts(ids[at]) for at in (0, 1, -1)] == [
        (NOW, giver.worker, 0),
        (NOW, giver.worker, 1),
        (NOW + 1, giver.worker, 0),
    ]
    assert 0 <= giver.worker < WORKERS


async def test_snowflakes_rise_through_steps_of_the_clock(memory: Make) -> None:
    clock = Clock()
    giver = Snowflakes(await memory(), now_ms=clock)
    ids: list[int] = []
    for step in (0, 5, -3_600_000, 0, 3_600_000, -7_200_000, 1):
        clock.now += step
        ids += await giver.take(3)
    assert ids == sorted(set(ids))


async def test_process_that_stood_still_while_its_worker_was_taken_gives_no_id_of_its_next_owner(memory: Make) -> None:
    clock, later = Clock(), Clock(NOW + 60_000)
    dice = random.Random(1)
    dice.choice = lambda workers: workers[0]  # type: ignore[method-assign, assignment]
    old = Snowflakes(await memory(), now_ms=clock, dice=dice)
    ids = await old.take(1)
    new = Snowflakes(await memory(), now_ms=later, dice=dice)
    ids += await new.take(5)
    assert new.worker == old.worker
    ids += await old.take(3)  # within its own bound
    clock.now = later.now
    ids += await old.take(3)
    assert old.worker != new.worker
    assert len(set(ids)) == len(ids)


async def test_process_without_a_registry_gives_ids_to_the_end_of_its_lease(tmp_path: Path) -> None:
    service: Service = Embedded(tmp_path)
    await service.start()
    tree = service.tree(SESSION_S)
    await connected(tree)
    clock = Clock()
    giver = Snowflakes(tree, now_ms=clock)
    await giver.take(1)
    await service.stop()
    clock.now += 4_999
    await giver.take(1)
    clock.now += 1
    with pytest.raises(Unavailable):
        await giver.take(1)
    await service.start()
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                await giver.take(1)
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    await tree.close()
    await service.stop()


async def test_all_workers_held_costs_milliseconds_and_no_id_twice(memory: Make) -> None:
    tree = await memory()
    for worker in range(WORKERS):
        await tree.create(f"/ids/workers/{worker}", b"%d" % (NOW - EPOCH_MS + 9_000 + worker))
    giver = Snowflakes(tree, now_ms=Clock())
    (one,) = await giver.take(1)
    assert parts(one) == (NOW + 9_000, 0, 0)
    assert await tree.get("/ids/workers/0") == Entry(b"%d" % (NOW - EPOCH_MS + 14_000), 1)


async def counted(folder: Path, kind: str, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """The ids of two processes."""
    registry = folder / "registry"
    registry.mkdir()
    async with RegistryServer(registry, structlog.get_logger()):
        words = ["-m", "tests.control.ids.giver", str(registry), kind, str(count // 2)]
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, *words, str(folder / str(number)))
            for number in range(2)
        ]
        assert [await process.wait() for process in processes] == [0, 0]
    lists = [np.fromfile(folder / str(number), dtype=np.uint64) for number in range(2)]
    for ids in lists:
        assert np.all(np.diff(ids.astype(np.int64)) > 0), "ids of one process rise"
    return np.concatenate(lists)


@pytest.mark.parametrize("kind", ["snowflake", "dense"])
async def test_no_id_of_two_processes_is_there_twice(tmp_path: Path, kind: str) -> None:
    ids = await counted(tmp_path, kind, 200_000)
    assert (len(ids), len(np.unique(ids))) == (200_000, 200_000)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["snowflake", "dense"])
async def test_no_id_of_ten_million_is_there_twice(tmp_path: Path, kind: str) -> None:
    ids = await counted(tmp_path, kind, 10_000_000)
    assert (len(ids), len(np.unique(ids))) == (10_000_000, 10_000_000)

"""The rooms of a router's keeper: those of its partition, also of a partition that a growth is preparing."""

import sqlite3
from pathlib import Path

import pytest
import structlog

from muster_server.systems.rooms.database import schema
from muster_server.systems.rooms.database.keeper import Late, keeper, opened
from muster_server.systems.rooms.database.records import Membership, Partition
from muster_server.systems.rooms.router import DatabaseSettings
from tests.waiting import until


@pytest.mark.parametrize(
    ("routers", "index", "loads"), [(1, 0, Partition(1, 0)), (4, 3, Partition(4, 3)), (4, 5, Partition(8, 5))]
)
def test_a_partition_beyond_the_number_is_one_of_twice_as_many(routers: int, index: int, loads: Partition) -> None:
    kept = DatabaseSettings(url="sqlite:////nowhere/kept.db", password_file="", cluster="muster", partition=index)
    made = keeper(kept, opened(kept), object(), structlog.get_logger(), lambda: routers)
    assert made.partition == loads


class Lost:
    """A router's engine that has lost a gateway, and one of its lives."""

    def __init__(self) -> None:
        self.ended = [(3, 5)]

    def keep_changes(self, max: int) -> None:
        """None but that."""

    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int, int, bool]]]:
        ended, self.ended = self.ended, []
        return ended, []

    def changes_kept(self) -> tuple[int, int]:
        return 0, 0

    def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
        return 0


async def test_a_life_ends_for_the_rooms_that_the_router_has_now(tmp_path: Path) -> None:
    """Routers of other partitions may have the gateway still; so may those that got half of this one's rooms in a
    growth."""
    kept = DatabaseSettings(url=f"sqlite:///{tmp_path}/kept.db", password_file="", cluster="muster", partition=0)
    store, routers, engine = opened(kept), 1, Lost()
    rooms = [Membership(3, 5, room, 1, 1, True) for room in range(4)]
    await store.write(rooms)
    routers = 2
    async with keeper(kept, store, engine, structlog.get_logger(), lambda: routers) as made:
        await until(lambda: made.status()["written"] == 1)
    left = [each async for page in store.load(Partition()) for each in page]
    await store.close()
    assert sorted(each.room for each in left) == [1, 3]


Change = tuple[int, int, int, int, int, bool]


class Says(Lost):
    """A router's engine in which each look finds the next result, or fails."""

    def __init__(self, *looks: list[Change] | Exception) -> None:
        super().__init__()
        self.ended, self.looks, self.hinted = [], list(looks), 0

    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[Change]]:
        look = self.looks.pop(0) if self.looks else []
        if isinstance(look, Exception):
            raise look
        return [], look

    def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
        self.hinted += len(rooms)
        return len(rooms)


def stored(tmp_path: Path) -> tuple[Late, DatabaseSettings]:
    """A file, and a router's settings for it."""
    kept = DatabaseSettings(url=f"sqlite:///{tmp_path}/kept.db", password_file="", cluster="muster", partition=0)
    return opened(kept), kept


async def test_a_change_that_is_none_is_skipped_and_counted_and_the_others_are_written(tmp_path: Path) -> None:
    store, kept = stored(tmp_path)
    engine = Says([(3, 5, 1, 1, 1, True), (3, 5, 2, 1, 1 << 63, True), (3, 5, 3, 1, 2, True)])
    async with keeper(kept, store, engine, structlog.get_logger(), lambda: 1) as made:
        await until(lambda: made.status()["written"] == 2)
        assert (made.status()["malformed"], made.status()["connected"]) == (1, True)
        assert ("database_malformed", 1) in [(name, value) for name, _, value in made.counters()]


async def test_a_keeper_that_fails_says_so_and_goes_on(tmp_path: Path) -> None:
    store, kept = stored(tmp_path)
    fails = [RuntimeError("a defect") for _ in range(3)]
    engine = Says([(3, 5, 1, 1, 1, True)], *fails, [(3, 5, 2, 1, 2, True)])
    seen: list[tuple[bool, str]] = []

    def is_written(rooms: int) -> bool:
        status = made.status()
        seen.append((status["connected"], status["error"]))
        return bool(status["written"] == rooms)

    async with keeper(kept, store, engine, structlog.get_logger(), lambda: 1) as made:
        await until(lambda: is_written(2))
    assert (False, "RuntimeError: a defect") in seen
    assert seen[-1] == (True, "")


async def test_rows_that_are_none_are_skipped_and_counted_and_the_others_are_hints(tmp_path: Path) -> None:
    store, kept = stored(tmp_path)
    await store.write([Membership(3, 5, room, 1, 1, True) for room in range(3)])
    with sqlite3.connect(tmp_path / "kept.db") as file:
        file.execute("UPDATE muster_memberships SET version = -1 WHERE room_reversed = ?", (schema.room_reversed(1),))
    engine = Says()
    async with keeper(kept, store, engine, structlog.get_logger(), lambda: 1) as made:
        await until(lambda: made.warm_start != "loading")
        assert (made.warm_start, made.status()["malformed"]) == ("warm start with 2 memberships", 1)
    assert engine.hinted == 2


async def test_a_warm_start_that_fails_is_over(tmp_path: Path) -> None:
    store, kept = stored(tmp_path)

    class Broken(Says):
        def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
            raise RuntimeError("a defect")

    await store.write([Membership(3, 5, 1, 1, 1, True)])
    async with keeper(kept, store, Broken(), structlog.get_logger(), lambda: 1) as made:
        await until(lambda: made.warm_start == "no warm start")

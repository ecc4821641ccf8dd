"""Which rooms a router's keeper has to do with: those of its partition, also of one that is there for a growth."""

from pathlib import Path

import msgspec
import pytest
import structlog

from control.database.keeper import keeper, opened
from control.database.records import Membership, Partition
from plane.spec import Kept
from tests.control.players import spec
from tests.waiting import until


@pytest.mark.parametrize(
    ("routers", "index", "loads"), [(1, 0, Partition(1, 0)), (4, 3, Partition(4, 3)), (4, 5, Partition(8, 5))]
)
def test_a_partition_beyond_the_number_is_one_of_twice_as_many(routers: int, index: int, loads: Partition) -> None:
    kept = Kept(url="sqlite:////nowhere/kept.db", password_file="", cluster="muster", partition=index)
    told = msgspec.structs.replace(spec(1, "router", index, (1, routers)), database=kept)
    made = keeper(told, opened(kept), object(), structlog.get_logger(), lambda: routers)
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
    """Routers of other partitions may have the gateway still; so have those that a growth gave half of this one's rooms."""
    kept = Kept(url=f"sqlite:///{tmp_path}/kept.db", password_file="", cluster="muster", partition=0)
    store, routers, engine = opened(kept), 1, Lost()
    told = msgspec.structs.replace(spec(1, "router", 0, (1, 1)), database=kept)
    rooms = [Membership(3, 5, room, 1, 1, True) for room in range(4)]
    await store.write(rooms)
    routers = 2
    async with keeper(told, store, engine, structlog.get_logger(), lambda: routers) as made:
        await until(lambda: made.status()["written"] == 1)
    left = [each async for page in store.load(Partition()) for each in page]
    await store.close()
    assert sorted(each.room for each in left) == [1, 3]

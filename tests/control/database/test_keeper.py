"""Which rooms a router's keeper loads: those of its partition, also of one that is there for a growth."""

import msgspec
import pytest
import structlog

from control.database.keeper import keeper, opened
from control.database.records import Partition
from plane.spec import Kept
from tests.control.players import spec


@pytest.mark.parametrize(
    ("routers", "index", "loads"), [(1, 0, Partition(1, 0)), (4, 3, Partition(4, 3)), (4, 5, Partition(8, 5))]
)
def test_a_partition_beyond_the_number_is_one_of_twice_as_many(routers: int, index: int, loads: Partition) -> None:
    kept = Kept(url="sqlite:////nowhere/kept.db", password_file="", cluster="muster", partition=index)
    told = msgspec.structs.replace(spec(1, "router", index, (1, routers)), database=kept)
    assert keeper(told, opened(kept), object(), structlog.get_logger())._partition == loads

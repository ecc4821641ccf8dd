"""How ids of 64 bits lie in columns of 63."""

from hypothesis import given
from hypothesis import strategies as st

from muster_server.systems.rooms.database import schema
from muster_server.systems.rooms.database.records import ROOM_MAX, Membership, Partition

IDS = st.integers(0, ROOM_MAX)


@given(room=IDS, bits=st.integers(0, 8))
def test_the_rooms_of_a_partition_and_no_others_lie_in_its_range(room: int, bits: int) -> None:
    place = schema.room_reversed(room)
    assert -(1 << 63) <= place < 1 << 63
    assert schema.room_of(place) == room
    count = 1 << bits
    for index in {0, count - 1, room % count, room % count ^ (count >> 1)}:
        first, last = schema.places(Partition(count, index))
        assert (first <= place <= last) == (room % count == index)


@given(room=IDS, check=IDS)
def test_a_row_gives_back_what_was_put(room: int, check: int) -> None:
    put = Membership(7, 3, room, check, 9, True)
    row = schema.row("muster", put, 1_000)
    names = ("room_reversed", "gateway", "epoch", "version", "name_check")
    assert schema.membership(*(row[name] for name in names)) == put

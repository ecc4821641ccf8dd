"""Rooms for probes: each running broker has one that it owns, and keeps it while it owns it."""

import pytest

from muster.inputs import check_name
from muster_server import _engines
from muster_server.control.registry.places import Count, Growth, Node, Snapshot, State, layer
from muster_server.plane.trust import PROBES
from muster_server.systems.probes.rooms import Rooms
from tests.control.nodes import growth, partitions

KEY = bytes(range(16))


def broker(number: int, partition: int = 0, state: State = "running") -> Node:
    return Node(number, "broker", "127.0.0.1", 7_000 + number, partition, state)


def snapshot(*nodes: Node, count: Count = Count(1)) -> Snapshot:  # noqa: B008 - it is frozen
    role: str = "broker"
    return Snapshot(1, nodes, {layer(role): count})


def owner(name: str, now: Snapshot) -> int | None:
    return _engines.room_owners([name], KEY, now.entries("broker"), partitions(now), growth(now))[0]


def test_each_running_broker_has_a_room_of_its_own() -> None:
    now = snapshot(*(broker(number, number % 4) for number in range(1, 65)), broker(99, 1, "draining"), count=Count(4))
    rooms = Rooms(KEY)
    assert rooms.follow(now) == set(range(1, 65))
    assert {owner(name, now): name for name in rooms.of.values()} == rooms.of
    for name in rooms.of.values():
        check_name(name)
        assert name.startswith(f"{PROBES}:")
    assert rooms.follow(now) == set(), "nothing moved"


def test_who_comes_and_goes_moves_rooms_of_its_partition_alone() -> None:
    rooms = Rooms(KEY)
    few = [broker(1), broker(2), broker(3, 1), broker(4, 1)]
    rooms.follow(snapshot(*few, count=Count(2)))
    before = rooms.of
    more = snapshot(*few, broker(5, 1), count=Count(2))
    assert rooms.follow(more) == {3, 4, 5}
    assert {number: rooms.of[number] for number in (1, 2)} == {number: before[number] for number in (1, 2)}
    assert rooms.follow(snapshot(*few[:3], count=Count(2))) == {3}
    assert rooms.of.keys() == {1, 2, 3}


def test_a_partition_that_is_only_prepared_has_no_room() -> None:
    growing = Count(1, 1, Growth(to=2, step="prepare", goal=2, coordinator="me"))
    rooms = Rooms(KEY)
    rooms.follow(snapshot(broker(1), broker(2, 1), count=growing))
    assert rooms.of.keys() == {1}
    switched = Count(1, 2, Growth(to=2, step="switched", goal=2, coordinator="me"))
    assert rooms.follow(snapshot(broker(1), broker(2, 1), count=switched)) == {1, 2}


def test_who_was_the_last_of_a_partition_keeps_its_room_until_another_one_runs() -> None:
    rooms = Rooms(KEY)
    rooms.follow(snapshot(broker(1), broker(2, 1), count=Count(2)))
    before = rooms.of
    for now in (snapshot(broker(1), broker(2, 1, "init"), count=Count(2)), snapshot(broker(1), count=Count(2))):
        assert rooms.follow(now) == set()
        assert (rooms.of, rooms.cluster(2)) == (before, "main")
    assert rooms.follow(snapshot(broker(1), broker(2, 1), count=Count(2))) == set(), "it is back"
    rooms.follow(snapshot(broker(1), count=Count(2)))
    assert rooms.follow(snapshot(broker(1), broker(3, 1), count=Count(2))) == {3}
    assert rooms.of.keys() == {1, 3}


def test_owners_are_asked_for_names_and_keys_that_are_such() -> None:
    now = snapshot(broker(1))
    with pytest.raises(ValueError, match="namespace"):
        owner("No:name", now)
    with pytest.raises(ValueError, match="16 bytes"):
        _engines.room_owners(["room"], b"short", now.entries("broker"), (1, 1))
    assert _engines.room_owners(["room"], KEY, [], (1, 1)) == [None]

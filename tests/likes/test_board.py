"""The board of the nodes of likes: leases, the end of the dead, claims that exclude each other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from muster_server.control.registry.tree import TreeError
from muster_server.plane.ownership.errors import Fenced
from muster_server.systems.likes.board import Board, Member, Mismatch, PartitionOwner, Table, later
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S, until

LEASE_S = 0.3
Join = Callable[..., Awaitable[Board]]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
async def join(memory: Memory) -> AsyncIterator[Join]:
    trees = []

    async def joined(number: int, life: int = 1, partitions: int = 4, place: str = "a") -> Board:
        tree = memory.tree()
        await tree.start()
        trees.append(tree)
        me = Member(number, "127.0.0.1", 7_000 + number, int(LEASE_S * 1000))
        empty = Table(place, [PartitionOwner()] * partitions)
        board = Board(tree, "muster", f"{number}.9.{life}", me, empty)
        await board.join()
        return board

    yield joined
    for tree in trees:
        await tree.close()


def take(name: str, partition: int) -> Callable[[list[PartitionOwner]], bool]:
    """Claim a free partition."""

    def edit(parts: list[PartitionOwner]) -> bool:
        if parts[partition].owner:
            return False
        parts[partition] = PartitionOwner(name, later(parts[partition].epoch))
        return True

    return edit


async def looks(board: Board, gone: str) -> None:
    """Look again and again until a member is gone."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            await board.look()
            if gone not in board.members:
                return
            await board.beat()
            await asyncio.sleep(LEASE_S / 10)


async def test_member_that_beats_lives_and_one_that_does_not_is_evicted_after_its_lease(join: Join) -> None:
    one, two = await join(1), await join(2)
    assert await one.change(take(one.name, 0))
    await two.look()
    assert set(two.members) == {one.name, two.name}
    assert two.owner(0) == one.name
    await looks(two, one.name)
    assert not one.lease.lasts(), "its lease ended before"
    assert two.owner(0) == "", "its partition is free"
    with pytest.raises(Fenced):
        await one.beat()
    with pytest.raises(Fenced):
        await one.change(take(one.name, 1))
    again = await join(1, life=2)
    await again.look()
    assert again.staying() == {again.name, two.name}


async def test_beat_renews_the_lease_from_before_it_was_sent(join: Join) -> None:
    one = await join(1)
    await until(lambda: not one.lease.lasts())
    await one.beat()
    assert one.lease.lasts()


async def test_two_claims_of_one_partition_exclude_each_other(join: Join) -> None:
    one, two = await join(1), await join(2)
    took = await asyncio.gather(one.change(take(one.name, 2)), two.change(take(two.name, 2)))
    assert sorted(took) == [False, True]
    await one.look()
    await two.look()
    assert one.table == two.table
    assert one.owner(2) in {one.name, two.name}


async def test_earlier_life_of_a_node_gets_nothing_more(join: Join) -> None:
    one, again, two = await join(1), await join(1, life=2), await join(2)
    await two.look()
    assert {one.name, again.name, two.name} == set(two.members)
    assert two.staying() == {again.name, two.name}
    await two.beat(leaving=True)
    await again.look()
    assert again.staying() == {again.name}


async def test_other_number_of_partitions_is_refused(join: Join) -> None:
    await join(1)
    with pytest.raises(Mismatch, match="4 partitions of likes, but"):
        await join(2, partitions=8)
    with pytest.raises(Mismatch, match="different folder"):
        await join(2, place="b")


async def test_after_a_silence_of_the_registry_members_get_their_whole_time(memory: Memory, join: Join) -> None:
    one, two = await join(1), await join(2)
    await two.look()
    memory.stop()
    with pytest.raises(TreeError):
        await two.look()
    two._looked -= 10  # as after a longer time
    memory.start()
    await until(lambda: not one.lease.lasts())
    await two.look()
    assert one.name in two.members
    await one.beat()
    await two.look()
    assert one.name in two.members


def test_epochs_rise_whatever_the_registry_has_lost() -> None:
    assert later(0) > 1_700_000_000
    assert later(1 << 40) == (1 << 40) + 1

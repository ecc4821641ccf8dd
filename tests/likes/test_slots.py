"""Slots are those of Redis Cluster, and every slot is in one partition."""

import pytest
from redis.crc import key_slot

from muster_server.systems.likes.slots import PARTITIONS_MAX, SLOTS, partition_of, slot, slots_of

KEYS = (b"foo", b"{user1000}.following", b"foo{}{bar}", b"foo{{bar}}zap", b"foo{bar", b"", b"}{", b"{a}{b}", b"share:1")


@pytest.mark.parametrize("key", KEYS)
def test_slot_of_a_key_is_that_of_a_cluster_client(key: bytes) -> None:
    assert slot(key) == key_slot(key)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 100, PARTITIONS_MAX])
def test_every_slot_is_in_one_partition(partitions: int) -> None:
    ranges = [slots_of(partition, partitions) for partition in range(partitions)]
    assert [first for first, _ in ranges] == [0, *(last + 1 for _, last in ranges[:-1])]
    assert ranges[-1][1] == SLOTS - 1
    for key in (b"share:%d" % number for number in range(500)):
        first, last = ranges[partition_of(key, partitions)]
        assert first <= slot(key) <= last

"""Redis Cluster's hash slots over the partitions of likes. Knows no socket, no registry and no owner."""

import binascii
from functools import cache
from itertools import count
from typing import Final

SLOTS: Final = 16_384
PARTITIONS_MAX: Final = 256
Node = tuple[str, str, int, list[tuple[int, int]]]
"""As clients are told: an id of 40 hexadecimal digits, host, port, and ranges of slots (first, last)."""


def slot(key: bytes) -> int:
    """The slot of a key: of its part between the first `{` and the next `}` if that is not empty."""
    tag, close, _ = key.partition(b"{")[2].partition(b"}")
    return binascii.crc_hqx(tag if close and tag else key, 0) % SLOTS


@cache
def key_within(first: int, last: int) -> bytes:
    """A key with one of these slots, to name their partition with."""
    return next(key for key in (str(number).encode() for number in count()) if first <= slot(key) <= last)


def slots_of(partition: int, partitions: int) -> tuple[int, int]:
    """The first and the last slot of a partition."""
    return partition * SLOTS // partitions, (partition + 1) * SLOTS // partitions - 1


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that has a key."""
    return ((slot(key) + 1) * partitions - 1) // SLOTS

"""The interface of a durable log: batches, the log itself, the set of logs, and the errors that only logs have.

Both versions implement it (`embedded`, `kafka`). It must know no system and no record.
A log has one owner at a time. A batch whose `append` has returned survives every crash, in order, once. A batch whose
append raised may be in the log or not, except where the error tells that it is not.
"""

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

from muster_server.plane.ownership.errors import StoreError

BATCH_BYTES_MAX: Final = 4 << 20
"""Limit of a batch in bytes, lengths included: as much as the journal takes as one group."""
_LENGTH: Final = struct.Struct("<I")


class LogError(StoreError):
    """The log could not carry out the call, for a reason that only logs have."""


class TooLarge(LogError):
    """The batch exceeds the log's limit. It is not in the log."""


class Failed(LogError):
    """The store failed. The batch may be in the log or not; open the log again, with a higher epoch, to find out."""


class Damaged(LogError):
    """Durable records are unreadable."""


class Trimmed(LogError):
    """The records were truncated. `start` is the oldest offset that is still there."""

    def __init__(self, start: int) -> None:
        super().__init__(f"records below offset {start} were truncated")
        self.start = start


class Beyond(LogError):
    """The offset lies beyond the log's `end`."""

    def __init__(self, end: int) -> None:
        super().__init__(f"offset is beyond the end of the log at {end}")
        self.end = end


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that become durable together."""

    payload: bytes
    """All records, each after its length (4 bytes, little-endian)."""
    count: int

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Self:
        """Pack records."""
        return cls(b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record)), len(records))

    def records(self) -> Iterator[bytes]:
        """Unpack the records."""
        at = 0
        while at < len(self.payload):
            begin = at + _LENGTH.size
            at = begin + int(_LENGTH.unpack_from(self.payload, at)[0])
            yield self.payload[begin:at]

    def without(self, count: int) -> "Batch":
        """The batch without its first `count` records."""
        at = 0
        for _ in range(count):
            at += _LENGTH.size + int(_LENGTH.unpack_from(self.payload, at)[0])
        return Batch(self.payload[at:], self.count - count)


class Log(Protocol):
    """One log, open for its owner. All calls from one loop."""

    @property
    def epoch(self) -> int:
        """The number of this owner, greater than that of every owner before."""

    @property
    def start(self) -> int:
        """The offset of the oldest record that is still there."""

    @property
    def end(self) -> int:
        """The offset of the next record: all records below are durable."""

    async def append(self, batch: Batch) -> range:
        """Make a batch durable. Returns its records' offsets.

        Batches are written in the order of the calls. Raises `Full`, `TooLarge`, `Fenced` or `Failed`; after the last
        two the log accepts nothing more.
        """

    def read(self, offset: int) -> AsyncIterator[tuple[int, Batch]]:
        """The records from `offset` to the current end: batches, each with the offset of its first record.

        Raises `Trimmed`, `Beyond`, `Damaged` or `Failed`.
        """

    async def truncate(self, below: int) -> None:
        """Drop records below an offset. The log may keep some of them."""

    def lag(self, offset: int) -> int:
        """The number of records that a reader at `offset` has not read."""

    async def close(self) -> None:
        """Close the log; waits for the append in progress. No further call is allowed."""


class Logs(Protocol):
    """The logs of one store."""

    async def open(self, name: str, partition: int, epoch: int | None = None) -> Log:
        """Open a partition of a named log, or create it, and fence its earlier owners.

        `epoch` comes from a registry, which gives each owner a higher one; None: one above the last. Raises `Fenced` if
        a later owner exists, and `Failed` or `Damaged`.
        """

    async def close(self) -> None:
        """Close what its logs share. Close the logs first."""

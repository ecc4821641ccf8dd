"""The latest message of each key, in SQL: changed with the write of its room, read in the order in which they came.

Works within transactions of its caller.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import and_, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.systems.rooms.archive.blocks import message
from muster_server.systems.rooms.archive.database.schema import latest, number_of
from muster_server.systems.rooms.archive.keyed import Keyed
from muster_server.systems.rooms.archive.records import Write
from muster_server.systems.rooms.archive.shapes import PAGE_BYTES_MAX, Latest, Place, ReadLatest

AT_ONCE: Final = 500
"""Limit of keys that one statement names."""


def key_of(key: str) -> int:
    """The number of a key: 63 bits."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"muster key").digest()) >> 1


class LatestRows:
    """The rows of one instance. `keys_max`: limit of keys of one room; new ones beyond it are left out."""

    def __init__(self, instance: str, keys_max: int) -> None:
        self._instance, self._keys_max = instance, keys_max

    async def write(self, connection: AsyncConnection, write: Write) -> int:
        """Replace the keys of a write, and return how many new ones were left out."""
        changes = {key_of(each.key): each for each in write.latest}
        if not changes:
            return 0
        numbers = sorted(changes)
        room = number_of(write.room)
        known: set[int] = set()
        for begin in range(0, len(numbers), AT_ONCE):
            here = and_(self._of(room), latest.c.key.in_(numbers[begin : begin + AT_ONCE]))
            known |= set((await connection.execute(select(latest.c.key).where(here))).scalars())
            await connection.execute(delete(latest).where(here))
        rows = [self._row(room, key, each) for key, each in changes.items() if each.data is not None]
        new = [row for row in rows if row["key"] not in known]
        left_out: set[int] = set()
        if new:
            count = await connection.scalar(select(func.count()).select_from(latest).where(self._of(room)))
            free = max(0, self._keys_max - int(count or 0) - (len(rows) - len(new)))
            left_out = {row["key"] for row in new[free:]}
        if kept := [row for row in rows if row["key"] not in left_out]:
            await connection.execute(insert(latest), kept)
        return len(left_out)

    async def read(self, connection: AsyncConnection, row: Any, asked: ReadLatest) -> Latest:
        """A page. `row`: that of the room. Raises `ValueError` for damaged data."""
        upto = int(row["last_seq"]) if asked.upto is None else asked.upto
        behind = and_(self._of(row["room"]), latest.c.seq > asked.after, latest.c.seq <= upto)
        heads = select(latest.c.seq, latest.c.bytes).where(behind).order_by(latest.c.seq).limit(asked.limit + 1)
        size, last, more = 0, asked.after, False
        for at, (seq, length) in enumerate((await connection.execute(heads)).all()):
            if at == asked.limit or (at and size + length > PAGE_BYTES_MAX):
                more = True
                break
            size, last = size + length, int(seq)
        whole = and_(self._of(row["room"]), latest.c.seq > asked.after, latest.c.seq <= last)
        found = (await connection.execute(select(latest).where(whole).order_by(latest.c.seq))).mappings()
        messages = [
            message(
                bytes(each["data"]),
                Place((each["node"], each["epoch"], each["generation"]), each["last_offset"]),
                each["at_ms"],
            )
            for each in found
        ]
        asked_of = select(func.count(), func.min(latest.c.seq)).where(self._of(row["room"]))
        count, oldest = (await connection.execute(asked_of)).one()
        outdated = oldest is not None and row["gap_seq"] > oldest
        return Latest(
            kept=True,
            messages=messages,
            upto=upto,
            next=last if more else None,
            positions=bytes(row["positions"]),
            whole=int(count) < self._keys_max and not outdated,
        )

    async def trim(self, connection: AsyncConnection, before_ms: int, most: int) -> bool:
        """Drop keys whose message is older, at most `most`; returns whether there may be more."""
        old = select(latest.c.room, latest.c.key).where(latest.c.instance == self._instance, latest.c.at_ms < before_ms)
        rows: Sequence[Any] = (await connection.execute(old.order_by(latest.c.at_ms).limit(most))).all()
        for room, key in rows:
            await connection.execute(delete(latest).where(self._of(room), latest.c.key == key))
        return len(rows) == most

    def _row(self, room: int, key: int, each: Keyed) -> dict[str, Any]:
        node, epoch, generation = each.stream
        return {
            "instance": self._instance,
            "room": room,
            "key": key,
            "seq": each.seq,
            "node": node,
            "epoch": epoch,
            "generation": generation,
            "last_offset": each.offset,
            "at_ms": each.at_ms,
            "bytes": each.bytes,
            "data": each.data,
        }

    def _of(self, room: int) -> Any:
        return and_(latest.c.instance == self._instance, latest.c.room == room)

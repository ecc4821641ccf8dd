"""The store of the archive in SQL: a `systems.rooms.archive.records.Store`. This file has what changes rows; `reading.py`
the rest.

A write locks the rows of its rooms first, and writes nothing to a room whose last number is another than the writer
knows: so an item is written once, also while a former node still runs or after an answer that was lost.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from sqlalchemy import RowMapping, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database.connections import Connections
from muster_server.plane.database.errors import BadValue
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import Location
from muster_server.systems.rooms.archive.blocks import Block
from muster_server.systems.rooms.archive.database import schema
from muster_server.systems.rooms.archive.database.latest import LatestRows
from muster_server.systems.rooms.archive.database.reading import Reading
from muster_server.systems.rooms.archive.database.schema import number_of
from muster_server.systems.rooms.archive.options import KEYS_MAX
from muster_server.systems.rooms.archive.records import Limits, State, Totals, Trimmed, Write
from muster_server.systems.rooms.archive.shapes import Latest, Page, Read, ReadLatest

TRIMMED_AT_ONCE: Final = 256
"""Limit of blocks that one transaction drops for one reason."""
ROOMS_AT_ONCE: Final = 16
AT_ONCE: Final = 500
"""Limit of rooms that one statement names."""

_Row = RowMapping
A = TypeVar("A")


class SqlStore:
    """Opens connections when needed, until `close`."""

    def __init__(self, location: Location, instance: str, keys_max: int = KEYS_MAX) -> None:
        """`keys_max`: limit of keys of one room."""
        self.where = location.shown
        self.left_out = 0
        self._database = Connections(location, Schema(schema.STEPS, schema.VERSION_TABLE))
        self._instance = instance
        self._reading = Reading(instance)
        self._latest = LatestRows(instance, keys_max)

    async def close(self) -> None:
        """As `Store.close`."""
        await self._database.close()

    async def state(self, room: str) -> State:
        """As `Store.state`."""
        row = await self._read(lambda connection: self._reading.row(connection, room))
        if row is None:
            return State()
        return State(row["last_seq"], row["at_ms"], bytes(row["positions"]))

    async def read(self, asked: Read) -> Page:
        """As `Store.read`."""
        return await self._read(lambda connection: self._reading.page(connection, asked))

    async def latest(self, asked: ReadLatest) -> Latest:
        """As `Store.latest`."""

        async def read(connection: AsyncConnection) -> Latest:
            row = await self._reading.row(connection, asked.room)
            return Latest() if row is None else await self._latest.read(connection, row, asked)

        return await self._read(read)

    async def totals(self) -> Totals:
        """As `Store.totals`."""
        rooms = schema.rooms
        asked = select(func.count(), func.sum(rooms.c.messages), func.sum(rooms.c.bytes)).where(
            rooms.c.instance == self._instance
        )

        async def read(connection: AsyncConnection) -> Totals:
            count, messages, size = (await connection.execute(asked)).one()
            return Totals(int(count), int(messages or 0), int(size or 0))

        return await self._read(read)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write(self, writes: Sequence[Write]) -> set[str]:
        """As `Store.write`."""
        overtaken: set[str] = set()
        left_out = 0

        async def write(connection: AsyncConnection) -> None:
            nonlocal left_out
            overtaken.clear()
            known = await self._locked(connection, [number_of(each.room) for each in writes])
            there: list[Write] = []
            for each in writes:
                row = known.get(number_of(each.room))
                if self._fits(each, row):
                    there.append(each)
                elif not _is_written(each, row):
                    overtaken.add(each.room)
            await self._write_rooms(connection, there, known)
            if rows := [self._block(each.room, block) for each in there for block in each.blocks]:
                await connection.execute(insert(schema.blocks), rows)
            left_out = sum([await self._latest.write(connection, each) for each in there])

        await self._write(write)
        self.left_out += left_out
        return overtaken

    async def _locked(self, connection: AsyncConnection, numbers: Sequence[int]) -> dict[int, _Row]:
        """The rows of rooms, by number, locked in one order."""
        rooms = schema.rooms
        found: dict[int, _Row] = {}
        ordered = sorted(numbers)
        for begin in range(0, len(ordered), AT_ONCE):
            here = and_(rooms.c.instance == self._instance, rooms.c.room.in_(ordered[begin : begin + AT_ONCE]))
            asked = select(rooms).where(here).order_by(rooms.c.room).with_for_update()
            found |= {row["room"]: row for row in (await connection.execute(asked)).mappings()}
        return found

    def _fits(self, write: Write, row: _Row | None) -> bool:
        if row is None:
            return write.last_seq == 0
        if row["name"] != write.room:
            raise BadValue(f"{self.where}: the rooms {write.room!r} and {row['name']!r} have the same number")
        return bool(row["last_seq"] == write.last_seq)

    async def _write_rooms(
        self, connection: AsyncConnection, writes: Sequence[Write], known: Mapping[int, _Row]
    ) -> None:
        rooms = schema.rooms
        new: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for write in writes:
            number = number_of(write.room)
            row = known.get(number)
            last = write.blocks[-1]
            values = {
                "last_seq": last.end - 1,
                "at_ms": last.at_ms,
                "bytes": (0 if row is None else row["bytes"]) + sum(block.bytes for block in write.blocks),
                "messages": (0 if row is None else row["messages"]) + sum(block.messages for block in write.blocks),
                "gap_seq": max(
                    [0 if row is None else row["gap_seq"], *(block.seq for block in write.blocks if block.reason)]
                ),
                "positions": write.positions,
            }
            if row is None:
                more = {"name": write.room, "begun": write.begun}
                new.append({"instance": self._instance, "room": number, **more, **values})
            else:
                changed.append({"the_room": number, **{f"new_{name}": value for name, value in values.items()}})
        if new:
            await connection.execute(insert(rooms), new)
        if changed:
            here = and_(rooms.c.instance == self._instance, rooms.c.room == bindparam("the_room"))
            names = ("last_seq", "at_ms", "bytes", "messages", "gap_seq", "positions")
            setting = update(rooms).where(here).values({name: bindparam(f"new_{name}") for name in names})
            await connection.execute(setting, changed)

    def _block(self, room: str, block: Block) -> dict[str, Any]:
        node, epoch, generation = block.stream
        return {
            "instance": self._instance,
            "room": number_of(room),
            "seq": block.seq,
            "count": block.count,
            "node": node,
            "epoch": epoch,
            "generation": generation,
            "first_offset": block.first,
            "last_offset": block.last,
            "at_ms": block.at_ms,
            "reason": block.reason,
            "bytes": block.bytes,
            "data": block.data,
        }

    # --- trimming -----------------------------------------------------------------------------------------------------

    async def trim(self, now: int, limits: Limits) -> Trimmed:
        """As `Store.trim`."""
        dropped = 0
        more = False

        async def write(connection: AsyncConnection) -> None:
            nonlocal dropped, more
            old = await self._oldest(connection, schema.blocks.c.at_ms < now - limits.keep_ms)
            dropped, more = await self._drop(connection, old), len(old) == TRIMMED_AT_ONCE
            more |= await self._latest.trim(connection, now - limits.keep_ms, TRIMMED_AT_ONCE)
            for room, over in await self._large(connection, limits.room_bytes):
                rows = _first(await self._oldest(connection, schema.blocks.c.room == room), over)
                dropped += await self._drop(connection, rows)
                more |= len(rows) == TRIMMED_AT_ONCE
            over = await self._size(connection) - limits.total_bytes
            if over > 0:
                rows = _first(await self._oldest(connection), over)
                dropped += await self._drop(connection, rows)
                more |= len(rows) == TRIMMED_AT_ONCE

        await self._write(write)
        return Trimmed(dropped, more)

    async def _oldest(self, connection: AsyncConnection, *where: Any) -> Sequence[_Row]:
        """The oldest blocks: of each room those that come first."""
        blocks = schema.blocks
        columns = (blocks.c.room, blocks.c.seq, blocks.c.count, blocks.c.reason, blocks.c.bytes)
        here = select(*columns).where(blocks.c.instance == self._instance, *where)
        ordered = here.order_by(blocks.c.at_ms, blocks.c.room, blocks.c.seq).limit(TRIMMED_AT_ONCE)
        return (await connection.execute(ordered)).mappings().all()

    async def _large(self, connection: AsyncConnection, most: int) -> Sequence[tuple[int, int]]:
        """Rooms with more bytes, and by how many."""
        rooms = schema.rooms
        asked = select(rooms.c.room, rooms.c.bytes).where(rooms.c.instance == self._instance, rooms.c.bytes > most)
        return [(room, size - most) for room, size in await connection.execute(asked.limit(ROOMS_AT_ONCE))]

    async def _size(self, connection: AsyncConnection) -> int:
        rooms = schema.rooms
        return int(
            await connection.scalar(select(func.sum(rooms.c.bytes)).where(rooms.c.instance == self._instance)) or 0
        )

    async def _drop(self, connection: AsyncConnection, rows: Sequence[_Row]) -> int:
        """Drop blocks; returns the number of their messages."""
        if not rows:
            return 0
        blocks, rooms = schema.blocks, schema.rooms
        mine = and_(
            blocks.c.instance == self._instance,
            blocks.c.room == bindparam("the_room"),
            blocks.c.seq == bindparam("the_seq"),
        )
        keys = [{"the_room": row["room"], "the_seq": row["seq"]} for row in rows]
        await connection.execute(delete(blocks).where(mine), keys)
        total = 0
        for room, some in groupby(sorted(rows, key=itemgetter("room")), key=itemgetter("room")):
            gone = list(some)
            messages = sum(0 if row["reason"] else row["count"] for row in gone)
            total += messages
            await connection.execute(
                update(rooms)
                .where(rooms.c.instance == self._instance, rooms.c.room == room)
                .values(
                    bytes=rooms.c.bytes - sum(row["bytes"] for row in gone),
                    messages=rooms.c.messages - messages,
                    begun=False,
                )
            )
        return total

    # --- transactions -------------------------------------------------------------------------------------------------

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[A]]) -> A:
        await self._database.open()
        async with self._database.transaction() as connection:
            return await work(connection)

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[None]]) -> None:
        await self._database.open()
        await self._database.again(work, writes=True)


def _is_written(write: Write, row: _Row | None) -> bool:
    """Return whether this very write has been done: the answer to its first attempt was lost."""
    end = write.blocks[-1].end - 1
    return row is not None and row["last_seq"] == end and bytes(row["positions"]) == write.positions


def _first(rows: Sequence[_Row], size: int) -> Sequence[_Row]:
    """The first rows that have this many bytes together."""
    for at, row in enumerate(rows):
        size -= row["bytes"]
        if size <= 0:
            return rows[: at + 1]
    return rows

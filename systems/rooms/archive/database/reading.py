"""Pages of the archive: finds a place in a room and collects items from there on.

It changes nothing. A block is found by its row alone; only the blocks of a page are read.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from muster.room import known_offsets
from muster_server.systems.rooms.archive.blocks import Block
from muster_server.systems.rooms.archive.database.schema import blocks, number_of, rooms
from muster_server.systems.rooms.archive.shapes import (
    PAGE_BYTES_MAX,
    TRIMMED,
    UNWRITTEN,
    Gap,
    Item,
    Message,
    Page,
    Place,
    Read,
)

ROWS_MAX: Final = 1_024
"""Limit of blocks of one page: in a quiet room each has one message."""


class Reading:
    """Reads within a transaction of its caller. Raises `ValueError` for damaged blocks."""

    def __init__(self, instance: str) -> None:
        self._instance = instance

    async def row(self, connection: AsyncConnection, room: str) -> Any:
        """The row of a room, or None."""
        here = and_(rooms.c.instance == self._instance, rooms.c.room == number_of(room), rooms.c.name == room)
        return (await connection.execute(select(rooms).where(here))).mappings().first()

    async def page(self, connection: AsyncConnection, asked: Read) -> Page:
        """As `Store.read`."""
        row = await self.row(connection, asked.room)
        if row is None:
            return Page()
        gap: Gap | None = None
        bound: int | None = None
        if asked.at is not None:
            bound, gap = await self._behind(connection, row, asked.at, asked.back)
        elif asked.since_ms is not None:
            bound = await self._at_time(connection, row, asked.since_ms)
        found, over = await self._collected(connection, row, bound, asked)
        known = [Place(stream, offset) for stream, offset in known_offsets(bytes(row["positions"])).items()]
        return Page(True, found if gap is None else [gap, *found], over, bool(row["begun"]), known)

    async def _behind(
        self, connection: AsyncConnection, row: Any, at: Place, back: bool
    ) -> tuple[int | None, Gap | None]:
        """The number of the first item of a forward page behind a place, or the one before which a page back begins; and
        the gap between the place and the page, if there is one."""
        node, epoch, generation = at.stream
        of = and_(self._in(row), blocks.c.node == node, blocks.c.epoch == epoch, blocks.c.generation == generation)
        columns = select(blocks.c.seq, blocks.c.count, blocks.c.reason, blocks.c.first_offset, blocks.c.last_offset)
        later = columns.where(of, blocks.c.last_offset >= at.offset).order_by(blocks.c.last_offset, blocks.c.seq)
        block = (await connection.execute(later.limit(1))).mappings().first()
        if block is not None and block["first_offset"] <= at.offset:  # the place is in the archive
            inside = 0 if block["reason"] else at.offset - block["first_offset"]
            if back:
                return block["seq"] + inside, None
            return block["seq"] + inside + 1 if not block["reason"] else block["seq"] + block["count"], None
        earlier = columns.where(of, blocks.c.last_offset < at.offset).order_by(blocks.c.last_offset.desc())
        before = (await connection.execute(earlier.limit(1))).mappings().first()
        if back:
            last = 0 if before is None else before["last_offset"]
            if block is not None:  # what was before the place was dropped, or there is a hole
                return block["seq"], None
            hole = Gap(at.stream, last + 1, at.offset - 1, UNWRITTEN) if last + 1 < at.offset else None
            return None, hole
        if block is not None:  # messages behind the place were dropped
            missing = block["first_offset"] - 1
            gap = Gap(at.stream, at.offset + 1, missing, TRIMMED) if missing > at.offset else None
            return block["seq"], gap
        if before is not None:  # the archive has nothing of this stream behind the place
            return before["seq"] + before["count"], None
        return None, Gap(at.stream, at.offset + 1, None, TRIMMED)

    async def _at_time(self, connection: AsyncConnection, row: Any, at_ms: int) -> int:
        """The number of the first item from a time on. All items of a block have one time."""
        asked = (
            select(blocks.c.seq).where(self._in(row), blocks.c.at_ms >= at_ms).order_by(blocks.c.at_ms, blocks.c.seq)
        )
        found = await connection.scalar(asked.limit(1))
        return int(row["last_seq"]) + 1 if found is None else int(found)

    async def _collected(
        self, connection: AsyncConnection, row: Any, bound: int | None, asked: Read
    ) -> tuple[list[Item], bool]:
        """The items of a page in its order, and whether none follows."""
        heads = select(blocks.c.seq, blocks.c.count, blocks.c.reason, blocks.c.bytes).where(self._in(row))
        first = 0
        if bound is not None and asked.back:
            heads = heads.where(blocks.c.seq < bound)
        elif bound is not None:
            inner = select(blocks.c.seq).where(self._in(row), blocks.c.seq <= bound).order_by(blocks.c.seq.desc())
            first = int(await connection.scalar(inner.limit(1)) or 0)
            heads = heads.where(blocks.c.seq >= first)
        ordered = heads.order_by(blocks.c.seq.desc() if asked.back else blocks.c.seq).limit(ROWS_MAX + 1)
        rows = (await connection.execute(ordered)).mappings().all()
        taken: list[Any] = []
        messages = size = 0
        for head in rows[:ROWS_MAX]:
            if taken and (messages >= asked.limit or size + head["bytes"] > PAGE_BYTES_MAX):
                break
            taken.append(head)
            size += head["bytes"]
            if not head["reason"]:
                whole = head["count"]
                if bound is not None:
                    whole = min(whole, bound - head["seq"]) if asked.back else min(whole, head["seq"] + whole - bound)
                messages += whole
        more = len(taken) < len(rows)
        if not taken:
            return [], not more
        low, high = min(each["seq"] for each in taken), max(each["seq"] for each in taken)
        found: list[Item] = []
        left, cut = asked.limit, False
        for block in await self._blocks(connection, row, low, high, asked.back):
            for item in _bounded(block, bound, asked.back):
                if isinstance(item, Message):
                    if not left:
                        cut = True
                        break
                    left -= 1
                elif not left:
                    cut = True
                    break
                found.append(item)
        return found, not (more or cut)

    async def _blocks(self, connection: AsyncConnection, row: Any, low: int, high: int, back: bool) -> Sequence[Block]:
        here = select(blocks).where(self._in(row), blocks.c.seq >= low, blocks.c.seq <= high)
        ordered = here.order_by(blocks.c.seq.desc() if back else blocks.c.seq)
        return [
            Block(
                each["seq"],
                each["count"],
                (each["node"], each["epoch"], each["generation"]),
                each["first_offset"],
                each["last_offset"],
                each["at_ms"],
                each["reason"],
                bytes(each["data"]),
            )
            for each in (await connection.execute(ordered)).mappings()
        ]

    def _in(self, row: Any) -> Any:
        return and_(blocks.c.instance == self._instance, blocks.c.room == row["room"])


def _bounded(block: Block, bound: int | None, back: bool) -> list[Item]:
    """The items of a block on the asked side of a bound, in the order of the page."""
    items = block.items()
    if bound is not None:
        at = max(0, bound - block.seq)
        items = items[:at] if back else items[at:]
    return items[::-1] if back else items

"""The counters' rows. Owns the order in which numbers are taken: a row is advanced before its numbers are returned.

If a process ends in between, its numbers are lost: a gap, never a repetition. Raises `DatabaseError`: one line, without
the password.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database.connections import CALL_S, Connections
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import Location

VERSION_TABLE: Final = "muster_counters_schema"
STEPS: Final = Path(__file__).parent / "migrations"
NAME_MAX: Final = 64
NUMBER_MAX: Final = (1 << 63) - 1

counters: Final = Table(
    "muster_counters",
    MetaData(),
    Column("name", String(NAME_MAX), primary_key=True),
    Column("next_number", BigInteger, nullable=False),
    # Insert with 0: an existing row stays as it is.
    Column("made", Integer, nullable=False),
    mysql_engine="InnoDB",
    mysql_default_charset="utf8mb4",
)


class SqlSegments:
    """A `control.ids.Segments` in a database. Connections are opened when needed."""

    def __init__(self, location: Location, *, call_s: float = CALL_S) -> None:
        self._database = Connections(location, Schema(STEPS, VERSION_TABLE), call_s=call_s)
        self._make = self._database.upsert(counters, ("made",))
        self._made = set[str]()

    async def close(self) -> None:
        """As `Connections.close`."""
        await self._database.close()

    async def take(self, name: str, count: int) -> range:
        """As `Segments.take`. Raises `DatabaseError`, and `OverflowError` where no numbers are left."""
        await self._database.open()
        end = 0

        async def taken(connection: AsyncConnection) -> None:
            nonlocal end
            if name not in self._made:
                await connection.execute(self._make, [{"name": name, "next_number": 0, "made": 0}])
            mine = update(counters).where(counters.c.name == name, counters.c.next_number <= NUMBER_MAX - count)
            done = await connection.execute(mine.values(next_number=counters.c.next_number + count))
            end = 0
            if done.rowcount != 1:
                return
            end = (await connection.execute(select(counters.c.next_number).where(counters.c.name == name))).scalar_one()

        await self._database.again(taken, writes=True)
        if not end:
            raise OverflowError(f"too few numbers left in counter {name} ({count} requested)")
        self._made.add(name)
        return range(end - count, end)

"""The memberships of one cluster in one database: a partition is read page by page, changes are written in batches.

The first call opens it, and a call after an error opens it again, so the database may come late. Every call ends within
`CALL_S`. Raises `DatabaseError`: one line, without the password.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from control.rooms.database import migrate, schema
from control.rooms.database.dialects import DIALECTS
from control.rooms.database.errors import Busy, DatabaseError, translated
from control.rooms.database.records import Change, Ended, Membership, Partition, newest
from control.rooms.database.schema import memberships
from control.rooms.database.url import Location

CALL_S: Final = 15.0
PAGE: Final = 2_000
DELETED_AT_ONCE: Final = 500
LEFT_S: Final = 600
"""Time for which a row marks a room as left. An older report that comes even later would count again."""
BUSY_MAX: Final = 8
BUSY_S: Final = 0.05
DISPOSE_S: Final = 0.5

_READ: Final = tuple(memberships.c[name] for name in ("room_reversed", "gateway", "epoch", "version", "name_check"))


class Store:
    """Connections are opened when needed; `async with` closes them."""

    def __init__(
        self,
        location: Location,
        cluster: str,
        *,
        steps: Path = migrate.STEPS,
        now: Callable[[], float] = time.time,
        call_s: float = CALL_S,
    ) -> None:
        self.where = str(location)
        self._location, self._cluster, self._steps, self._now, self._call_s = location, cluster, steps, now, call_s
        self._dialect = DIALECTS[location.kind]
        self._engine = self._dialect.engine(location)
        self._upsert = self._dialect.upsert()
        self._opening = asyncio.Lock()
        self._open = False
        self.malformed = 0
        """Rows that were skipped, as they are no memberships."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, without waiting for a silent server."""
        with contextlib.suppress(SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(DISPOSE_S):
                await self._engine.dispose()

    async def open(self) -> None:
        """Upgrade the schema, once."""
        async with self._opening:
            if self._open:
                return
            await self._again(self._prepare)
            self._open = True

    async def _prepare(self, connection: AsyncConnection) -> None:
        if self._location.kind == "sqlite":
            await connection.run_sync(_write_ahead)
        await connection.run_sync(migrate.upgrade, self._dialect, self.where, self._steps)

    async def load(self, partition: Partition, page: int = PAGE) -> AsyncIterator[list[Membership]]:
        """Read the memberships of a partition, in pages. Changes made meanwhile may or may not be in them.

        Skips and counts rows that are no memberships.
        """
        await self.open()
        place, last = schema.places(partition)
        gateway = -1
        while True:
            after = or_(memberships.c.room_reversed > place, memberships.c.gateway > gateway)
            wanted = (
                select(*_READ)
                .where(self._here(), memberships.c.room_reversed.between(place, last), after)
                .where(memberships.c.left_at.is_(None))
                .order_by(memberships.c.room_reversed, memberships.c.gateway)
                .limit(page)
            )
            async with self._connection() as connection:
                rows = (await connection.execute(wanted)).all()
            if found := list(self._memberships(rows)):
                yield found
            if len(rows) < page:
                return
            place, gateway = rows[-1].room_reversed, rows[-1].gateway

    def _memberships(self, rows: Sequence[Any]) -> Iterator[Membership]:
        for each in rows:
            try:
                yield schema.membership(*each)
            except ValueError:
                self.malformed += 1

    async def write(self, changes: Sequence[Change]) -> None:
        """Delete ended lives, then write what is newer than the stored rows.

        If this raises midway, the same call again is right.
        """
        await self.open()
        for ended in (each for each in changes if isinstance(each, Ended)):
            life = and_(memberships.c.gateway == ended.gateway, memberships.c.epoch <= ended.epoch)
            rooms = memberships.c.room_reversed.between(*schema.places(ended.partition))
            await self._delete(and_(life, rooms))
        said = [each for each in changes if isinstance(each, Membership)]
        rows = [schema.row(self._cluster, each, int(self._now())) for each in newest(said)]
        # Always in one order, so that two writers do not block each other.
        rows.sort(key=lambda each: (each["room_reversed"], each["gateway"]))
        if rows:
            await self._again(lambda connection: connection.execute(self._upsert, rows), writes=True)

    async def prune(self) -> None:
        """Delete rooms that were left long ago."""
        await self.open()
        await self._delete(memberships.c.left_at < int(self._now()) - LEFT_S)

    # Found first and then deleted by key: the transactions are short, and the condition is checked again.
    async def _delete(self, condition: ColumnElement[bool]) -> None:
        here = and_(self._here(), condition)
        key = (memberships.c.room_reversed, memberships.c.gateway)
        found = select(*key).where(here).limit(DELETED_AT_ONCE)
        gone = delete(memberships).where(here, key[0] == bindparam("place"), key[1] == bindparam("whose"))
        keys: list[dict[str, int]] = []

        async def delete_these(connection: AsyncConnection) -> None:
            await connection.execute(gone, keys)

        while True:
            async with self._connection() as connection:
                keys = [{"place": place, "whose": whose} for place, whose in await connection.execute(found)]
            if keys:
                await self._again(delete_these, writes=True)
            if len(keys) < DELETED_AT_ONCE:
                return

    def _here(self) -> ColumnElement[bool]:
        return memberships.c.cluster == self._cluster

    async def _again(self, work: Callable[[AsyncConnection], Awaitable[Any]], *, writes: bool = False) -> None:
        """Run one transaction, and again if others are in its way."""
        for attempt in range(BUSY_MAX):
            try:
                async with self._connection(writes=writes) as connection:
                    await work(connection)
                return
            except Busy:
                if attempt == BUSY_MAX - 1:
                    raise
                await asyncio.sleep(random.uniform(0, BUSY_S))

    @contextlib.asynccontextmanager
    async def _connection(self, *, writes: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that commits at the end; raises our errors."""
        try:
            async with asyncio.timeout(self._call_s), self._engine.connect() as connection:
                await connection.execution_options(writes=writes)
                yield connection
                await connection.commit()
        except DatabaseError:
            raise
        except Exception as error:
            self._open = False  # the next server may be another one
            raise translated(error, self.where, self._location.password) from error


def _write_ahead(connection: Connection) -> None:
    """Readers and the writer do not block each other. Stored in the file, so it is only set if missing."""
    if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
        connection.rollback()
        raw = connection.connection.cursor()
        raw.execute("PRAGMA journal_mode=WAL")
        raw.close()

"""The memberships of one cluster in one database: a partition read page by page, changes put in batches.

Opened by the first call, and again after an error, so it does not matter when the database comes. Every call ends within
`CALL_S`. Raises `DatabaseError`, one line, without the password.
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
"""For so long a row says that a room is wanted no more. An older word that comes later than this would count again."""
BUSY_MAX: Final = 8
BUSY_S: Final = 0.05
DISPOSE_S: Final = 0.5

_READ: Final = tuple(memberships.c[name] for name in ("room_reversed", "gateway", "epoch", "version", "name_check"))


class Store:
    """Connections are made when they are needed; `async with` closes them."""

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
        """Rows that were passed over: they are no memberships."""

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
        """Close the connections; a server that does not answer is not waited for."""
        with contextlib.suppress(SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(DISPOSE_S):
                await self._engine.dispose()

    async def open(self) -> None:
        """Bring the schema up to date, if that has not been done."""
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
        """Who wants the rooms of a partition, in pages. What changes meanwhile may or may not be in them.

        Rows that are no memberships, whoever wrote them, are passed over and counted.
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
        """Forget the lives that ended, then put what is newer than what is there.

        Whatever was done when this raises, the same again is right.
        """
        await self.open()
        for ended in (each for each in changes if isinstance(each, Ended)):
            life = and_(memberships.c.gateway == ended.gateway, memberships.c.epoch <= ended.epoch)
            rooms = memberships.c.room_reversed.between(*schema.places(ended.partition))
            await self._delete(and_(life, rooms))
        said = [each for each in changes if isinstance(each, Membership)]
        rows = [schema.row(self._cluster, each, int(self._now())) for each in newest(said)]
        # Always in one order, so that two who write do not wait for each other.
        rows.sort(key=lambda each: (each["room_reversed"], each["gateway"]))
        if rows:
            await self._again(lambda connection: connection.execute(self._upsert, rows), writes=True)

    async def prune(self) -> None:
        """Delete what was left long ago."""
        await self.open()
        await self._delete(memberships.c.left_at < int(self._now()) - LEFT_S)

    # Found first and then deleted by key: short transactions, and the condition is looked at again.
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
        """One transaction, tried again where others are in the way."""
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
        """A connection in a transaction that is committed at the end; errors are ours."""
        try:
            async with asyncio.timeout(self._call_s), self._engine.connect() as connection:
                await connection.execution_options(writes=writes)
                yield connection
                await connection.commit()
        except DatabaseError:
            raise
        except Exception as error:
            self._open = False  # what comes back may be another one
            raise translated(error, self.where, self._location.password) from error


def _write_ahead(connection: Connection) -> None:
    """Readers and the writer do not wait for each other. Kept in the file, so asked for only where it is not so."""
    if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
        connection.rollback()
        raw = connection.connection.cursor()
        raw.execute("PRAGMA journal_mode=WAL")
        raw.close()

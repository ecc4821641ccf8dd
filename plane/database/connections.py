"""Connections to one database with one system's tables, and transactions on them.

The first call opens it, and the call after an error opens it again, so the database may start late. Every transaction
has a time limit. Raises `DatabaseError`: one line, without the password.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database import migrate
from muster_server.plane.database.dialects import DIALECTS
from muster_server.plane.database.errors import Busy, DatabaseError, translated
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import Location
from muster_server.plane.ownership.errors import StoreError

CALL_S: Final = 15.0
UPGRADE_S: Final = 3_600.0
"""Limit of an upgrade of the schema, in seconds: a step may write a large table again, and what is cut off begins from its
start at the next attempt."""
SCRUB_S: Final = 600.0
"""Limit of writing a whole file again, in seconds."""
BUSY_MAX: Final = 8
BUSY_S: Final = 0.05
DISPOSE_S: Final = 0.5
_UPGRADES: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
"""Locks by loop: alembic can run only one upgrade of a process at a time."""


class Connections:
    """Opened when needed; `async with` closes them. `durable`: a commit survives a crash of the machine."""

    def __init__(self, location: Location, schema: Schema, *, call_s: float = CALL_S, durable: bool = True) -> None:
        self.where = location.shown
        self._location, self._schema, self._call_s = location, schema, call_s
        self._dialect = DIALECTS[location.kind]
        self._engine = self._dialect.engine(location, durable=durable)
        self._opening = asyncio.Lock()
        self._open = self._current = False

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
            async with _UPGRADES.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                await self.again(self._prepare)
                if not self._current:
                    await self.again(self._upgrade, call_s=UPGRADE_S)
            self._open = True

    def upsert(self, table: Table, order: Sequence[str]) -> Insert:
        """As `Dialect.upsert`."""
        return self._dialect.upsert(table, order)

    async def again(
        self, work: Callable[[AsyncConnection], Awaitable[Any]], *, writes: bool = False, call_s: float | None = None
    ) -> None:
        """Run one transaction, and repeat it while others conflict with it. `call_s`: its limit in seconds."""
        for attempt in range(BUSY_MAX):
            try:
                async with self.transaction(writes=writes, call_s=call_s) as connection:
                    await work(connection)
                return
            except Busy:
                if attempt == BUSY_MAX - 1:
                    raise
                await asyncio.sleep(random.uniform(0, BUSY_S))

    @contextlib.asynccontextmanager
    async def transaction(self, *, writes: bool = False, call_s: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that commits at the end; errors are raised as `DatabaseError`."""
        try:
            async with asyncio.timeout(call_s or self._call_s), self._engine.connect() as connection:
                await connection.execution_options(writes=writes)
                yield connection
                await connection.commit()
        except StoreError:  # of the work itself
            raise
        except Exception as error:
            self._open = False  # the next server may be another one
            raise self.translated(error) from error

    async def scrub(self) -> None:
        """Overwrite the bytes of deleted rows, where the client decides on that: a file of SQLite. A server does it in its
        own time. Waits for other transactions. Raises `Busy` while another program reads."""
        async with self.transaction(call_s=SCRUB_S) as connection:
            await connection.run_sync(self._dialect.scrub)

    def translated(self, error: BaseException) -> DatabaseError:
        """Convert an error of this database to a `DatabaseError`."""
        return translated(error, self.where, self._location.password, self._location.words)

    async def _prepare(self, connection: AsyncConnection) -> None:
        if self._location.kind == "sqlite":
            await connection.run_sync(_write_ahead)
        self._current = await connection.run_sync(migrate.is_current, self.where, self._schema)

    async def _upgrade(self, connection: AsyncConnection) -> None:
        await connection.run_sync(migrate.upgrade, self._dialect, self.where, self._schema)


def _write_ahead(connection: Connection) -> None:
    """Turn on the write-ahead log, so that readers and the writer do not block each other. The file stores it, so it is
    only set if missing."""
    if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
        connection.rollback()
        raw = connection.connection.cursor()
        raw.execute("PRAGMA journal_mode=WAL")
        raw.close()

"""The differences between the three databases: connections, the insert of newer rows only, and exclusive transactions.

`url.py` knows their URLs, `errors.py` their codes; a table of a system may have types for each.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Insert, Table, and_, event, func, or_, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from muster_server.plane.database.errors import Busy
from muster_server.plane.database.url import Kind, Location

CONNECTIONS: Final = 2
"""One connection writes, one loads."""
CONNECT_S: Final = 5
LOCK_S: Final = 10
_LOCK: Final = 0x6D757374  # the name of Muster's lock on PostgreSQL, per database


class Dialect(Protocol):
    """One kind of database."""

    def engine(self, location: Location, *, durable: bool = True) -> AsyncEngine:
        """Make a pool, without opening a connection. `durable`: a commit survives a crash of the machine."""

    def upsert(self, table: Table, order: Sequence[str]) -> Insert:
        """Make a statement that inserts a row, or replaces the row of its primary key if that is older by the columns
        of `order`.

        `order` has one or two columns, the more significant first.
        """

    def alone(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        """A transaction that excludes Muster's other programs, committed at the end."""

    def scrub(self, connection: Connection) -> None:
        """Overwrite the bytes of deleted rows. Raises `Busy` if another program prevents it now."""


class Sqlite:
    """A file. Many readers and one writer at a time. A transaction that may write locks at its start, so it is never
    aborted by a conflict."""

    def engine(self, location: Location, *, durable: bool = True) -> AsyncEngine:
        engine = _engine(location, {"timeout": LOCK_S})
        event.listen(engine.sync_engine, "connect", _prepare_durable if durable else _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        event.listen(engine.sync_engine, "invalidate", _give_up)
        return engine

    def upsert(self, table: Table, order: Sequence[str]) -> Insert:
        insert = sqlite.insert(table)
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=_news(table, new), where=_newer(table, new, order)
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()  # transactions that only read
        with connection.execution_options(writes=True).begin():
            yield

    def scrub(self, connection: Connection) -> None:
        connection.rollback()  # it runs outside of transactions
        raw = connection.connection.cursor()
        try:
            raw.execute("VACUUM")  # writes the file again, without deleted rows
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            done = raw.fetchone()
        finally:
            raw.close()
        if done is None or done[0]:
            raise Busy("another program reads the file; try again")


class Postgresql:
    """A PostgreSQL server."""

    def engine(self, location: Location, *, durable: bool = True) -> AsyncEngine:
        return _engine(location, {"timeout": CONNECT_S}, isolation_level="READ COMMITTED")

    def upsert(self, table: Table, order: Sequence[str]) -> Insert:
        insert = postgresql.insert(table)
        new = insert.excluded
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=_news(table, new), where=_newer(table, new, order)
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()
        with connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield

    def scrub(self, connection: Connection) -> None:
        """Its vacuum does it."""


class Mysql:
    """A MySQL or MariaDB server. There a change of the schema commits by itself, so the lock belongs to the connection."""

    def engine(self, location: Location, *, durable: bool = True) -> AsyncEngine:
        return _engine(location, {"connect_timeout": CONNECT_S}, isolation_level="READ COMMITTED")

    def upsert(self, table: Table, order: Sequence[str]) -> Insert:
        insert = mysql.insert(table)
        new, old = insert.inserted, table.c
        newer = _newer(table, new, order)
        # Assignments run in order, and each sees the ones before. So the columns that decide come last, the most
        # significant at the very end.
        most, *less = order
        names = [*(name for name in _news(table, new) if name not in order), *less]
        return insert.on_duplicate_key_update(
            [(name, func.if_(newer, new[name], old[name])) for name in names]
            + [(most, func.greatest(new[most], old[most]))]
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()
        name = {"name": f"muster/{connection.engine.url.database}"[:64]}
        if connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), {**name, "seconds": LOCK_S}) != 1:
            raise Busy("another program is changing the schema; try again")
        try:
            yield
            connection.commit()
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)

    def scrub(self, connection: Connection) -> None:
        """Its purge does it."""


# Their logs repeat their errors, or do not matter.
for _noisy in ("asyncmy", "sqlalchemy"):
    logging.getLogger(_noisy).addHandler(logging.NullHandler())
    logging.getLogger(_noisy).propagate = False

DIALECTS: Final[Mapping[Kind, Dialect]] = {"sqlite": Sqlite(), "mysql": Mysql(), "postgresql": Postgresql()}


def _engine(location: Location, connect: dict[str, Any], **more: Any) -> AsyncEngine:
    return create_async_engine(
        location.url, pool_size=CONNECTIONS, max_overflow=0, connect_args=connect, hide_parameters=True, **more
    )


def _news(table: Table, new: Any) -> dict[str, Any]:
    """The new values of all columns except the primary key."""
    return {column.name: new[column.name] for column in table.columns if not column.primary_key}


def _newer(table: Table, new: Any, order: Sequence[str]) -> Any:
    most, *less = order
    old = table.c
    newer = new[most] > old[most]
    return or_(newer, and_(new[most] == old[most], new[less[0]] > old[less[0]])) if less else newer


def _prepare(connection: DBAPIConnection, _: Any, synchronous: str = "NORMAL") -> None:
    """Let the driver begin no transaction by itself. With NORMAL a commit does not wait for the disk."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA synchronous={synchronous}")
    cursor.close()


def _prepare_durable(connection: DBAPIConnection, record: Any) -> None:
    _prepare(connection, record, "FULL")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_ENDING: Final = set[asyncio.Task[None]]()
"""Keeps references to tasks, because the loop holds none."""


def _give_up(connection: DBAPIConnection, *_: Any) -> None:
    """End the transaction of a call that was cancelled midway.

    The driver closes its connection, but SQLite keeps it with its transaction, and so the file's lock, until its
    cursors are collected."""
    with contextlib.suppress(RuntimeError):  # without a loop no call is running
        task = asyncio.get_running_loop().create_task(_roll_back(connection))
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


async def _roll_back(connection: Any) -> None:
    with contextlib.suppress(sqlite3.Error, ValueError):  # no transaction, or a closed connection
        await connection.driver_connection.rollback()

"""The differences of the three databases: connections, the insert of newer rows only, and exclusive transactions.

The rest of the package knows no dialect.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Insert, and_, event, func, or_, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from control.rooms.database.errors import Busy
from control.rooms.database.schema import memberships
from control.rooms.database.url import Kind, Location

CONNECTIONS: Final = 2
"""One writes, one loads."""
CONNECT_S: Final = 5
LOCK_S: Final = 10
_LOCK: Final = 0x6D757374  # the name of our lock at PostgreSQL, per database
_KEY: Final = ("cluster", "room_reversed", "gateway")
_WORD: Final = ("name_check", "left_at", "version", "epoch")


class Dialect(Protocol):
    """One kind of database."""

    def engine(self, location: Location) -> AsyncEngine:
        """A pool of connections, none of which is open yet."""

    def upsert(self) -> Insert:
        """Inserts a row, or replaces one that is older by (epoch, version)."""

    def alone(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        """A transaction that excludes our other programs, committed at the end."""


class Sqlite:
    """A file. Many readers and one writer at a time. A transaction that may write says so at its start, so it never has
    to give up."""

    def engine(self, location: Location) -> AsyncEngine:
        engine = _engine(location, {"timeout": LOCK_S})
        event.listen(engine.sync_engine, "connect", _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine

    def upsert(self) -> Insert:
        insert = sqlite.insert(memberships)
        return insert.on_conflict_do_update(
            index_elements=_KEY, set_=_news(insert.excluded), where=_newer(insert.excluded)
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()  # only reading transactions
        with connection.execution_options(writes=True).begin():
            yield


class Postgresql:
    """A server."""

    def engine(self, location: Location) -> AsyncEngine:
        return _engine(location, {"timeout": CONNECT_S}, isolation_level="READ COMMITTED")

    def upsert(self) -> Insert:
        insert = postgresql.insert(memberships)
        return insert.on_conflict_do_update(
            index_elements=_KEY, set_=_news(insert.excluded), where=_newer(insert.excluded)
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()
        with connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield


class Mysql:
    """A server. A change of the schema commits by itself there, so the lock belongs to the connection."""

    def engine(self, location: Location) -> AsyncEngine:
        return _engine(location, {"connect_timeout": CONNECT_S}, isolation_level="READ COMMITTED")

    def upsert(self) -> Insert:
        insert = mysql.insert(memberships)
        new = insert.inserted
        newer = _newer(new)
        # Assignments happen in order, each seeing the ones before: the epoch goes last, the version next to last.
        return insert.on_duplicate_key_update(
            [(name, func.if_(newer, new[name], memberships.c[name])) for name in _WORD[:-1]]
            + [("epoch", func.greatest(new.epoch, memberships.c.epoch))]
        )

    @contextlib.contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        connection.rollback()
        name = {"name": f"muster/{connection.engine.url.database}"[:64]}
        if connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), {**name, "seconds": LOCK_S}) != 1:
            raise Busy("another program changes the schema")
        try:
            yield
            connection.commit()
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)


# Their logs repeat what their errors say, or do not matter.
for _noisy in ("asyncmy", "sqlalchemy"):
    logging.getLogger(_noisy).addHandler(logging.NullHandler())
    logging.getLogger(_noisy).propagate = False

DIALECTS: Final[Mapping[Kind, Dialect]] = {"sqlite": Sqlite(), "mysql": Mysql(), "postgresql": Postgresql()}


def _engine(location: Location, connect: dict[str, Any], **more: Any) -> AsyncEngine:
    return create_async_engine(
        location.url, pool_size=CONNECTIONS, max_overflow=0, connect_args=connect, hide_parameters=True, **more
    )


def _news(new: Any) -> dict[str, Any]:
    return {name: new[name] for name in _WORD}


def _newer(new: Any) -> Any:
    old = memberships.c
    return or_(new.epoch > old.epoch, and_(new.epoch == old.epoch, new.version > old.version))


def _prepare(connection: DBAPIConnection, _: Any) -> None:
    """The driver begins no transaction by itself. A commit does not wait for the disk: a crash of the machine loses
    only hints."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

"""Positions in the log of a database: what a commit reached, and whether a replica has applied it.

One class for each database server, over a plain SQLAlchemy `Connection`; an async engine runs them by `run_sync`. A
position is an opaque text of letters, digits, `.`, `-` and `_`, so it travels in a cookie or a header. This file must not
know which server is chosen.
"""

import re
from abc import ABC, abstractmethod
from time import monotonic
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Dialect, text
from sqlalchemy.exc import DBAPIError

from ..errors import Invalid

POSITION_CHARS_MAX: Final = 400
"""Limit of a position: MariaDB has one part of at most 43 characters for each replication domain."""
ASK_AGAIN_S: Final = 0.005


class Positions(ABC):
    """The log position of one kind of database server."""

    name: ClassVar[str]
    pattern: ClassVar[re.Pattern[str]]

    def is_position(self, position: str) -> bool:
        """Return whether this text can be a position of this kind of server."""
        return len(position) <= POSITION_CHARS_MAX and self.pattern.fullmatch(position) is not None

    @abstractmethod
    def committed(self, connection: Connection) -> str:
        """Return a position that includes the last commit of this connection to the primary. Empty: the server keeps no log
        for replicas."""

    @abstractmethod
    def written(self, connection: Connection) -> str:
        """Return the position of the primary now."""

    @abstractmethod
    def applied(self, connection: Connection) -> str | None:
        """Return the position that a replica has applied; None: the server is no replica."""

    @abstractmethod
    def includes(self, position: str, other: str) -> bool:
        """Return whether `position` includes all that `other` includes."""

    @abstractmethod
    def reached(self, connection: Connection, position: str, wait_s: float) -> bool:
        """Return whether a replica has applied `position`; waits for it at the server, at most `wait_s` seconds."""

    @abstractmethod
    def is_refused_write(self, error: DBAPIError) -> bool:
        """Return whether the server refused a write in a transaction that only reads."""

    def begin(self, connection: Connection, *, writes: bool) -> None:
        """Begin the transaction before its first statement, where the server's driver would begin it with a later one."""
        return

    @abstractmethod
    def only_read(self, connection: Connection) -> None:
        """Have the server refuse writes in the transaction that begins, whose reads all see one state."""

    @abstractmethod
    def may_write(self, connection: Connection) -> None:
        """Undo what `only_read` left on the connection after the transaction."""


class MariaDb(Positions):
    """MariaDB: global transaction ids, `domain-server-sequence` for each replication domain."""

    name = "mariadb"
    pattern = re.compile(r"\d{1,10}-\d{1,10}-\d{1,20}(\.\d{1,10}-\d{1,10}-\d{1,20})*")

    def committed(self, connection: Connection) -> str:
        last, all_domains = connection.exec_driver_sql("SELECT @@last_gtid, @@gtid_binlog_pos").one()
        return _text(last or all_domains)

    def written(self, connection: Connection) -> str:
        if not getattr(connection.dialect, "is_mariadb", True):
            raise _unsupported("mysql")
        return _text(connection.exec_driver_sql("SELECT @@gtid_binlog_pos").scalar_one())

    def applied(self, connection: Connection) -> str | None:
        return _text(connection.exec_driver_sql("SELECT @@gtid_slave_pos").scalar_one()) or None

    def includes(self, position: str, other: str) -> bool:
        mine = _sequences(position)
        return all(mine.get(domain, -1) >= sequence for domain, sequence in _sequences(other).items())

    def reached(self, connection: Connection, position: str, wait_s: float) -> bool:
        wait = text("SELECT MASTER_GTID_WAIT(:position, :wait_s)")
        given = {"position": position.replace(".", ","), "wait_s": round(wait_s, 6)}
        return bool(connection.execute(wait, given).scalar_one() == 0)

    def is_refused_write(self, error: DBAPIError) -> bool:
        return error.orig is not None and error.orig.args[:1] in {(1792,), (1290,)}

    def only_read(self, connection: Connection) -> None:
        # For the connection: a statement that changes a table's form ends the transaction and begins another one.
        connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")

    def may_write(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION TRANSACTION READ WRITE")


class PostgreSql(Positions):
    """PostgreSQL: byte positions in the write-ahead log."""

    name = "postgresql"
    pattern = re.compile(r"[0-9A-F]{1,8}_[0-9A-F]{1,8}")

    def committed(self, connection: Connection) -> str:
        # Asked after COMMIT. A replica may count a position inside of the commit record as applied before the commit is.
        return _lsn(connection, "pg_current_wal_insert_lsn()")

    def written(self, connection: Connection) -> str:
        # The flushed position: the insert position may lie behind the header of a page that has no record yet.
        return _lsn(connection, "pg_current_wal_flush_lsn()")

    def applied(self, connection: Connection) -> str | None:
        if not connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one():
            return None
        return _lsn(connection, "pg_last_wal_replay_lsn()")

    def includes(self, position: str, other: str) -> bool:
        return not other or (bool(position) and _bytes(position) >= _bytes(other))

    def reached(self, connection: Connection, position: str, wait_s: float) -> bool:
        has = text("SELECT pg_is_in_recovery() AND pg_last_wal_replay_lsn() >= CAST(CAST(:lsn AS text) AS pg_lsn)")
        deadline = monotonic() + wait_s
        while not connection.execute(has, {"lsn": position.replace("_", "/")}).scalar_one():
            if monotonic() >= deadline:
                return False
            connection.exec_driver_sql(f"SELECT pg_sleep({ASK_AGAIN_S})")
        return True

    def is_refused_write(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == "25006"

    def only_read(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def may_write(self, connection: Connection) -> None:
        return


class Sqlite(Positions):
    """SQLite: one file, so no replica and no position."""

    name = "sqlite"
    pattern = re.compile("")

    def committed(self, connection: Connection) -> str:
        return ""

    def written(self, connection: Connection) -> str:
        return ""

    def applied(self, connection: Connection) -> str | None:
        return None

    def includes(self, position: str, other: str) -> bool:
        return position == other

    def reached(self, connection: Connection, position: str, wait_s: float) -> bool:
        return True

    def is_refused_write(self, error: DBAPIError) -> bool:
        return "readonly database" in str(error.orig)

    def begin(self, connection: Connection, *, writes: bool) -> None:
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def only_read(self, connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")

    def may_write(self, connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = OFF")


def positions(dialect: Dialect) -> Positions:
    """Return the positions of a dialect's server. Raises `Invalid` for a server that is not supported.

    A `mysql` URL may lead to a MariaDB; `MariaDb.written` finds out.
    """
    for kind in (MariaDb, PostgreSql, Sqlite):
        if {"mysql": "mariadb"}.get(dialect.name, dialect.name) == kind.name:
            return kind()
    raise _unsupported(dialect.name)


def _unsupported(name: str) -> Invalid:
    return Invalid(f"unsupported database {name} (expected mariadb, postgresql or sqlite)")


def _text(gtids: Any) -> str:
    return str(gtids or "").replace(",", ".").replace("\n", "")


def _sequences(position: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for gtid in filter(None, position.split(".")):
        domain, _, sequence = gtid.split("-")
        found[domain] = max(found.get(domain, -1), int(sequence))
    return found


def _lsn(connection: Connection, function: str) -> str:
    said = connection.exec_driver_sql(f"SELECT CAST({function} AS text)").scalar_one()
    return str(said or "0/0").replace("/", "_")


def _bytes(position: str) -> int:
    high, low = position.split("_")
    return (int(high, 16) << 32) + int(low, 16)

"""The two tables that Muster has in a program's database, and an insert that reports a duplicate instead of failing.

A row is written once and never changed: its unique key decides a race. Knows no message and no server.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Delete, Engine, Executable, Index, MetaData, String, Table, delete
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from ..clock import now_ms
from ..errors import Invalid

METADATA: Final = MetaData()
"""For migrations: one more entry of Alembic's `target_metadata`."""
ID_CHARS_MAX: Final = 128
# Ids differ by case: MariaDB's default collation would treat two such ids as equal.
_NAME: Final = String(ID_CHARS_MAX).with_variant(
    mysql.VARCHAR(ID_CHARS_MAX, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)
_END: Final = "\x1f"
OUTCOMES: Final = Table(
    "muster_outcomes",
    METADATA,
    Column("message", _NAME, primary_key=True),
    Column("outcome", String(5), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("muster_outcomes_at", "at_ms"),
    mysql_engine="InnoDB",
)
"""The outcome of a transactional message: `OK` or `ABORT`, the first that was written (I-10). Times are ms since 1970."""
EFFECTS: Final = Table(
    "muster_effects",
    METADATA,
    Column("consumer", _NAME, primary_key=True),
    Column("message", _NAME, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Index("muster_effects_at", "at_ms"),
    mysql_engine="InnoDB",
)
"""Messages whose effects a consumer has carried out."""


def name_of(text: str) -> str:
    """A text as it stands in a column, whose servers may ignore spaces at the end: another sign stands behind them."""
    return text + _END if text.endswith((" ", _END)) else text


async def create(engine: AsyncEngine) -> None:
    """Create the missing tables. Let one program at a time call it, as a migration. Raises `SQLAlchemyError`."""
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)


def create_sync(engine: Engine) -> None:
    """The same for an `Engine`."""
    METADATA.create_all(engine)


async def forget(engine: AsyncEngine, table: Table, older_s: float) -> int:
    """Delete the rows of a table that are older than `older_s` seconds, and return their number. Raises
    `SQLAlchemyError`.

    Keep `OUTCOMES` longer than a check-back may come, which is all retries of its topic plus `center.dead_days`.
    """
    async with engine.begin() as connection:
        return (await connection.execute(_older(table, older_s))).rowcount


def forget_sync(engine: Engine, table: Table, older_s: float) -> int:
    """The same for an `Engine`."""
    with engine.begin() as connection:
        return connection.execute(_older(table, older_s)).rowcount


def _older(table: Table, older_s: float) -> Delete:
    return delete(table).where(table.c.at_ms < now_ms() - round(older_s * 1_000))


def insert_once(dialect: str, table: Table, row: Mapping[str, Any]) -> Executable:
    """Insert a row unless its key exists: `rowcount` is 1 or 0. Waits for a transaction that holds the key.

    Raises `Invalid` for a database that is not supported.
    """
    made: Executable
    if dialect in {"mysql", "mariadb"}:
        made = mysql.insert(table).prefix_with("IGNORE").values(row)
    elif dialect == "postgresql":
        made = postgresql.insert(table).values(row).on_conflict_do_nothing()
    elif dialect == "sqlite":
        made = sqlite.insert(table).values(row).on_conflict_do_nothing()
    else:
        raise Invalid(f"unsupported database {dialect} (expected sqlite, mysql, mariadb or postgresql)")
    return made.execution_options(preserve_rowcount=True)

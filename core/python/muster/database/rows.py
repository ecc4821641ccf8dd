"""The two tables that Muster has in a program's database, and the insert that wins or loses but never fails.

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
# Ids differ by case: MariaDB's usual collation would take two for one.
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
"""What became of a transactional message: `OK` or `ABORT`, the first that was written (I-10). Ms since 1970."""
EFFECTS: Final = Table(
    "muster_effects",
    METADATA,
    Column("consumer", _NAME, primary_key=True),
    Column("message", _NAME, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Index("muster_effects_at", "at_ms"),
    mysql_engine="InnoDB",
)
"""Messages whose effects a consumer has had."""


def name_of(text: str) -> str:
    """A text as it stands in a column, whose servers may ignore spaces at the end: another sign stands behind them."""
    return text + _END if text.endswith((" ", _END)) else text


async def create(engine: AsyncEngine) -> None:
    """Make the tables that are missing. For one program at a time, as a migration. Raises `SQLAlchemyError`."""
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)


def create_sync(engine: Engine) -> None:
    """The same."""
    METADATA.create_all(engine)


async def forget(engine: AsyncEngine, table: Table, older_s: float) -> int:
    """Delete the rows of a table that are older than this, and return how many. Raises `SQLAlchemyError`.

    Of `OUTCOMES`: longer than a check-back may come, which is all retries of its topic and `center.dead_days`.
    """
    async with engine.begin() as connection:
        return (await connection.execute(_older(table, older_s))).rowcount


def forget_sync(engine: Engine, table: Table, older_s: float) -> int:
    """The same."""
    with engine.begin() as connection:
        return connection.execute(_older(table, older_s)).rowcount


def _older(table: Table, older_s: float) -> Delete:
    return delete(table).where(table.c.at_ms < now_ms() - round(older_s * 1_000))


def insert_once(dialect: str, table: Table, row: Mapping[str, Any]) -> Executable:
    """Inserts a row unless one with its key is there: `rowcount` is 1 or 0. Waits for a transaction that decides it.

    Raises `Invalid` for a database that is none of the three kinds.
    """
    made: Executable
    if dialect in {"mysql", "mariadb"}:
        made = mysql.insert(table).prefix_with("IGNORE").values(row)
    elif dialect == "postgresql":
        made = postgresql.insert(table).values(row).on_conflict_do_nothing()
    elif dialect == "sqlite":
        made = sqlite.insert(table).values(row).on_conflict_do_nothing()
    else:
        raise Invalid(f"{dialect} is not sqlite, mysql, mariadb or postgresql")
    return made.execution_options(preserve_rowcount=True)

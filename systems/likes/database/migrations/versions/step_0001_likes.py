"""The tables of likes."""

from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision: Final = "0001"
down_revision: Final = None

KEY: Final = sa.LargeBinary(512).with_variant(mysql.VARBINARY(512), "mysql")
BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")


def _table(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table unless it exists: not every database rolls back half a step."""
    op.create_table(
        name,
        sa.Column("instance", sa.String(32), primary_key=True),
        sa.Column("log_number", sa.Integer, primary_key=True, autoincrement=False),
        *columns,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )


def upgrade() -> None:
    """Create all four tables."""
    _table(
        "muster_likes",
        sa.Column("item", KEY, primary_key=True),
        sa.Column("likes", sa.BigInteger, nullable=False),
        sa.Column("modification", sa.BigInteger, nullable=False),
        sa.Column("likers", BYTES),
    )
    _table(
        "muster_likes_users",
        sa.Column("dense_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("user_id", sa.BigInteger, nullable=False),
    )
    _table(
        "muster_likes_logs",
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("log_offset", sa.BigInteger, nullable=False),
        sa.Column("users", sa.BigInteger, nullable=False),
        sa.Column("snapshot_offset", sa.BigInteger, nullable=False),
        sa.Column("snapshot_parts", sa.Integer, nullable=False),
        sa.Column("writes", sa.BigInteger, nullable=False),
    )
    _table(
        "muster_likes_snapshots",
        sa.Column("snapshot_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", BYTES, nullable=False),
    )

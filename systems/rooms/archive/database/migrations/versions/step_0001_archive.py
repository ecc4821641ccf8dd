"""The tables of the archive."""

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0001"
down_revision: Final = None

BLOCK_BYTES_MAX: Final = 1 << 20
INDEXES: Final = {
    "muster_archive_places": ("instance", "room", "node", "epoch", "generation", "last_offset"),
    "muster_archive_times": ("instance", "room", "at_ms"),
    "muster_archive_age": ("instance", "at_ms"),
}


def upgrade() -> None:
    """Create the tables and indexes unless they exist: not every database rolls back half a step."""
    number = sa.BigInteger
    _table(
        "muster_archive_rooms",
        sa.Column("room", number, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("last_seq", number, nullable=False),
        sa.Column("at_ms", number, nullable=False),
        sa.Column("bytes", number, nullable=False),
        sa.Column("messages", number, nullable=False),
        sa.Column("begun", sa.Boolean, nullable=False),
        sa.Column("positions", sa.LargeBinary(255), nullable=False),
    )
    _table(
        "muster_archive_blocks",
        sa.Column("room", number, primary_key=True, autoincrement=False),
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        *(
            sa.Column(name, number, nullable=False)
            for name in ("count", "node", "epoch", "generation", "first_offset", "last_offset", "at_ms")
        ),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("bytes", number, nullable=False),
        sa.Column("data", sa.LargeBinary(BLOCK_BYTES_MAX), nullable=False),
    )
    there = {each["name"] for each in sa.inspect(op.get_bind()).get_indexes("muster_archive_blocks")}
    for name, columns in INDEXES.items():
        if name not in there:
            op.create_index(name, "muster_archive_blocks", list(columns))
    compare_bytes("muster_archive_rooms", "muster_archive_blocks")


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("instance", sa.String(64), primary_key=True),
        *columns,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )

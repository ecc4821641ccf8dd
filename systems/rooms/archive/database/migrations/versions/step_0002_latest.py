"""The latest message of each key, and the newest gap of a room."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0002"
down_revision: Final = "0001"

RECORD_BYTES_MAX: Final = 1 << 17
INDEXES: Final = {
    "muster_archive_latest_seqs": ("instance", "room", "seq"),
    "muster_archive_latest_age": ("instance", "at_ms"),
}


def upgrade() -> None:
    """Create the table and its indexes unless they exist: not every database rolls back half a step."""
    number = sa.BigInteger
    op.create_table(
        "muster_archive_latest",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("room", number, primary_key=True, autoincrement=False),
        sa.Column("key", number, primary_key=True, autoincrement=False),
        *(
            sa.Column(name, number, nullable=False)
            for name in ("seq", "node", "epoch", "generation", "last_offset", "at_ms", "bytes")
        ),
        sa.Column("data", sa.LargeBinary(RECORD_BYTES_MAX), nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    if "gap_seq" not in {each["name"] for each in sa.inspect(op.get_bind()).get_columns("muster_archive_rooms")}:
        op.add_column("muster_archive_rooms", sa.Column("gap_seq", number, nullable=False, server_default="0"))
    there = {each["name"] for each in sa.inspect(op.get_bind()).get_indexes("muster_archive_latest")}
    for name, columns in INDEXES.items():
        if name not in there:
            op.create_index(name, "muster_archive_latest", list(columns))
    compare_bytes("muster_archive_latest")

"""The table of memberships."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None

TABLE: Final = "muster_memberships"
INDEXES: Final = {f"{TABLE}_life": ("cluster", "gateway", "epoch"), f"{TABLE}_left": ("cluster", "left_at")}


def upgrade() -> None:
    """Create the table unless it exists: not every database rolls back half a step."""
    op.create_table(
        TABLE,
        sa.Column("cluster", sa.String(32), primary_key=True),
        sa.Column("room_reversed", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("gateway", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("name_check", sa.BigInteger, nullable=False),
        sa.Column("left_at", sa.BigInteger),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(TABLE)}
    for name, columns in INDEXES.items():
        if name not in there:
            op.create_index(name, TABLE, list(columns))

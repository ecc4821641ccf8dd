"""The dense ids of erased users: nobody has them any more, so a bitmap from before the erasure names no one."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0003"
down_revision: Final = "0002"


def upgrade() -> None:
    """Create the table unless it exists."""
    op.create_table(
        "muster_likes_erased",
        sa.Column("instance", sa.String(32), primary_key=True),
        sa.Column("log_number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("dense_id", sa.BigInteger, primary_key=True, autoincrement=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    compare_bytes("muster_likes_erased")

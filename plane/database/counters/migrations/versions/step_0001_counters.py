"""The table of counters."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None


def upgrade() -> None:
    """Create the table unless it exists: not every database rolls back half a step."""
    op.create_table(
        "muster_counters",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("next_number", sa.BigInteger, nullable=False),
        sa.Column("made", sa.Integer, nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )

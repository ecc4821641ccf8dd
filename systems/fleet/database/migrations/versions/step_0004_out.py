"""Results with mark and number, roll-ups by minute and mark, and the runs whose results wait for their topic."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0004"
down_revision: Final = "0003"

INDEX: Final = "muster_fleet_minutes_minute"


def upgrade() -> None:
    """Create what is missing: not every database rolls back half a step. Earlier results keep empty columns."""
    inspected = sa.inspect(op.get_bind())
    there = {column["name"] for column in inspected.get_columns("muster_fleet_results")}
    for column in (sa.Column("mark", sa.String(260)), sa.Column("ms", sa.Double)):
        if column.name not in there:
            op.add_column("muster_fleet_results", column)
    _table(
        "muster_fleet_minutes",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("mark", sa.String(260), primary_key=True),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("results", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("missed", sa.Integer, nullable=False),
        sa.Column("p50", sa.Double),
        sa.Column("p90", sa.Double),
        sa.Column("p99", sa.Double),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    _table(
        "muster_fleet_outbox",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    if INDEX not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("muster_fleet_minutes")}:
        op.create_index(INDEX, "muster_fleet_minutes", ["instance", "minute"])
    compare_bytes("muster_fleet_minutes", "muster_fleet_outbox")


def _table(name: str, *columns: sa.Column[object]) -> None:
    op.create_table(name, *columns, if_not_exists=True, mysql_engine="InnoDB", mysql_default_charset="utf8mb4")

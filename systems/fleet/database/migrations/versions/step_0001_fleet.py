"""The tables of tasks, runs and results."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None

DETAIL_BYTES_MAX: Final = (1 << 24) - 1
INDEXES: Final = {
    "muster_fleet_runs_state": ("instance", "state"),
    "muster_fleet_runs_minute": ("instance", "minute"),
    "muster_fleet_runs_started": ("instance", "started_ms"),
}


def upgrade() -> None:
    """Create the tables unless they exist: not every database rolls back half a step."""
    _table(
        "muster_fleet_tasks",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("selector", sa.Text, nullable=False),
        sa.Column("every_minutes", sa.Integer),
        sa.Column("pick", sa.Integer),
        sa.Column("per_hour", sa.Integer),
        sa.Column("customer", sa.String(16), nullable=False, server_default="ordinary"),
        sa.Column("slip_ms", sa.Integer, nullable=False, server_default="0"),
        sa.Column("options", sa.Text),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("since_minute", sa.BigInteger, nullable=False, server_default="0"),
    )
    _table(
        "muster_fleet_lead",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("last_minute", sa.BigInteger, nullable=False),
    )
    _table(
        "muster_fleet_runs",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("selector", sa.Text, nullable=False),
        sa.Column("wanted", sa.Integer, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("replaced", sa.Integer, nullable=False),
        sa.Column("missed", sa.Integer, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        sa.Column("detail", sa.LargeBinary(DETAIL_BYTES_MAX), nullable=False),
    )
    _table(
        "muster_fleet_results",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("client", sa.String(64), primary_key=True),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("value", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    _table(
        "muster_fleet_missed",
        sa.Column("instance", sa.String(64), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("first_minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last_minute", sa.BigInteger, nullable=False),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("muster_fleet_runs")}
    for name, columns in INDEXES.items():
        if name not in there:
            op.create_index(name, "muster_fleet_runs", list(columns))


def _table(name: str, *columns: sa.Column[object]) -> None:
    op.create_table(name, *columns, if_not_exists=True, mysql_engine="InnoDB", mysql_default_charset="utf8mb4")

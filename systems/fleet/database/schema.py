"""The tables of a fleet. `migrations/` upgrades a database to them, step by step.

A web application edits `muster_fleet_tasks` and then requests a refresh; the leading scheduler writes everything else.
Several installations share a database: each has its rows by its `instance`.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)

VERSION_TABLE: Final = "muster_fleet_schema"
STEPS: Final = Path(__file__).parent / "migrations"
DETAIL_BYTES_MAX: Final = (1 << 24) - 1
_MORE: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
}

metadata: Final = MetaData()

tasks: Final = Table(
    "muster_fleet_tasks",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("target", String(1024), nullable=False),
    Column("selector", Text, nullable=False),
    Column("every_minutes", Integer),
    Column("pick", Integer),
    Column("per_hour", Integer),
    Column("customer", String(16), nullable=False, server_default="ordinary"),
    Column("slip_ms", Integer, nullable=False, server_default="0"),
    Column("options", Text),
    Column("paused", Boolean, nullable=False, server_default=false()),
    # Minutes since 1970; no earlier run counts as missed.
    Column("since_minute", BigInteger, nullable=False, server_default="0"),
    **_MORE,
)

lead: Final = Table(
    "muster_fleet_lead",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("holder", String(255), nullable=False),
    Column("last_minute", BigInteger, nullable=False),
    **_MORE,
)

runs: Final = Table(
    "muster_fleet_runs",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(64), nullable=False),
    Column("target", String(1024), nullable=False),
    Column("selector", Text, nullable=False),
    Column("wanted", Integer, nullable=False),
    Column("state", String(8), nullable=False),
    Column("asked", Integer, nullable=False),
    Column("done", Integer, nullable=False),
    Column("replaced", Integer, nullable=False),
    Column("missed", Integer, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("reason", Text),
    # The epoch of the lead that wrote the row, and the progress of the run: only a greater pair replaces a row.
    Column("epoch", BigInteger, nullable=False),
    Column("stage", Integer, nullable=False),
    # MessagePack: options, draws with everything needed to repeat them, clients with their epochs.
    Column("detail", LargeBinary(DETAIL_BYTES_MAX), nullable=False),
    Index("muster_fleet_runs_state", "instance", "state"),
    Index("muster_fleet_runs_minute", "instance", "minute"),
    Index("muster_fleet_runs_started", "instance", "started_ms"),
    **_MORE,
)

results: Final = Table(
    "muster_fleet_results",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("client", String(64), primary_key=True),
    Column("ok", Boolean, nullable=False),
    Column("value", Text),
    Column("error", Text),
    Column("at_ms", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # Where the client was, as country_province_city_carrier, and the number that stands for the value.
    Column("mark", String(260)),
    Column("ms", Double),
    **_MORE,
)

minutes: Final = Table(
    "muster_fleet_minutes",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    # Empty: all clients of the run.
    Column("mark", String(260), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("target", String(1024), nullable=False),
    Column("results", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("missed", Integer, nullable=False),
    Column("p50", Double),
    Column("p90", Double),
    Column("p99", Double),
    Column("epoch", BigInteger, nullable=False),
    Index("muster_fleet_minutes_minute", "instance", "minute"),
    **_MORE,
)

outbox: Final = Table(
    "muster_fleet_outbox",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    **_MORE,
)

missed: Final = Table(
    "muster_fleet_missed",
    metadata,
    Column("instance", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("first_minute", BigInteger, primary_key=True, autoincrement=False),
    Column("last_minute", BigInteger, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    **_MORE,
)

RUN_ORDER: Final = ("epoch", "stage")
ORDER: Final = ("epoch",)
"""The columns that decide which of two rows with one key is newer."""

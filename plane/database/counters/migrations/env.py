"""Run by alembic: the steps of counters."""

from plane.database.migrate import run

run()

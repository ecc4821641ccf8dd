"""Run by alembic: the steps of counters."""

from muster_server.plane.database.migrate import run

run()

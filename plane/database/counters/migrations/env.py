"""Run by alembic: the schema steps of counters."""

from muster_server.plane.database.migrate import run

run()

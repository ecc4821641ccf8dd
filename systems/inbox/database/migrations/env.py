"""Run by alembic: the schema steps of the inbox."""

from muster_server.plane.database.migrate import run

run()

"""Run by alembic: the schema steps of the archive."""

from muster_server.plane.database.migrate import run

run()

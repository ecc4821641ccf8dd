"""Run by alembic: the schema steps of likes."""

from muster_server.plane.database.migrate import run

run()

"""Run by alembic: the schema steps of the fleet."""

from muster_server.plane.database.migrate import run

run()

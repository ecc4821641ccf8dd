"""Run by alembic: the steps of the fleet's tables."""

from muster_server.plane.database.migrate import run

run()

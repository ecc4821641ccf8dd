"""Run by alembic: the steps of likes."""

from muster_server.plane.database.migrate import run

run()

"""Run by alembic: the steps of memberships."""

from muster_server.plane.database.migrate import run

run()

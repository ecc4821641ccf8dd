"""Run by alembic: the schema steps of memberships."""

from muster_server.plane.database.migrate import run

run()

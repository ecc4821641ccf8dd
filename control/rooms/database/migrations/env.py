"""Run by alembic: the steps of memberships."""

from plane.database.migrate import run

run()

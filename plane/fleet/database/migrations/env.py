"""Run by alembic: the steps of the fleet's tables."""

from plane.database.migrate import run

run()

"""Run by alembic: the steps of likes."""

from plane.database.migrate import run

run()

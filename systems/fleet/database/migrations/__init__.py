"""The steps of the fleet's tables, for alembic."""

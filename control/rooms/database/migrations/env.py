"""Run by alembic: the steps, on the connection that `control/rooms/database/migrate.py` holds."""

from alembic import context

from control.rooms.database.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()

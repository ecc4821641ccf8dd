"""Upgrades a database to a system's schema, one program at a time, or reports that a newer program has upgraded it.

A system's steps are a folder with `env.py`, which calls `run`, and `versions/`.
"""

from dataclasses import dataclass
from pathlib import Path

from alembic import command, context, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from muster_server.plane.database.dialects import Dialect
from muster_server.plane.database.errors import Refused


@dataclass(frozen=True, slots=True)
class Schema:
    """A system's schema: the folder of its steps, and the table that records which steps have run."""

    steps: Path
    version_table: str


def upgrade(connection: Connection, dialect: Dialect, where: str, schema: Schema) -> None:
    """Run the missing steps. Raises `Refused` if the database has a step that this program does not know."""
    config = Config()
    config.set_main_option("script_location", str(schema.steps).replace("%", "%%"))
    config.set_main_option("version_locations", str(schema.steps / "versions").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = schema.version_table
    script = ScriptDirectory.from_config(config)
    if _is_current(connection, script, where, schema):
        return  # a user without the right to change the schema may still use it
    with dialect.alone(connection):
        if not _is_current(connection, script, where, schema):
            command.upgrade(config, "head")


def run() -> None:
    """Run the steps on the connection that `upgrade` holds; called by the `env.py` of a system's steps."""
    told = context.config.attributes
    context.configure(connection=told["connection"], version_table=told["version_table"])
    with context.begin_transaction():
        context.run_migrations()


def compare_bytes(*tables: str) -> None:
    """A step: compare texts of these tables byte by byte on MySQL and MariaDB. The other databases do so anyway."""
    connection = op.get_bind()
    if connection.dialect.name in {"mysql", "mariadb"}:
        for table in tables:
            op.execute(text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"))


def _is_current(connection: Connection, script: ScriptDirectory, where: str, schema: Schema) -> bool:
    options = {"version_table": schema.version_table}
    has = set(MigrationContext.configure(connection, opts=options).get_current_heads())
    newer = has - {step.revision for step in script.walk_revisions()}
    if newer:
        knows = ", ".join(script.get_heads())
        raise Refused(
            f"{where}: its schema {', '.join(sorted(map(str, newer)))} is newer than this program, which knows {knows}"
        )
    return has == set(script.get_heads())

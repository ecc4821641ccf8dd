"""Upgrades a database to a system's schema, one program at a time, or reports that a newer program has upgraded it.

A system's steps are a folder with `env.py`, which calls `run`, and `versions/`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alembic import command, context, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from muster_server.plane.database.dialects import Dialect
from muster_server.plane.database.errors import Refused

COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "utf8mb4_bin")
"""Those that compare bytes, of MariaDB and of MySQL. With the last one, of a MySQL before 8.0.17, `a` is `a` with spaces
behind it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A system's schema: the folder of its steps, and the table that records which steps have run."""

    steps: Path
    version_table: str


def is_current(connection: Connection, where: str, schema: Schema) -> bool:
    """Whether no step is missing. Raises `Refused` if the database has a step that this program does not know."""
    script = ScriptDirectory.from_config(_config(schema))
    options = {"version_table": schema.version_table}
    has = set(MigrationContext.configure(connection, opts=options).get_current_heads())
    newer = has - {step.revision for step in script.walk_revisions()}
    if newer:
        knows = ", ".join(script.get_heads())
        raise Refused(
            f"{where}: its schema {', '.join(sorted(map(str, newer)))} is newer than this program, which knows {knows}"
        )
    return has == set(script.get_heads())


def upgrade(connection: Connection, dialect: Dialect, where: str, schema: Schema) -> None:
    """Run the missing steps. Raises `Refused` if the database has a step that this program does not know."""
    if is_current(connection, where, schema):
        return  # a user without the right to change the schema may still use it
    config = _config(schema)
    config.attributes["connection"] = connection
    config.attributes["version_table"] = schema.version_table
    with dialect.alone(connection):
        if not is_current(connection, where, schema):
            command.upgrade(config, "head")


def _config(schema: Schema) -> Config:
    config = Config()
    config.set_main_option("script_location", str(schema.steps).replace("%", "%%"))
    config.set_main_option("version_locations", str(schema.steps / "versions").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


def run() -> None:
    """Run the steps on the connection that `upgrade` holds; called by the `env.py` of a system's steps."""
    told = context.config.attributes
    context.configure(connection=told["connection"], version_table=told["version_table"])
    with context.begin_transaction():
        context.run_migrations()


def compare_bytes(*tables: str) -> None:
    """A step: have texts of these tables compared byte by byte at MySQL and MariaDB, spaces at the end included. Others
    do so anyway. Leaves a table alone that does so already: to convert it is to write it again."""
    connection = op.get_bind()
    if connection.dialect.name not in {"mysql", "mariadb"}:
        return
    known = set(connection.scalars(text("SELECT collation_name FROM information_schema.collations")))
    collation = next(each for each in COLLATIONS if each in known)
    has = text(
        "SELECT table_collation FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
    )
    for table in tables:
        if connection.scalar(has, {"name": table}) != collation:
            op.execute(text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}"))

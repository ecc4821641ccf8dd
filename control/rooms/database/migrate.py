"""Upgrades a database to this program's schema, one program at a time, or reports that it is of a newer program."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from control.rooms.database.dialects import Dialect
from control.rooms.database.errors import Refused
from control.rooms.database.schema import VERSION_TABLE

STEPS: Final = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, dialect: Dialect, where: str, steps: Path = STEPS) -> None:
    """Run the missing steps. Raises `Refused` if the database has one that this program does not know."""
    config = Config()
    config.set_main_option("script_location", str(steps).replace("%", "%%"))
    config.set_main_option("version_locations", str(steps / "versions").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    if _is_current(connection, script, where):
        return  # a user that may not change the schema may still use it
    with dialect.alone(connection):
        if not _is_current(connection, script, where):
            command.upgrade(config, "head")


def _is_current(connection: Connection, script: ScriptDirectory, where: str) -> bool:
    has = set(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads())
    newer = has - {step.revision for step in script.walk_revisions()}
    if newer:
        knows = ", ".join(script.get_heads())
        raise Refused(f"{where}: its schema {', '.join(sorted(newer))} is newer than this program, which knows {knows}")
    return has == set(script.get_heads())

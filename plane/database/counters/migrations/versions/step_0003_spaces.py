"""Names that differ in spaces at their end are different, also at MySQL and MariaDB."""

from typing import Final

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0003"
down_revision: Final = "0002"


def upgrade() -> None:
    """Rewrite the tables there; elsewhere nothing changes."""
    compare_bytes(
        "muster_counters",
    )

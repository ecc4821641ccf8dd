"""Names are compared byte by byte, also at MySQL and MariaDB, whose own order ignores case and spaces at the end."""

from typing import Final

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0002"
down_revision: Final = "0001"


def upgrade() -> None:
    """Rewrite the tables there; elsewhere nothing changes."""
    compare_bytes(
        "muster_memberships",
    )

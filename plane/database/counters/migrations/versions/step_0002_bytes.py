"""Names are compared byte by byte on MySQL and MariaDB too, whose default collation makes `Shop` and `shop` equal."""

from typing import Final

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0002"
down_revision: Final = "0001"


def upgrade() -> None:
    """Convert the table on MySQL and MariaDB; elsewhere nothing changes."""
    compare_bytes("muster_counters")

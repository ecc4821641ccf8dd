"""Names are compared byte by byte on MySQL and MariaDB too, whose default collation makes `Shop` and `shop` equal."""

from typing import Final

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0002"
down_revision: Final = "0001"

TABLES: Final = (
    "muster_fleet_tasks",
    "muster_fleet_lead",
    "muster_fleet_runs",
    "muster_fleet_results",
    "muster_fleet_missed",
)


def upgrade() -> None:
    """Convert the tables on MySQL and MariaDB; elsewhere nothing changes."""
    compare_bytes(*TABLES)

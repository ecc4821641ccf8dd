"""Names are compared byte by byte, also at MySQL and MariaDB, whose own order makes `Shop` and `shop` one name."""

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
    """Rewrite the tables there; elsewhere nothing changes."""
    compare_bytes(*TABLES)

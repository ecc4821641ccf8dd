"""Names that differ in spaces at their end are different, also at MySQL and MariaDB."""

from typing import Final

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0003"
down_revision: Final = "0002"


def upgrade() -> None:
    """Rewrite the tables there; elsewhere nothing changes."""
    compare_bytes(
        "muster_fleet_tasks",
        "muster_fleet_lead",
        "muster_fleet_runs",
        "muster_fleet_results",
        "muster_fleet_missed",
    )

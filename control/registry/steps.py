"""The time that each growth in the registry has spent in its step, as one process saw it. No I/O and no clock."""

from collections.abc import Mapping
from typing import Final

from muster_server.control.registry.places import Count

STANDS_S: Final = 600.0
"""After this many seconds a working command has taken the next step, or has given up: `PATIENCE_S` of growth.py, plus a
grace time."""


class Steps:
    """Receives the counts of each map. A step that another coordinator took over starts again at 0: its serial number
    has changed."""

    def __init__(self) -> None:
        self._since: Mapping[str, tuple[int, float]] = {}

    def take(self, counts: Mapping[str, Count], now: float) -> None:
        """Record the counts at `now`."""
        serials = {of: count.serial for of, count in counts.items() if count.growth}
        kept = {of: since for of, since in self._since.items() if since[0] == serials.get(of)}
        self._since = {of: kept.get(of, (serial, now)) for of, serial in serials.items()}

    def seconds(self, now: float) -> dict[str, float]:
        """Seconds in the current step, for each growing layer."""
        return {of: now - began for of, (_, began) in self._since.items()}

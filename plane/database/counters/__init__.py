"""Counters in SQL from which several processes take numbers, for any system."""

from muster_server.plane.database.counters.store import SqlSegments

__all__ = ["SqlSegments"]

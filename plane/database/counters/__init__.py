"""Counters in SQL that several processes take numbers from: of ids, for any system."""

from muster_server.plane.database.counters.store import SqlSegments

__all__ = ["SqlSegments"]

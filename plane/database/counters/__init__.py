"""Counters in SQL that several processes take numbers from: of ids, for any system."""

from plane.database.counters.store import SqlSegments

__all__ = ["SqlSegments"]

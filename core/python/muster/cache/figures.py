"""Counts of one cache in one process."""

from dataclasses import dataclass


@dataclass(slots=True)
class Figures:
    """Counters since the start of the process, except the last three fields."""

    near_hits: int = 0
    """Reads that level 1 answered."""
    far_hits: int = 0
    """Reads that level 2 answered."""
    loads: int = 0
    """Calls of load functions."""
    failures: int = 0
    """Loads that raised."""
    early: int = 0
    """Loads that began while the value was still fresh."""
    refused: int = 0
    """Loads that were not stored: a drop came while they were under way."""
    marked: int = 0
    """Loads that were not stored: a writer's mark stood."""
    stale: int = 0
    """Stale values served while a load was under way."""
    absent: int = 0
    """Loads that found nothing."""
    suspect: int = 0
    """Entries of another life of the Redis, not served."""
    too_long: int = 0
    """Values not stored, since their encoded form is too long."""
    away: int = 0
    """Calls without an answer of the Redis."""
    drops: int = 0
    """Keys that this process dropped or marked."""
    heard: int = 0
    """Keys that other processes dropped."""
    cleared: int = 0
    """Times that level 1 was emptied, after a lost connection, a gap, a malformed message or another life."""
    late_ms: float = 0.0
    """The longest delay of a drop in the last minute, from the Redis to this process, in ms."""
    near_bytes: int = 0
    near_count: int = 0

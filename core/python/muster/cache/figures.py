"""Counts of one cache in one process."""

from dataclasses import dataclass


@dataclass(slots=True)
class Figures:
    """All since the start of the process, but for the last three."""

    near_hits: int = 0
    """Level 1 answered."""
    far_hits: int = 0
    """Level 2 answered."""
    loads: int = 0
    """Calls of a function that loads."""
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
    """Calls that the Redis did not answer."""
    drops: int = 0
    """Keys that this process dropped or marked."""
    heard: int = 0
    """Keys of which it heard."""
    cleared: int = 0
    """Times at which level 1 began empty: a lost connection, a gap, a message that is no drop, another life."""
    late_ms: float = 0.0
    """The latest of the last minute's drops: from the Redis to here."""
    near_bytes: int = 0
    near_count: int = 0

"""Slow, obvious model of `systems/fleet/wheel.py`: each sample of an hour is placed by hand."""

from functools import cache
from hashlib import blake2b

MINUTES = 60


@cache
def phase(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def every(name: str, minutes: int, pick: int, minute: int) -> int:
    """Samples due in a minute: the ones whose number, moved by the phase, divides."""
    return pick if (minute + phase(name)) % minutes == 0 else 0


def per_hour(name: str, samples: int, minute: int) -> int:
    """Samples due in a minute: marks lie at each 60th of samples x 60 points on the hour's ring; a minute has `samples`."""
    return _marks(samples, (minute + phase(name)) % MINUTES)


@cache
def _marks(samples: int, place: int) -> int:
    points = range(place * samples + 1, (place + 1) * samples + 1)
    return sum(point % MINUTES == 0 for point in points)

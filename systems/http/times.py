"""Times in bodies of requests: milliseconds since 1970, or ISO 8601 with a zone.

Knows no route.
"""

import datetime
from typing import Annotated, Final

from msgspec import Meta

from muster_server.systems.http.problems import Problem

MS_MAX: Final = 1 << 53
"""Largest whole number that every decoder of JSON reads exactly."""
Time = Annotated[int, Meta(ge=-MS_MAX, le=MS_MAX)] | datetime.datetime
"""Milliseconds since 1970, or ISO 8601 with a zone."""
TIMES_MS: Final = range(10**11, 10**14)
"""Accepted times in milliseconds since 1970, from 1973 to 5138. A smaller number is in seconds, a larger one in
microseconds."""


def ms(time: Time | None, name: str) -> int | None:
    """Milliseconds since 1970 of the member `name`. Raises `Problem` for a time without a zone, or in another unit."""
    if isinstance(time, datetime.datetime):
        if time.tzinfo is None:
            raise Problem("bad_body", f"{name}: missing zone (expected for example 2027-01-01T00:00:00+08:00)")
        return round(time.timestamp() * 1_000)
    if time is not None and time not in TIMES_MS:
        unit = "seconds" if time < TIMES_MS.start else "microseconds or less"
        raise Problem("bad_body", f"{name}: {time} is in {unit} (expected milliseconds since 1970)")
    return time

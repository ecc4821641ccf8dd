"""Parameters of the query that are about to go: their marks in the description of the API and in answers.

`docs/api-changes.md` has the rule. A route names them in `opt={"deprecated": {"start": Deprecated("after")}}`. Knows no
route.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from email.utils import format_datetime
from typing import Final, NamedTuple

SINCE: Final = date(2026, 11, 29)
SUNSET: Final = date(2027, 6, 1)
DAYS_MIN: Final = 180
"""Shortest time between a mark and the end."""


class Deprecated(NamedTuple):
    """A parameter that still works. `instead`: the one to use."""

    instead: str
    since: date = SINCE
    sunset: date = SUNSET

    @property
    def text(self) -> str:
        """For the description of the API."""
        return f"Deprecated: use `{self.instead}`; works until {self.sunset.isoformat()} at least"


def headers(used: Iterable[Deprecated]) -> list[tuple[bytes, bytes]]:
    """The headers `Deprecation` (RFC 9745) and `Sunset` (RFC 8594) of an answer; empty if nothing deprecated was used.

    The earliest end counts.
    """
    first = min(used, key=lambda each: each.sunset, default=None)
    if first is None:
        return []
    since, sunset = _midnight(first.since), _midnight(first.sunset)
    return [
        (b"deprecation", b"@%d" % int(since.timestamp())),
        (b"sunset", format_datetime(sunset, usegmt=True).encode()),
    ]


Marks = Mapping[str, Deprecated]
"""The deprecated parameters of a route, by name."""


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)

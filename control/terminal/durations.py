"""Durations as commands take them."""

import re
from typing import Final

from muster_server.control.errors import USAGE, UserError

UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LENGTH: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)")


def length(flag: str, text: str) -> int:
    """Milliseconds of `500ms`, `2s`, `30m`, `1h30m`, `7d`. Raises `UserError`."""
    parts = LENGTH.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UserError(f"{flag}: invalid duration {text!r:.40} (expected for example 500ms, 2s, 30m, 1h or 7d)", USAGE)
    return sum(int(number) * UNITS[unit] for number, unit in parts)

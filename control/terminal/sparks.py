"""Sparklines and bars: a series as one line of blocks, a share as a row of them, for a cell of a table.

Only a terminal that can draw blocks gets them: `TERM=dumb` and pipes do not. They have no colour, so `NO_COLOR` needs no
case. Knows no table.
"""

import os
import sys
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""The levels from the lowest value of a series to its highest."""
LATELY_MAX: Final = 30
"""The newest values of a series that are drawn."""
SERIES_MAX: Final = 10_000
"""Series of one table; further ones are not drawn."""


def drawn() -> bool:
    """Whether stdout is a terminal that can draw the blocks."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and encoding == "utf8"


def spark(values: Sequence[float]) -> str:
    """One block for each value; a series that never changed is a low line."""
    if not values:
        return ""
    lowest = min(values)
    span = max(values) - lowest
    return "".join(BLOCKS[round((value - lowest) / span * (len(BLOCKS) - 1)) if span else 0] for value in values)


def bar(value: float, most: float, width: int) -> str:
    """A bar of `value` beside a bar of `most`, which fills the width. In ASCII where a terminal draws no blocks."""
    return ("█" if drawn() else "#") * (max(1, int(width * value / most)) if most > 0 else 0)


class Lately:
    """The newest values of each row of a table that is shown again and again."""

    def __init__(self, length_max: int = LATELY_MAX) -> None:
        self._length_max = length_max
        self._series: dict[Hashable, deque[float]] = {}

    def add(self, row: Hashable, value: float | None) -> str:
        """Add the newest value of a row, if it has one, and return the row's sparkline."""
        if row not in self._series and len(self._series) >= SERIES_MAX:
            return ""
        series = self._series.setdefault(row, deque(maxlen=self._length_max))
        if value is not None:
            series.append(value)
        return spark(series)

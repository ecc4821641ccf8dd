"""Sparklines: a series as one line of blocks, for a cell of a table.

Only a terminal that can draw them gets them: `TERM=dumb` and pipes do not. They have no colour, so `NO_COLOR` needs no
case. Knows no series.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""The levels from the lowest value of a series to its highest."""


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

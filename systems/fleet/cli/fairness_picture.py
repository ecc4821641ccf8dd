"""`muster fleet fairness --svg`: how often clients were picked, as a distribution."""

from typing import Final

from muster_server.control.terminal.svg import Drawing
from muster_server.systems.fleet.questions import Spread

WIDTH: Final = 720
LEFT: Final = 110
BARS_MAX: Final = 60
"""Bars of a picture; of more numbers of picks, neighbours share one."""


def picture(spread: Spread, selector: str) -> str:
    """The file."""
    drawing = Drawing(WIDTH, "How often clients were picked")
    where = f" of {selector}" if selector else ""
    drawing.text(12, 24, f"{spread.members:,} clients{where}, round {spread.round}", width=WIDTH - 24)
    drawing.text(12, 44, f"{spread.owed:,} of them still wait for their turn in it", "faint")
    drawing.text(LEFT - 8, 72, "times picked", "faint", anchor="end")
    drawing.text(LEFT, 72, "clients", "faint")
    rows = _rows(spread)
    drawing.bars(LEFT, 82, rows, WIDTH - LEFT - 120)
    below = 82 + 22 * max(1, len(rows)) + 16
    weights = f"weights: lightest {spread.lightest:.3f}, mean {spread.mean_weight:.3f}; penalty {spread.punishment:.3f}"
    drawing.text(12, below, weights, "faint")
    return str(drawing)


def _rows(spread: Spread) -> list[tuple[str, float]]:
    times = sorted(spread.picked)
    if not times:
        return []
    wide = -(-(times[-1] - times[0] + 1) // BARS_MAX)
    made: dict[int, int] = {}
    for time in times:
        made.setdefault((time - times[0]) // wide, 0)
        made[(time - times[0]) // wide] += spread.picked[time]
    firsts = ((times[0] + bar * wide, count) for bar, count in made.items())
    return [
        (f"{first:,}" if wide == 1 else f"{first:,} to {first + wide - 1:,}", float(count)) for first, count in firsts
    ]

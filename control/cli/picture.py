"""Draws the systems and their roles for the README: `python -m muster_server.control.cli.picture docs/pictures`.

The picture is made from the list of systems, so it follows each added, moved or renamed role.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import ceil
from pathlib import Path
from typing import Final

from muster_server.plane import systems
from muster_server.plane.kind import System

WIDTH: Final = 880
LEFT: Final = 190
"""Width of the column of clients."""
CARD: Final = 62
GAP: Final = 10
CHIP: Final = 22
ABREAST: Final = 2
"""Systems that serve all others, in a row."""
LETTER: Final = 6.7
"""Width of a letter of a role's label, set in a monospaced font of 11 px."""


@dataclass(frozen=True)
class Theme:
    """The colours of a page."""

    ending: str
    ink: str
    faint: str
    card: str
    line: str
    chip: str
    accent: str


THEMES: Final = (
    Theme("", "#1f2328", "#59636e", "#f6f8fa", "#d1d9e0", "#ddf4ff", "#0969da"),
    Theme("-dark", "#f0f6fc", "#9198a1", "#151b23", "#3d444d", "#10243e", "#58a6ff"),
)


def svg(theme: Theme) -> str:
    """The picture: a card for each system that clients reach, with its protocols and roles, and rows for what serves
    all systems."""
    faced = [system for system in systems.named().values() if system.http]
    shared = [system for system in systems.named().values() if not system.http]
    height = (CARD + GAP) * (len(faced) + ceil(len(shared) / ABREAST)) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{theme.ink}">',
        "<title>The systems of Muster and their roles</title>",
    ]
    for number, system in enumerate(faced):
        lines += _card(system, GAP + number * (CARD + GAP), theme)
    lines += _shared(shared, GAP + len(faced) * (CARD + GAP), theme)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _card(system: System, top: int, theme: Theme) -> Iterator[str]:
    """A system: on the left its protocols, on the right its name, purpose and roles."""
    middle = top + CARD // 2
    yield _text(LEFT - 62, middle + 4, " · ".join([*system.protocols, "HTTP"]), theme.faint, anchor="end")
    yield f'<path d="M{LEFT - 54} {middle}H{LEFT - 8}" stroke="{theme.accent}" stroke-width="1.5"/>'
    yield f'<path d="M{LEFT - 14} {middle - 4}l7 4l-7 4z" fill="{theme.accent}"/>'
    yield _box(LEFT, top, WIDTH - LEFT - GAP, CARD, theme.card, theme.line)
    yield _text(LEFT + 14, top + 24, system.title, theme.ink, weight="600")
    yield _text(LEFT + 180, top + 24, system.about, theme.faint)
    yield from _chips([kind.name for kind in system.kinds], LEFT + 14, top + 33, theme)


def _shared(found: list[System], top: int, theme: Theme) -> Iterator[str]:
    """The systems that serve all others, side by side."""
    width = (WIDTH - LEFT - GAP - (ABREAST - 1) * GAP) // ABREAST
    yield _text(LEFT - 14, top + CARD // 2 + 4, "beside all of them", theme.faint, anchor="end")
    for number, system in enumerate(found):
        row, column = divmod(number, ABREAST)
        left, high = LEFT + column * (width + GAP), top + row * (CARD + GAP)
        yield _box(left, high, width, CARD, theme.card, theme.line)
        yield _text(left + 14, high + 24, system.about, theme.ink)
        yield from _chips([kind.name for kind in system.kinds], left + 14, high + 33, theme)


def _chips(names: list[str], left: float, top: int, theme: Theme) -> Iterator[str]:
    for name in names:
        width = len(name) * LETTER + 14
        yield _box(left, top, width, CHIP, theme.chip, "none", radius=11)
        yield (
            f'<text x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle" fill="{theme.accent}" font-size="11" '
            f'font-family="ui-monospace, monospace">{escape(name)}</text>'
        )
        left += width + 7


def _box(left: float, top: int, width: float, height: int, fill: str, line: str, radius: int = 8) -> str:
    place = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} rx="{radius}" fill="{fill}" stroke="{line}"/>'


def _text(left: float, base: int, words: str, fill: str, *, anchor: str = "start", weight: str = "400") -> str:
    place = f'x="{left:.1f}" y="{base}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" font-weight="{weight}">{escape(words)}</text>'


def main() -> int:
    """Write the picture for light and dark pages into the folder given as argument."""
    for theme in THEMES:
        (Path(sys.argv[1]) / f"roles{theme.ending}.svg").write_text(svg(theme))
    return 0


if __name__ == "__main__":
    sys.exit(main())

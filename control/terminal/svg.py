"""Pictures of commands: SVG in one file, for light and dark pages, with nothing loaded from elsewhere.

Owns the colours, the letters and the shapes. Texts may come from strangers: they are escaped here. Knows no cluster.
"""

import re
from collections.abc import Sequence
from html import escape
from typing import Final, Literal

Kind = Literal["ink", "faint", "card", "line", "chip", "accent", "bad"]
COLORS: Final[dict[Kind, tuple[str, str]]] = {
    "ink": ("#1f2328", "#f0f6fc"),
    "faint": ("#59636e", "#9198a1"),
    "card": ("#f6f8fa", "#151b23"),
    "line": ("#d1d9e0", "#3d444d"),
    "chip": ("#ddf4ff", "#10243e"),
    "accent": ("#0969da", "#58a6ff"),
    "bad": ("#cf222e", "#ff7b72"),
}
"""Each kind of a shape on a light page and on a dark one."""
FONT: Final = "system-ui, sans-serif"
LETTER: Final = 7.0
"""Width of a letter of 13 px, about."""
UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that XML does not allow, and those that change the direction of a text."""


class Drawing:
    """A picture that grows downwards."""

    def __init__(self, width: int, title: str) -> None:
        self._width, self._title = width, UNPRINTABLE.sub("\ufffd", title)
        self._height = 0.0
        self._parts: list[str] = []

    def box(self, left: float, top: float, width: float, height: float, kind: Kind, edge: Kind | None = None) -> None:
        """A box with round corners."""
        line = f' class="{kind} {edge}-edge"' if edge else f' class="{kind}"'
        self._parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"{line}/>'
        )
        self._grow(top + height)

    def text(
        self, left: float, base: float, words: str, kind: Kind = "ink", *, anchor: str = "start", width: float = 0.0
    ) -> None:
        """Words on a line. `width`: what does not fit is cut."""
        words = UNPRINTABLE.sub("\ufffd", words)
        fits = int(width / LETTER) if width else len(words)
        shown = words if len(words) <= fits else words[: max(1, fits - 1)] + "…"
        place = f'x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}" class="{kind}"'
        whole = f"<title>{escape(words)}</title>" if shown != words else ""
        self._parts.append(f"<text {place}>{whole}{escape(shown)}</text>")
        self._grow(base + 4)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], kind: Kind = "accent") -> None:
        """A line with a point at its end."""
        (x1, y1), (x2, y2) = start, end
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._parts.append(f'<line {place} class="{kind}-edge" marker-end="url(#{kind})"/>')
        self._grow(max(y1, y2))

    def bars(self, left: float, top: float, rows: Sequence[tuple[str, float]], width: float) -> None:
        """A bar for each row, with its name before and its value behind it."""
        most = max((value for _, value in rows), default=1.0) or 1.0
        for number, (name, value) in enumerate(rows):
            y = top + 22 * number
            self.text(left - 8, y + 12, name, "faint", anchor="end")
            self.box(left, y, max(2.0, value / most * width), 16, "accent")
            self.text(left + max(2.0, value / most * width) + 8, y + 12, f"{value:,.10g}")

    def _grow(self, bottom: float) -> None:
        self._height = max(self._height, bottom)

    def __str__(self) -> str:
        """The file."""
        height = round(self._height + 12)
        styles = [_styles(0), f"@media (prefers-color-scheme: dark) {{ {_styles(1)} }}"]
        points = "".join(
            f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0l8 4l-8 4z" class="{kind}"/></marker>'
            for kind in ("accent", "bad", "faint")
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {height}" width="{self._width}" '
            f'height="{height}" font-family="{FONT}" font-size="13" role="img">\n<title>{escape(self._title)}</title>\n'
            f"<style>{' '.join(styles)}</style>\n<defs>{points}</defs>\n" + "\n".join(self._parts) + "\n</svg>\n"
        )


def _styles(page: int) -> str:
    return " ".join(
        f".{kind} {{ fill: {colors[page]}; }} .{kind}-edge {{ stroke: {colors[page]}; }}"
        for kind, colors in COLORS.items()
    )

"""A report as one page of HTML that needs nothing beside itself: curves of rate, latency, losses and CPU as SVG.

Owns the drawing. Every text in it is escaped.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster_server.control.load.report import Report, summary
from muster_server.control.load.series import PERCENTILES

WIDTH: Final = 900
HEIGHT: Final = 220
LEFT: Final = 70
BOTTOM: Final = 28
TOP: Final = 10
RIGHT: Final = 110
COLORS: Final = ("#0969da", "#cf222e", "#1a7f37", "#9a6700", "#8250df", "#0e7490", "#bf3989", "#57606a")
POINTS_MAX: Final = 1_800
"""Points of a curve; of more, each N-th is drawn."""
STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.grid { stroke: currentColor; opacity: .15; } .line { fill: none; stroke-width: 1.6; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; } .fails { color: #cf222e; font-weight: 600; }
"""

Curves = Mapping[str, Sequence[float | None]]


def page(report: Report) -> str:
    """The whole page."""
    points = report.points[:: max(1, math.ceil(len(report.points) / POINTS_MAX))]
    at = [point.at_s for point in points]
    roles = sorted({role for point in points for role in point.cpu})
    charts: list[tuple[str, str, Curves]] = [
        (
            "Rate",
            "1/s",
            {report.names.sent: [p.sent_per_s for p in points], report.names.done: [p.done_per_s for p in points]},
        ),
        ("Latency", "ms", {name: [p.latency_ms.get(name) for p in points] for name in PERCENTILES}),
        ("Lost or failed so far", "", {"count": [float(p.wrong) for p in points]}),
    ]
    if roles:
        charts.append(("CPU of the servers", "cores", {role: [p.cpu.get(role) for p in points] for role in roles}))
    drawn = "".join(f"<h2>{html.escape(title)}</h2>{chart(at, curves, unit)}" for title, unit, curves in charts)
    said = "".join(f"<p{_fails(line)}>{html.escape(line)}</p>" for line in summary(report))
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{count:,}</td></tr>" for name, count in report.counts.items())
    title = html.escape(f"muster load {report.system}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{html.escape(report.began)} &middot; <code>{html.escape(report.command)}</code></p>{said}{drawn}"
        f"<h2>Counts</h2><table>{rows}</table><details><summary>All figures as JSON</summary><pre>"
        f"{html.escape(msgspec.json.format(msgspec.json.encode(report)).decode())}</pre></details></html>"
    )


def chart(at: Sequence[float], curves: Curves, unit: str) -> str:
    """One chart: time in seconds to the right, the values of each curve upwards from 0."""
    values = [value for curve in curves.values() for value in curve if value is not None]
    end, most = max(at, default=1.0) or 1.0, _rounded(max(values, default=1.0) or 1.0)
    right, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + seconds / end * right

    def y(value: float) -> float:
        return TOP + (1 - value / most) * down

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for step in range(5):
        level = most * step / 4
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + right}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level:,.4g}</text>')
        time = end * step / 4
        parts.append(f'<text x="{x(time):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{time:,.3g} s</text>')
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        for run in _runs(at, curve):
            line = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in run)
            parts.append(f'<polyline class="line" stroke="{color}" points="{line}"/>')
        label = html.escape(f"{name} {unit}".strip())
        parts.append(f'<text x="{LEFT + right + 10}" y="{TOP + 14 + 16 * number}" style="fill:{color}">{label}</text>')
    return "".join(parts) + "</svg>"


def _runs(at: Sequence[float], curve: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """The unbroken parts of a curve: a second without a value leaves a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for seconds, value in zip(at, curve, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((seconds, value))
    return [run for run in runs if run]


def _rounded(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _fails(line: str) -> str:
    return (
        " class=fails"
        if line.startswith("FAILS") or line.isupper() or line.startswith(("NOT ALL", "SOMETHING"))
        else ""
    )

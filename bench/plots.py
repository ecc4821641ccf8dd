"""The figures of reports as plots: SVG, each once for a light and once for a dark page.

The same reports give the same bytes. Needs matplotlib, which the extra `bench` brings; it is loaded when a plot is drawn.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.report import HOLDS, MISSED, WITHIN, Case, Goal, Report
from bench.sweeps import PLACE, Sweep, sweeps
from bench.table import Found, bound, by_goal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN: Final = 9.4
ROW_IN: Final = 0.27
SWEEP_ROWS: Final = 9
SPAN: Final = 8
"""The greatest over the least value from which on an axis goes by powers of ten."""
SATURATED: Final = re.compile(r"(?:(?P<way>\w+): )?muster over (?P<peer>\w+), x100 saturated, deliveries/s")
LEAST: Final = 1 / 10
"""Figures that are better than this part of their bound are drawn here."""
SHORT: Final = {
    "muster in one process": "one process",
    "muster over": "over",
    "redis": "Redis",
    "nats": "NATS",
    "mosquitto": "Mosquitto",
    "deliveries per server CPU second": "deliveries per CPU second",
}
WAYS: Final = {"plain": "loopback", "wire": "loopback as a network"}


@dataclass(frozen=True)
class Theme:
    """The colours of a page."""

    ending: str
    ink: str
    faint: str
    own: str
    peer: str
    missed: str

    @property
    def curves(self) -> tuple[str, ...]:
        """The colours of curves, one after another."""
        return (self.own, self.missed, *CURVES)

    def of(self, verdict: str) -> str:
        return {HOLDS: self.own, WITHIN: self.faint, MISSED: self.missed}[verdict]


CURVES: Final = ("#bf8700", "#1a7f37", "#8250df")
"""Further colours of curves, which suit both pages."""
THEMES: Final = (
    Theme("", "#1f2328", "#8c959f", "#0969da", "#afb8c1", "#cf222e"),
    Theme("-dark", "#e6edf3", "#7d8590", "#58a6ff", "#484f58", "#ff7b72"),
)


def draw(reports: Sequence[Report], folder: Path) -> list[Path]:
    """Write all plots that these reports have figures for, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for theme in THEMES:
        figures = {f"goal-{goal.lower()}": _goal(cases, theme) for goal, cases in by_goal(reports).items()}
        figures["deliveries"] = _deliveries(reports, theme)
        figures |= {sweep.file: _sweep(sweep, theme) for report in reports for sweep in sweeps(report)}
        for name, figure in figures.items():
            if figure is not None:
                written.append(folder / f"{name}{theme.ending}.svg")
                _save(figure, written[-1])
    return written


def rates(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """Deliveries a second at saturation to 100 subscribers, by loopback and by system."""
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        for case in report.cases:
            if (match := SATURATED.fullmatch(case.name)) and case.reference is not None and not case.void:
                systems = found.setdefault(WAYS.get(match["way"] or "", match["way"] or ""), {})
                systems["Muster"] = case.value
                systems[match["peer"].capitalize().replace("Nats", "NATS")] = case.reference
    return found


def _deliveries(reports: Sequence[Report], theme: Theme) -> "Figure | None":
    """Bars, a group for each loopback."""
    found = rates(reports)
    if not found:
        return None
    rows = [(way, system, rate) for way, systems in found.items() for system, rate in systems.items()]
    figure, axes = _figure(len(rows) + len(found), theme)
    place, places, labels = 0.0, [], []
    for way, systems in found.items():
        axes.text(0, place, way, color=theme.ink, va="center", fontweight="bold", transform=axes.get_yaxis_transform())
        place += 1
        for system, rate in systems.items():
            axes.barh(place, rate / 1e6, color=theme.own if system == "Muster" else theme.peer, height=0.7)
            axes.text(rate / 1e6, place, f" {rate / 1e6:.2f} M", color=theme.ink, va="center")
            places.append(place)
            labels.append(system)
            place += 1
    axes.set_yticks(places, labels)
    axes.set_xlim(0, 1.12 * max(rate for _, _, rate in rows) / 1e6)
    axes.set_xlabel("deliveries a second, in millions: one publisher, 100 subscribers, saturated")
    axes.invert_yaxis()
    return figure


def _sweep(sweep: Sweep, theme: Theme) -> "Figure":
    """A curve for each system, over the size. An axis whose values span more than a power of ten goes by powers of ten."""
    figure, axes = _figure(SWEEP_ROWS, theme)
    for number, (name, curve) in enumerate(sweep.curves.items()):
        color = theme.curves[number % len(theme.curves)]
        axes.plot(list(curve), list(curve.values()), color=color, marker="o", markersize=4, linewidth=1.6, label=name)
    sizes = sorted({size for curve in sweep.curves.values() for size in curve})
    values = [value for curve in sweep.curves.values() for value in curve.values()]
    if sizes[0] > 0 and sizes[-1] / sizes[0] >= SPAN:
        axes.set_xscale("log")
    if min(values) > 0 and max(values) / min(values) >= SPAN:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max(values) * 1.1)
    axes.minorticks_off()
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    axes.set_title(sweep.title, color=theme.ink, fontsize=9, loc="left")
    axes.set_xlabel(PLACE)
    axes.grid(axis="y", color=theme.faint, linewidth=0.4, alpha=0.5)
    if len(sweep.curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=theme.ink, fontsize=8)
    return figure


def _goal(cases: Sequence[Found], theme: Theme) -> "Figure | None":
    """How far each figure of a goal is from its bound: median and range, left of the line where the goal holds."""
    rows = [(_short(case.name), case) for _, case in cases if bound(case) != 0 and not case.void]
    if not rows:
        return None
    figure, axes = _figure(len(rows), theme)
    for place, (_, case) in enumerate(rows):
        low, middle, high = (max(each, LEAST) for each in _parts_of_bound(case))
        color = theme.of(case.verdict)
        axes.plot([low, high], [place, place], color=color, linewidth=2.2, alpha=0.55, solid_capstyle="round")
        axes.plot([middle], [place], color=color, marker="o" if case.verdict != MISSED else "X", markersize=6)
    axes.axvline(1, color=theme.ink, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(LEAST * 0.9, 2.2)
    axes.set_xticks([1 / 8, 1 / 4, 1 / 2, 1, 2], ["1/8", "1/4", "1/2", "bound", "2"])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("cost as a part of the bound; crosses miss the goal")
    return figure


def _parts_of_bound(case: Case) -> tuple[float, float, float]:
    """Least, median and greatest part of the bound; above 1 misses, also where the goal is a least value."""
    assert case.goal
    goal = Goal.parsed(case.goal)
    middle = case.value if case.ratio is None else case.ratio
    if goal.sense in {">=", ">"}:
        return goal.bound / case.max, goal.bound / middle, goal.bound / case.min
    return case.min / goal.bound, middle / goal.bound, case.max / goal.bound


def _short(name: str) -> str:
    """The name of a case as a label."""
    for long, short in SHORT.items():
        name = name.replace(long, short)
    return name


def _figure(rows: int, theme: Theme) -> "tuple[Figure, Axes]":
    """An empty figure of this many rows, in the colours of the theme."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, 0.8 + ROW_IN * rows), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.tick_params(colors=theme.ink, length=0, labelsize=8)
    axes.xaxis.label.set_color(theme.ink)
    axes.xaxis.label.set_fontsize(9)
    axes.grid(axis="x", color=theme.faint, linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure, axes


def _save(figure: "Figure", file: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "muster", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})

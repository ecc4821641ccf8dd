"""The result of a bench: one document of cases, as a table or as JSON, and whether its goals hold.

A goal is a bound on a ratio of two figures of the same rounds. Figures without a goal are printed, never judged.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from typing import Any, Literal, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.rounds import Results, Series

QUICK_MARGIN = 0.10  # the gates of a quick run are this much wider


HOLDS, WITHIN, MISSED, VOID = "holds", f"within {QUICK_MARGIN * 100:.0f} %", "missed", "void"
STYLES = {HOLDS: "green", WITHIN: "yellow", MISSED: "bold red", VOID: "dim"}
Sense = Literal[">=", "<=", ">", "<"]


@dataclass(frozen=True)
class Goal:
    """`Goal("PF-1", ">=", 0.90)`: an id of the performance goals (`docs/rules.md`) and a bound on the ratio."""

    id: str
    sense: Sense
    bound: float

    def holds(self, ratio: float, *, quick: bool = False) -> bool:
        at_least = self.sense in {">=", ">"}
        margin = (-QUICK_MARGIN if at_least else QUICK_MARGIN) if quick else 0.0
        bound = self.bound * (1 + margin)
        strict = self.sense in {">", "<"} and not quick
        if at_least:
            return ratio > bound if strict else ratio >= bound
        return ratio < bound if strict else ratio <= bound

    @classmethod
    def parsed(cls, text: str) -> "Goal":
        """The goal that was written as `PF-1 >= 0.9`."""
        name, sense, bound = text.split(" ")
        return cls(name, cast(Sense, sense), float(bound))

    def __str__(self) -> str:
        return f"{self.id} {self.sense} {self.bound:g}"


@dataclass(frozen=True)
class Case:
    """One line. `min` and `max` are the spread of the ratio over the rounds, or of the value if nothing is compared.

    `value` and `reference` are medians; `ratio` is the median of the rounds' ratios.
    """

    name: str
    goal: str | None
    value: float
    reference: float | None
    ratio: float | None
    min: float
    max: float
    holds: bool | None
    void: str = ""
    """The reason for which it has no figure. Then it is not judged."""

    @property
    def verdict(self) -> str:
        """The judgement in words; empty without a goal. A miss that only the margin of a quick run allows is none that
        holds."""
        if self.void:
            return VOID
        if self.goal is None or self.holds is None:
            return ""
        judged = self.value if self.ratio is None else self.ratio
        if not self.holds:
            return MISSED
        return HOLDS if Goal.parsed(self.goal).holds(judged) else WITHIN

    @classmethod
    def plain(cls, name: str, series: Series) -> "Case":
        return cls(name, None, series.median, None, None, series.min, series.max, None, series.void)

    @classmethod
    def compared(
        cls, name: str, series: Series, reference: Series, goal: Goal | None = None, *, quick: bool = False
    ) -> "Case":
        ratios = series.over(reference)
        return cls(
            name,
            str(goal) if goal else None,
            series.median,
            reference.median,
            ratios.median,
            ratios.min,
            ratios.max,
            goal.holds(ratios.median, quick=quick) if goal and not ratios.void else None,
            ratios.void,
        )

    @classmethod
    def limit(cls, name: str, series: Series, goal: Goal, *, quick: bool = False) -> "Case":
        """A goal on the figure itself, if it is a ratio or a count already (loss, a share of the peak)."""
        held = None if series.void else goal.holds(series.median, quick=quick and goal.bound != 0)
        return cls(name, str(goal), series.median, None, None, series.min, series.max, held, series.void)

    @classmethod
    def no_worse(cls, name: str, series: Series, reference: Series, goal: Goal, *, quick: bool = False) -> "Case":
        """A goal on a ratio about 1, which holds only if the two ranges also meet: worse in every round is worse."""
        case = cls.compared(name, series, reference, goal, quick=quick)
        if case.void:
            return case
        meets = series.max >= reference.min if goal.sense in {">=", ">"} else series.min <= reference.max
        return replace(case, holds=bool(case.holds) and meets)

    @classmethod
    def worst(cls, name: str, series: Series, goal: Goal, *, quick: bool = False) -> "Case":
        """A goal on every round, not on most."""
        return cls.limit(f"{name}, worst round", Series((series.max,), series.void), goal, quick=quick)

    @classmethod
    def judged(
        cls, results: Results, entry: str, title: str, goals: Mapping[str, Goal], *, quick: bool
    ) -> Iterator["Case"]:
        """All figures of an entry. A figure that must be 0 must be 0 in every round."""
        for figure in results.figures(entry):
            name, series, goal = f"{title}: {figure}", results.series(entry, figure), goals.get(figure)
            if goal is None:
                yield cls.plain(name, series)
            elif goal.bound == 0:
                yield cls.worst(name, series, goal, quick=quick)
            else:
                yield cls.limit(name, series, goal, quick=quick)


@dataclass(frozen=True)
class Report:
    bench: str
    machine: Mapping[str, object]
    cases: tuple[Case, ...]
    void: str = ""
    """Why the run was given up. Its cases are those of the finished rounds, and judge nothing."""

    @property
    def holds(self) -> bool:
        """True if no goal was missed."""
        return all(case.holds is not False for case in self.cases)

    @property
    def gaps(self) -> str:
        """The number of figures that are void, and a reason; empty if none is, or if all was given up."""
        void = [case.void for case in self.cases if case.void]
        return f"{len(void)} of {len(self.cases)} figures are void: {void[0]}" if void else ""

    def as_json(self) -> str:
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The document. `void` is in that of a run that was given up."""
        void = {"void": self.void} if self.void else {}
        return {
            "bench": self.bench,
            "machine": dict(self.machine),
            "cases": [_plain(case) for case in self.cases],
        } | void

    @classmethod
    def from_json(cls, text: str) -> "Report":
        document: dict[str, Any] = json.loads(text)
        cases = tuple(Case(**_numbers(case)) for case in document["cases"])
        return cls(document["bench"], document["machine"], cases, document.get("void", ""))

    @classmethod
    def joined(cls, parts: Mapping[str, "Report"]) -> "Report":
        """Merge several reports of one bench; the key goes before the names of its cases."""
        first = next(iter(parts.values()))
        machine = {key: value for key, value in first.machine.items() if key != "run"}
        runs = {label: part.machine.get("run") for label, part in parts.items()}
        cases = _labelled((label, case) for label, part in parts.items() for case in part.cases)
        return cls(first.bench, {**machine, "run": runs}, tuple(cases))

    def show(self, console: Console) -> None:
        judged = any(case.goal for case in self.cases)
        table = Table(title=f"muster bench {self.bench}", title_justify="left", header_style="bold", box=SIMPLE_HEAD)
        table.add_column("case", overflow="fold", min_width=24)
        for column in ("value", "against", "ratio", "min..max"):
            table.add_column(column, justify="right", no_wrap=True)
        if judged:
            table.add_column("goal", no_wrap=True)
        for case in self.cases:
            verdict = f"[{STYLES[case.verdict]}]{case.verdict}[/]" if case.verdict else ""
            cells = [
                case.name,
                number(case.value),
                "" if case.reference is None else number(case.reference),
                "" if case.ratio is None else "-" if case.void else f"{case.ratio:.3g}",
                case.void or f"{number(case.min)}..{number(case.max)}",
            ]
            table.add_row(*cells, *([f"{case.goal} {verdict}" if case.goal else ""] if judged else []))
        console.print(table)
        console.print("; ".join(_words(self.machine)), style="dim", highlight=False)


def _labelled(cases: Iterable[tuple[str, Case]]) -> Iterable[Case]:
    for label, case in cases:
        yield Case(**{**asdict(case), "name": f"{label}: {case.name}"})


def _plain(case: Case) -> dict[str, Any]:
    """A case as JSON, which has no number for what is void."""
    figures = {key: None if isinstance(value, float) and isnan(value) else value for key, value in asdict(case).items()}
    return {key: value for key, value in figures.items() if key != "void" or value}


def _numbers(case: Mapping[str, Any]) -> dict[str, Any]:
    return {**case, **{key: nan for key in ("value", "min", "max") if case[key] is None}}


def _words(facts: Mapping[str, object]) -> Iterable[str]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{word}" for word in _words(value))
        else:
            yield f"{key} {value}"


def number(value: float) -> str:
    """At least three digits; from a hundred thousand up in thousands and millions. A dash for none."""
    if isnan(value):
        return "-"
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e5):
            return f"{value / unit:.3g}{name}" if abs(value) < 1000 * unit else f"{value / unit:,.0f}{name}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

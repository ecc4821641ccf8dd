"""The goals of several reports as Markdown, for documents: a heading in words for each goal, and its figures below it.

Judges nothing itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from bench.goals import goals
from bench.report import HOLDS, MISSED, Case, Goal, Report, number
from bench.sweeps import PLACE, sweeps

HEAD = ("what", "bound", "value", "against", "ratio", "min..max", "")

Found = tuple[str, Case]
"""A case with the name of its bench."""


def by_goal(reports: Sequence[Report]) -> dict[str, list[Found]]:
    """The cases of each goal, ordered by the goal's id."""
    found: dict[str, list[Found]] = {}
    for report in reports:
        for case in report.cases:
            if case.goal:
                found.setdefault(case.goal.partition(" ")[0], []).append((report.bench, case))
    return dict(sorted(found.items(), key=lambda each: _order(each[0])))


def markdown(reports: Sequence[Report], plots: str | None = None) -> str:
    """A section for each goal; above, how many figures hold; below, the machine and the method of each report.

    `plots` is the folder of the goals' plots, as seen from the page.
    """
    found = by_goal(reports)
    verdicts = [case.verdict for cases in found.values() for _, case in cases]
    lines = [
        f"{verdicts.count(HOLDS)} of {len(verdicts)} figures hold their goals, {verdicts.count(MISSED)} miss them."
    ]
    for goal, cases in found.items():
        lines += ["", *_section(goal, cases, plots)]
    if plots:
        lines += _curves(reports, plots)
    return "\n".join([*lines, "", *_machines(reports)])


def _curves(reports: Sequence[Report], plots: str) -> Iterator[str]:
    """The plots of all sweeps."""
    found = [sweep for report in reports for sweep in sweeps(report)]
    if found:
        yield from ("", "### Curves", "", f"`{PLACE}` stands for the size on the axis.")
    for sweep in found:
        yield from ("", picture(f"{plots}/{sweep.file}", sweep.title))


def _section(goal: str, cases: Sequence[Found], plots: str | None) -> Iterator[str]:
    """The missed figures first, then the others, both in the order of the reports."""
    words = goals().get(goal)
    yield f"### {words.what[:1].upper()}{words.what[1:]}" if words else f"### {goal.capitalize()}"
    yield ""
    if words:
        yield f"Goal ({goal}): {words.bound}."
        yield ""
    if plots and any(bound(case) != 0 for _, case in cases):
        yield picture(f"{plots}/goal-{goal.lower()}", "each figure beside its bound")
        yield ""
    yield _line(HEAD)
    yield _line(["---"] * len(HEAD))
    for bench, case in sorted(cases, key=lambda each: each[1].verdict != MISSED):
        yield _line(_row(bench, case))


def bound(case: Case) -> float:
    """The bound of a case with a goal. A bound of 0 has no ratio to it that a plot could show."""
    assert case.goal
    return Goal.parsed(case.goal).bound


def picture(path: str, alternative: str) -> str:
    """The drawing of this name, in the colours of the reader's page."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{path}-dark.svg">'
    return f'<picture>{dark}<img alt="{alternative}" src="{path}.svg"></picture>'


def _row(bench: str, case: Case) -> list[str]:
    assert case.goal
    return [
        f"{bench}: {case.name}",
        case.goal.partition(" ")[2],
        number(case.value),
        "" if case.reference is None else number(case.reference),
        "" if case.ratio is None else number(case.ratio),
        f"{number(case.min)}..{number(case.max)}",
        f"**{case.verdict}**" if case.verdict == MISSED else case.verdict,
    ]


def _order(goal: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", goal)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _machines(reports: Sequence[Report]) -> Iterator[str]:
    """A line for each machine, usually one."""
    benches: dict[str, list[str]] = {}
    for report in reports:
        benches.setdefault(_machine(report.machine), []).append(f"`{report.bench}`: {_run(report.machine['run'])}")
    for machine, runs in benches.items():
        yield f"{machine}. {'; '.join(dict.fromkeys(runs))}."


def _machine(facts: Mapping[str, object]) -> str:
    gib = float(str(facts["memory_bytes"])) / (1 << 30)
    kernel = str(facts["kernel"]).partition("-")[0]
    return f"{facts['cpu']}, {facts['usable_cores']} cores, {gib:.0f} GiB, Linux {kernel}, Python {facts['python']}"


def _run(facts: object) -> str:
    """The method of a report; a report of several loopbacks has one of each."""
    assert isinstance(facts, Mapping)
    if "rounds" not in facts:
        return _run(next(iter(facts.values())))
    quick = ", `--quick`" if facts["quick"] else ""
    return f"median of {facts['rounds']} rounds{quick}"

"""The goals of several reports as a Markdown table, for documents. Judges nothing itself."""

import re
from collections.abc import Iterator, Mapping, Sequence

from bench.report import MISSED, Case, Report, number

HEAD = ("id", "what", "goal", "value", "against", "ratio", "min..max", "")


def markdown(reports: Sequence[Report]) -> str:
    """One row for each goal, ordered by its id; below, the machine and the method of each report."""
    rows = [_row(report.bench, case, case.goal) for report in reports for case in report.cases if case.goal]
    rows.sort(key=lambda row: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row[0])])
    lines = [_line(HEAD), _line(["---"] * len(HEAD)), *map(_line, rows), ""]
    return "\n".join([*lines, *_machines(reports)])


def _row(bench: str, case: Case, goal: str) -> list[str]:
    name, _, bound = goal.partition(" ")
    return [
        name,
        f"{bench}: {case.name}",
        bound,
        number(case.value),
        "" if case.reference is None else number(case.reference),
        "" if case.ratio is None else number(case.ratio),
        f"{number(case.min)}..{number(case.max)}",
        f"**{case.verdict}**" if case.verdict == MISSED else case.verdict,
    ]


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

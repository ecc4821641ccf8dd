"""The table of goals: its rows, their order, and the same columns as in the README."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import cli
from bench.report import Case, Goal, Report
from bench.rounds import Series
from bench.table import HEAD, markdown
from tests.documents import ROOT, cells

RUN: dict[str, Any] = {"loopback": "plain", "rounds": 5, "quick": False}
MACHINE: dict[str, Any] = {
    "cpu": "abacus",
    "usable_cores": 2,
    "memory_bytes": 24 << 30,
    "kernel": "6.1.0-44-amd64",
    "python": "3.11.7",
    "run": RUN,
}
HELD = Case.compared("muster over redis", Series((4e6, 5e6)), Series((2e6, 2e6)), Goal("PF-10", ">", 1.0))
MISSED = Case.limit("age | ms", Series((300.0,)), Goal("PF-8", "<=", 250))
PLAIN = Case.plain("redis", Series((1.0,)))


def report(bench: str, *cases: Case, **machine: object) -> Report:
    return Report(bench, MACHINE | machine, cases)


def test_each_goal_is_a_row_in_the_order_of_the_ids_and_nothing_else_is() -> None:
    page = markdown([report("peers", PLAIN, HELD), report("overload", MISSED)])
    assert list(cells(page, *HEAD)) == [
        ["PF-8", "overload: age | ms", "<= 250", "300", "", "", "300..300", "**missed**"],
        ["PF-10", "peers: muster over redis", "> 1", "4.5M", "2M", "2.25", "2..2.5", "holds"],
    ]


@pytest.mark.parametrize(
    ("goal", "figures", "verdict"),
    [
        (Goal("PF-6", "<=", 0.95), (0.95,), "holds"),
        (Goal("PF-6", "<=", 0.95), (0.965,), "within 10 %"),
        (Goal("PF-6", "<=", 0.95), (1.05,), "**missed**"),
        (Goal("PF-5", ">", 1.0), (0.976,), "within 10 %"),
        (Goal("PF-5", ">", 1.0), (1.0,), "within 10 %"),
        (Goal("PF-5", "<=", 0), (1.0,), "**missed**"),
    ],
)
def test_a_miss_within_the_tolerance_of_a_quick_run_is_shown_as_such(
    goal: Goal, figures: tuple[float, ...], verdict: str
) -> None:
    for case in (
        Case.limit("x", Series(figures), goal, quick=True),
        Case.compared("x", Series(tuple(10 * each for each in figures)), Series((10.0,)), goal, quick=goal.bound != 0),
    ):
        (row,) = cells(markdown([report("peers", case)]), *HEAD)
        assert row[-1] == verdict


def test_a_machine_is_one_line_that_says_how_each_bench_ran() -> None:
    quick = {"plain": RUN | {"quick": True, "rounds": 3}, "wire": RUN | {"quick": True, "rounds": 3}}
    page = markdown([report("peers", run=quick), report("overload", load=0.5), report("hops", cpu="fast abacus")])
    assert page.splitlines()[-2:] == [
        "abacus, 2 cores, 24 GiB, Linux 6.1.0, Python 3.11.7. `peers`: median of 3 rounds, `--quick`; "
        "`overload`: median of 5 rounds.",
        "fast abacus, 2 cores, 24 GiB, Linux 6.1.0, Python 3.11.7. `hops`: median of 5 rounds.",
    ]


def test_the_command_reads_what_the_benches_print(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    reports = [report("peers", HELD), report("overload", MISSED)]
    for file, each in zip(files, reports, strict=True):
        file.write_text(each.as_json())
    done = CliRunner().invoke(cli.app, ["table", *map(str, files)])
    assert (done.exit_code, done.stdout) == (0, markdown(reports) + "\n")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"bench": "x", "machine": {}, "cases": [{}]}'])
def test_a_file_that_is_no_document_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes").write_text(text)
    done = CliRunner().invoke(cli.app, ["table", str(tmp_path / "notes")])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "notes: no document of a bench" in done.stderr


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli.app, ["table", str(tmp_path / "none")]).exit_code == 2


def test_the_readme_has_such_a_table_between_its_marks() -> None:
    _, begun, rest = (ROOT / "README.md").read_text().partition("<!-- figures -->\n")
    figures, ended, _ = rest.partition("<!-- end of figures -->")
    assert begun
    assert ended
    rows = list(cells(figures, *HEAD))
    assert rows
    assert {row[-1] for row in rows} <= {"holds", "within 10 %", "**missed**"}

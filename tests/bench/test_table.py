"""The tables and plots of goals: their rows and order, and that `docs/benchmarks.md` has them as they are drawn."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import cli
from bench.goals import goals
from bench.plots import THEMES, draw, rates
from bench.report import Case, Goal, Report
from bench.rounds import Series
from bench.table import HEAD, by_goal, markdown
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
    assert page.startswith("1 of 2 figures hold their goals, 1 miss them.\n")
    assert list(cells(page, *HEAD)) == [
        ["overload: age | ms", "<= 250", "300", "", "", "300..300", "**missed**"],
        ["peers: muster over redis", "> 1", "4.5M", "2M", "2.25", "2..2.5", "holds"],
    ]
    assert re.findall("^### (.+)$", page, re.MULTILINE) == [
        "Twice the capacity",
        "1 % lost, 1 % reordered, 1 % doubled on every link",
    ]
    assert "\nGoal (PF-10): each message once, >= 0.9 of the throughput.\n" in page


def test_the_missed_figures_of_a_goal_come_first() -> None:
    late = Case.limit("late", Series((20.0,)), Goal("PF-8", "<=", 30))
    page = markdown([report("overload", late, MISSED)])
    assert [row[-1] for row in cells(page, *HEAD)] == ["**missed**", "holds"]


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


@pytest.fixture(scope="module")
def kept() -> list[Report]:
    """The documents of the figures in `docs/benchmarks.md`."""
    return [Report.from_json(file.read_text()) for file in sorted((ROOT / "docs" / "figures").glob("*.json"))]


def test_the_page_has_the_tables_of_its_documents_between_its_marks(kept: list[Report]) -> None:
    _, begun, rest = (ROOT / "docs" / "benchmarks.md").read_text().partition("<!-- figures -->\n")
    figures, ended, _ = rest.partition("<!-- end of figures -->")
    assert begun
    assert ended
    assert figures == markdown(kept, "pictures") + "\n"
    assert {row[-1] for row in cells(figures, *HEAD)} <= {"holds", "within 10 %", "**missed**"}


def test_every_goal_of_the_page_stands_there_in_words(kept: list[Report]) -> None:
    bare = re.compile(r"^#+ PF-\d+$|^\| PF-\d+ \|", re.MULTILINE)
    assert bare.findall(markdown([report("peers", HELD)])) == []
    assert bare.findall((ROOT / "docs" / "benchmarks.md").read_text()) == []
    assert {goal for goal in by_goal(kept) if goal.startswith("PF-")} <= goals().keys()


def test_a_plot_is_the_same_each_time_and_the_one_in_the_documents(kept: list[Report], tmp_path: Path) -> None:
    drawn = draw(kept, tmp_path)
    assert {file.name for file in drawn} >= {"deliveries.svg", "deliveries-dark.svg", "goal-pf-6.svg"}
    for file in drawn:
        assert file.read_text() == (ROOT / "docs" / "pictures" / file.name).read_text(), (
            f"{file.name} is not current: muster bench table docs/figures/*.json --plot docs/pictures"
        )


@pytest.mark.parametrize(("value", "missed"), [(300.0, True), (20.0, False)])
def test_a_plot_has_a_missed_figure_in_the_colour_of_a_miss(value: float, missed: bool, tmp_path: Path) -> None:
    draw([report("overload", Case.limit("age", Series((value,)), Goal("PF-8", "<=", 250)))], tmp_path)
    page = (tmp_path / "goal-pf-8.svg").read_text()
    assert (THEMES[0].missed in page, THEMES[0].own in page) == (missed, not missed)


def test_bars_show_the_rates_of_all_systems(kept: list[Report]) -> None:
    assert {way: list(systems) for way, systems in rates(kept).items()} == {
        way: ["Muster", "Redis", "NATS", "Mosquitto"] for way in ("loopback", "loopback as a network")
    }


def test_the_command_draws_into_a_folder_and_links_it(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(report("overload", MISSED).as_json())
    words = ["table", str(tmp_path / "one"), "--plot", str(tmp_path / "plots")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0
    assert sorted(file.name for file in (tmp_path / "plots").iterdir()) == ["goal-pf-8-dark.svg", "goal-pf-8.svg"]
    assert 'src="plots/goal-pf-8.svg"' in done.stdout

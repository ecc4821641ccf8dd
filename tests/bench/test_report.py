"""Rounds, ratios, gates and the document: what decides whether a goal holds."""

import json
import math
from collections.abc import Iterator
from io import StringIO
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import machine
from bench.progress import bar, silent
from bench.report import Case, Goal, Report, number
from bench.rounds import Entry, Sample, Series, VoidRunError, interleave
from bench.table import markdown

AT_LEAST = Goal("PF-1", ">=", 0.90)
AT_MOST = Goal("PF-2", "<=", 1.35)


def constant(name: str, value: float, log: list[str] | None = None) -> Entry:
    def once() -> Sample:
        if log is not None:
            log.append(name)
        return Sample({"ns": value})

    return Entry(name, once)


def test_entries_take_turns_and_each_round_begins_with_another() -> None:
    log: list[str] = []
    interleave([constant(name, 1.0, log) for name in "abc"], 3)
    assert log == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_median_and_spread_are_those_of_the_rounds() -> None:
    values: Iterator[float] = iter([5.0, 1.0, 3.0])
    results = interleave([Entry("x", lambda: Sample({"ns": next(values)}))], 3)
    series = results.series("x", "ns")
    assert (series.median, series.min, series.max) == (3.0, 1.0, 5.0)
    assert list(results.figures("x")) == ["ns"]


def test_a_ratio_is_taken_round_by_round() -> None:
    """The medians would say 2; in every single round it was 1."""
    slow_machine = Series((1.0, 2.0, 4.0))
    assert slow_machine.over(slow_machine).values == (1.0, 1.0, 1.0)
    assert Series((1.0, 6.0, 4.0)).over(Series((1.0, 2.0, 4.0))).median == 1.0
    assert math.isinf(Series((1.0,)).over(Series((0.0,))).median)
    with pytest.raises(ValueError, match="shorter"):
        Series((1.0, 2.0)).over(Series((1.0,)))


@pytest.mark.parametrize(
    ("sense", "bound", "mine", "holds"),
    [
        ("<=", 1.1, (9.0, 10.4, 11.0), True),
        ("<=", 1.1, (10.3, 10.4, 11.0), False),  # a little worse, but always
        ("<=", 1.1, (9.0, 12.0, 13.0), False),
        ("<=", 1.1, (5.0, 5.0, 5.0), True),
        (">=", 0.91, (9.0, 9.6, 9.9), True),
        (">=", 0.91, (9.0, 9.6, 9.7), False),
        (">=", 0.91, (20.0, 20.0, 20.0), True),
    ],
)
def test_what_may_not_get_worse_may_be_better_or_about_the_same(
    sense: Literal["<=", ">="], bound: float, mine: tuple[float, ...], holds: bool
) -> None:
    case = Case.no_worse("x", Series(mine), Series((9.8, 10.0, 10.2)), Goal("PF-11", sense, bound))
    assert case.holds is holds


def test_a_void_run_is_repeated_twice_and_then_has_no_figures() -> None:
    runs: list[int] = []

    def void_until(count: int) -> Entry:
        def once() -> Sample:
            runs.append(1)
            return Sample({"ns": 7.0}, "3 ms late" if len(runs) < count else "")

        return Entry("x", once)

    assert interleave([void_until(3)], 1).series("x", "ns").values == (7.0,)
    assert len(runs) == 3
    runs.clear()
    results = interleave([constant("y", 5.0), void_until(9)], 3)
    assert len(runs) == 5  # three tries, then one in each round
    assert results.series("y", "ns").values == (5.0, 5.0, 5.0)
    void = results.series("x", "ns")
    assert (void.void, list(results.figures("x"))) == ("3 ms late", ["ns"])
    runs.clear()
    with pytest.raises(VoidRunError, match="x: 3 ms late; try again"):
        interleave([void_until(9)], 2)


def test_void_rounds_do_not_count() -> None:
    runs: list[int] = []

    def once() -> Sample:
        runs.append(1)
        return Sample({"ns": float(len(runs))}, "late" if len(runs) <= 3 else "")

    results = interleave([Entry("x", once), constant("y", 2.0)], 3)
    mine, theirs = results.series("x", "ns"), results.series("y", "ns")
    assert (mine.void, mine.median, mine.min, mine.max) == ("", 4.5, 4.0, 5.0)
    case = Case.compared("z", mine, theirs, Goal("PF-1", ">=", 2.0))
    assert (case.value, case.ratio, case.holds, case.void) == (4.5, 2.25, True, "")


def test_a_void_figure_is_shown_and_written_and_not_judged() -> None:
    void, valid = Series((math.nan,), "3 ms late"), Series((2.0,))
    goal = Goal("PF-1", ">=", 2.0)
    cases = (
        Case.plain("a", void),
        Case.limit("b", void, goal),
        Case.worst("c", void, goal),
        Case.compared("d", void, valid, goal),
        Case.compared("e", valid, void, goal),
        Case.no_worse("f", valid, void, goal),
        Case.plain("g", valid),
    )
    assert [(case.verdict, case.holds, case.void) for case in cases[:-1]] == [("void", None, "3 ms late")] * 6
    report = Report(
        "x",
        machine.describe().as_dict() | {"run": {"rounds": 1, "quick": False, "loopback": "host", "payload_bytes": 200}},
        cases,
    )
    assert (report.holds, report.gaps) == (True, "6 of 7 figures are void: 3 ms late")
    document = report.as_json()
    assert "NaN" not in document
    again = Report.from_json(document)
    assert (again.as_json(), again.gaps) == (document, report.gaps)
    console = Console(width=120, record=True, file=StringIO())
    report.show(console)
    assert console.export_text().count("3 ms late") == 6
    assert "nan" not in console.export_text() + markdown([report])


@pytest.mark.parametrize(
    ("goal", "ratio", "quick", "holds"),
    [
        (AT_LEAST, 0.90, False, True),
        (AT_LEAST, 0.89, False, False),
        (AT_LEAST, 0.82, True, True),
        (AT_LEAST, 0.80, True, False),
        (AT_MOST, 1.35, False, True),
        (AT_MOST, 1.36, False, False),
        (AT_MOST, 1.48, True, True),
        (AT_MOST, 1.49, True, False),
        (Goal("PF-5", ">", 1.0), 1.0, False, False),
        (Goal("PF-5", ">", 1.0), 1.01, False, True),
        (Goal("PF-7", "<", 1.0), 1.0, False, False),
        (AT_LEAST, math.nan, False, False),
        (AT_MOST, math.nan, True, False),
        (AT_MOST, math.inf, True, False),
    ],
)
def test_a_gate_stands_where_it_says(goal: Goal, ratio: float, quick: bool, holds: bool) -> None:
    assert goal.holds(ratio, quick=quick) is holds


@given(st.sampled_from([">=", "<=", ">", "<"]), st.floats(0.01, 100), st.floats(0, 200))
def test_a_quick_gate_is_never_narrower(sense: str, bound: float, ratio: float) -> None:
    goal = Goal("PF-0", sense, bound)  # type: ignore[arg-type]
    assert goal.holds(ratio, quick=True) >= goal.holds(ratio)


def test_a_compared_case_carries_both_medians_and_the_spread_of_the_ratio() -> None:
    case = Case.compared("x", Series((9.0, 10.0, 8.0)), Series((10.0, 10.0, 10.0)), AT_LEAST)
    assert case == Case("x", "PF-1 >= 0.9", 9.0, 10.0, 0.9, 0.8, 1.0, True)
    missed = Case.compared("x", Series((8.0,)), Series((10.0,)), AT_LEAST)
    assert missed.holds is False
    assert Case.compared("x", Series((8.0,)), Series((10.0,)), AT_LEAST, quick=True).holds is False
    assert Case.compared("x", Series((8.5,)), Series((10.0,)), AT_LEAST, quick=True).holds is True


def test_a_limit_of_nothing_is_not_widened() -> None:
    none_lost = Goal("PF-7", "<=", 0)
    assert Case.limit("lost", Series((0.0,)), none_lost, quick=True).holds is True
    assert Case.limit("lost", Series((1.0,)), none_lost, quick=True).holds is False


def report(*cases: Case) -> Report:
    return Report("limits", {"cpu": "abacus", "run": {"rounds": 3}}, cases)


PLAIN = Case.plain("a", Series((1.0, 2.0, 3.0)))
GOOD = Case.compared("b", Series((10.0,)), Series((10.0,)), AT_LEAST)
BAD = Case.compared("c", Series((5.0,)), Series((10.0,)), AT_LEAST)


def test_one_missed_goal_is_enough_and_figures_without_a_goal_are_never_judged() -> None:
    assert report(PLAIN).holds
    assert report(PLAIN, GOOD).holds
    assert not report(PLAIN, GOOD, BAD).holds


def test_the_document_has_the_promised_shape_and_comes_back() -> None:
    document = json.loads(report(PLAIN, GOOD).as_json())
    assert list(document) == ["bench", "machine", "cases"]
    assert [list(case) for case in document["cases"]] == [
        ["name", "goal", "value", "reference", "ratio", "min", "max", "holds"]
    ] * 2
    assert Report.from_json(report(PLAIN, GOOD, BAD).as_json()) == report(PLAIN, GOOD, BAD)


def test_reports_are_joined_under_their_labels() -> None:
    joined = Report.joined({"plain": report(GOOD), "wire": report(BAD)})
    assert [case.name for case in joined.cases] == ["plain: b", "wire: c"]
    assert not joined.holds
    assert joined.machine == {"cpu": "abacus", "run": {"plain": {"rounds": 3}, "wire": {"rounds": 3}}}


def test_the_table_names_every_case_and_its_verdict() -> None:
    console = Console(width=120, record=True, force_terminal=False, file=StringIO())
    report(PLAIN, GOOD, BAD).show(console)
    text = console.export_text()
    assert "PF-1 >= 0.9 holds" in text
    assert "PF-1 >= 0.9 missed" in text
    assert "cpu abacus; run.rounds 3" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.954, "0.954"),
        (25.06, "25.1"),
        (100, "100"),
        (99_999, "99,999"),
        (123_456, "123k"),
        (999_400, "999k"),
        (1_754_306, "1.75M"),
        (5e9, "5,000M"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


def test_progress_counts_every_step() -> None:
    for progress in (silent, bar):
        with progress(2) as step:
            step("one")
            step("two")

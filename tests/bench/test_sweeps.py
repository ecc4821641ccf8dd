"""Sweeps are found by the names of cases: one number differs, systems are curves, and percentiles are no sizes."""

import inspect
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import cli
from bench.plots import THEMES, draw
from bench.report import Case, Report
from bench.rounds import Series
from bench.sweeps import sweeps


def plain(name: str, value: float) -> Case:
    return Case.plain(name, Series((value,)))


def compared(name: str, value: float, reference: float) -> Case:
    return Case.compared(name, Series((value,)), Series((reference,)))


def report(*cases: Case) -> Report:
    return Report("some", {}, cases)


def test_systems_side_by_side_are_curves_of_one_sweep() -> None:
    cases = [
        compared("muster over redis, x100 paced 50,000/s, server CPU ns each", 5.0, 6.0),
        compared("muster over nats, x100 paced 50,000/s, server CPU ns each", 5.0, 9.0),
        compared("muster over redis, x100 paced 100,000/s, server CPU ns each", 4.0, 5.0),
        compared("muster in one process over redis, x100 paced 50,000/s, server CPU ns each", 3.0, 6.0),
        compared("muster in one process over redis, x100 paced 100,000/s, server CPU ns each", 2.0, 5.0),
    ]
    (found,) = sweeps(report(*cases))
    assert found.name == "x100 paced N/s, server CPU ns each"
    assert found.curves == {
        "Muster": {50_000: 5.0, 100_000: 4.0},
        "Redis": {50_000: 6.0, 100_000: 5.0},
        "Muster in one process": {50_000: 3.0, 100_000: 2.0},
    }
    assert found.file == "sweep-some-x100-paced-n-s-server-cpu-ns-each"


@pytest.mark.parametrize(
    ("names", "sweep"),
    [
        (["1,000 pending: lateness p50, ms", "10,000 pending: lateness p50, ms"], "N pending: lateness p50, ms"),
        (["x10 at twice, age p99 ms", "x100 at twice, age p99 ms"], "xN at twice, age p99 ms"),
        (
            ["busy x100 json: ns, over centrifugo", "busy x1,000 json: ns, over centrifugo"],
            "busy xN json: ns",
        ),
        (["1 room of 4: s", "8 room of 4: s"], "N room of 4: s"),
    ],
)
def test_the_number_that_differs_is_the_size(names: list[str], sweep: str) -> None:
    assert [each.name for each in sweeps(report(*(compared(name, 1.0, 2.0) for name in names)))] == [sweep]


@pytest.mark.parametrize(
    "names",
    [
        ["age p50 ms", "age p99 ms"],
        ["late p99.5 ms", "late p99.9 ms"],
        ["10 a, 20 b", "11 a, 21 b"],
        ["100 clients: s"],
    ],
)
def test_percentiles_and_single_sizes_are_no_sweep(names: list[str]) -> None:
    assert sweeps(report(*(plain(name, 1.0) for name in names))) == []


def test_a_figure_that_is_always_0_is_left_out() -> None:
    assert sweeps(report(plain("10 rooms, lost", 0.0), plain("20 rooms, lost", 0.0))) == []


def test_a_sweep_is_drawn_for_light_and_dark_pages(tmp_path: Path) -> None:
    drawn = draw([report(compared("10 rooms, us", 2.0, 3.0), compared("1,000 rooms, us", 4.0, 90.0))], tmp_path)
    assert [file.name for file in drawn] == ["sweep-some-n-rooms-us.svg", "sweep-some-n-rooms-us-dark.svg"]
    for file, theme in zip(drawn, THEMES, strict=True):
        words = {each.text for each in ElementTree.parse(file).getroot().iter() if each.text}
        assert words >= {"10", "1,000", "N", "some: N rooms, us", "Muster", "against"}
        assert theme.own in file.read_text()


def test_every_bench_draws_what_it_measured() -> None:
    words = {
        each.name or each.callback.__name__: each.callback for each in cli.app.registered_commands if each.callback
    }
    assert {name for name, word in words.items() if "plot" not in inspect.signature(word).parameters} == set()

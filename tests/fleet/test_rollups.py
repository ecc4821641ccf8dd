"""Roll-ups of runs against the definitions of their words, and over whatever clients send."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.systems.fleet import rollups
from muster_server.systems.fleet.records import RunRow
from muster_server.systems.fleet.rollups import Sample, measured, percentile, rolled

RUN = RunRow(task="shop", minute=7, kind="ping", target="t", selector="", wanted=3)
NUMBERS = st.floats(0, 1e6, allow_nan=False)
SAMPLES = st.builds(Sample, st.sampled_from(["", "a", "b", "c"]), st.booleans(), st.none() | NUMBERS)


@given(st.lists(NUMBERS, min_size=1, max_size=250), st.integers(1, 100))
def test_a_percentile_is_the_smallest_number_that_so_many_do_not_exceed(numbers: list[float], percent: int) -> None:
    enough = [each for each in numbers if 100 * sum(other <= each for other in numbers) >= percent * len(numbers)]
    assert percentile(sorted(numbers), percent) == min(enough)


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


@given(st.lists(SAMPLES, max_size=40), st.lists(st.sampled_from(["", "a", "b"]), max_size=10))
def test_each_client_counts_once_in_its_mark_and_once_in_all(samples: list[Sample], missed: list[str]) -> None:
    every, *rows = rolled(RUN, samples, missed)
    assert every.mark == ""
    assert (every.results, every.failed, every.missed) == (
        len(samples),
        sum(not each.ok for each in samples),
        len(missed),
    )
    marks = sorted({each.mark for each in samples} | set(missed))
    assert [row.mark for row in rows] == [mark for mark in marks if mark]
    absent = Counter(missed)
    for row in (every, *rows):
        mine = [each for each in samples if row.mark in {"", each.mark}]
        good = sorted(each.ms for each in mine if each.ok and each.ms is not None)
        assert (row.p50, row.p90, row.p99) == tuple(percentile(good, each) for each in (50, 90, 99))
        if row.mark:
            assert (row.results, row.missed) == (len(mine), absent[row.mark])


def test_marks_above_the_limit_count_in_the_row_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MARKS_MAX", 2)
    samples = [Sample(mark, True, 1.0) for mark in "aabbbc"]
    assert [(row.mark, row.results) for row in rolled(RUN, samples, [])] == [("", 6), ("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (b'{"ms": 12.5}', 12.5),
        (b'{"a": {"ms": 3}, "ms": 7}', 7.0),
        (b"12", 12.0),
        (b"-1.5e3", -1500.0),
        (b'{"ms": null}', None),
        (b'{"ms": "12"}', None),
        (b'{"ms": true}', None),
        (b'{"ms": 1e999}', None),
        (b'{"ms": 123456789012345678901234567890}', 1.2345678901234568e29),
        (b"{}", None),
        (b"null", None),
        (b"true", None),
        (b'"12"', None),
        (b"[1]", None),
        (b"", None),
        (b"{", None),
        (b"NaN", None),
        (b'{"ms": ' + b"[" * 10_000, None),
    ],
)
def test_the_number_of_a_value_is_its_field_ms_or_the_value(value: bytes, ms: float | None) -> None:
    assert measured(value) == ms


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
)
def test_no_value_breaks_it(value: Any) -> None:
    try:
        encoded = msgspec.json.encode(value)
    except ValueError:
        return
    found = measured(encoded)
    assert found is None or math.isfinite(found)

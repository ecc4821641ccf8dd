"""The histogram gives the answers of the package `hdrhistogram`, for every batch, merge and percentile."""

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from muster_server.pyext.histogram import Histogram

HOUR_US = 3_600_000_000
HOUR_NS = HOUR_US * 1000
PERCENTILES = [0.0, 0.001, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0]

layouts = st.sampled_from(
    [(1, HOUR_US, 3), (1, HOUR_NS, 3), (1000, HOUR_NS, 3), (1, 2, 1), (7, 12345, 2), (1, 10**5, 4), (1, 4096, 3)]
)
values = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, HOUR_NS)), max_size=200)


def array(numbers: list[int]) -> NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def pair(layout: tuple[int, int, int], numbers: list[int]) -> tuple[Histogram, HdrHistogram, int]:
    mine, theirs = Histogram(*layout), HdrHistogram(*layout)
    refused = sum(not theirs.record_value(number) for number in numbers)
    assert mine.record(array(numbers)) == refused
    for _ in range(refused):  # values that the package refuses count in the last place here
        theirs.counts[theirs.counts_len - 1] += 1
        theirs.total_count += 1
    return mine, theirs, refused


@settings(max_examples=100, deadline=None)
@given(layouts, values)
def test_every_answer_is_that_of_hdrhistogram(layout: tuple[int, int, int], numbers: list[int]) -> None:
    mine, theirs, refused = pair(layout, numbers)
    assert np.array_equal(mine.counts, np.ctypeslib.as_array(theirs.counts))
    assert mine.count == theirs.get_total_count() == len(numbers)
    if numbers:
        expected = theirs.get_percentile_to_value_dict(PERCENTILES)
        assert [int(value) for value in mine.percentiles(PERCENTILES)] == [expected[p] for p in PERCENTILES]
    if not refused:
        assert mine.mean == pytest.approx(theirs.get_mean_value(), rel=1e-12)
        assert mine.max == (theirs.get_max_value() or (mine.percentiles([100.0])[0] if numbers else 0))


@settings(max_examples=50, deadline=None)
@given(layouts, values, values)
def test_a_merge_equals_recording_both(layout: tuple[int, int, int], left: list[int], right: list[int]) -> None:
    one, two, both = Histogram(*layout), Histogram(*layout), Histogram(*layout)
    one.record(array(left))
    two.record(array(right))
    both.record(array(left + right))
    one.merge(two)
    assert np.array_equal(one.counts, both.counts)
    assert np.array_equal(one.percentiles(PERCENTILES), both.percentiles(PERCENTILES))


@given(st.integers(2000, HOUR_US))
def test_a_value_is_kept_to_three_digits(value: int) -> None:
    histogram = Histogram(1, HOUR_US, 3)
    histogram.record(array([value]))
    assert value <= histogram.max <= value * 1.001


def test_percentiles_are_answered_in_the_order_asked() -> None:
    histogram = Histogram()
    histogram.record(np.arange(1, 1001, dtype=np.uint64))
    assert list(histogram.percentiles([99.0, 1.0, 50.0])) == [990, 10, 500]


def test_a_value_beyond_the_array_is_counted_last_and_reported() -> None:
    histogram = Histogram(1, 1000, 3)
    assert histogram.record(array([5, 2**63, 2**64 - 1])) == 2
    assert histogram.count == 3
    assert histogram.max >= 1000


def test_empty_answers_are_zero() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.mean, histogram.max) == (0, 0.0, 0)
    assert list(histogram.percentiles([50.0, 99.0])) == [0, 0]


def test_clear_forgets_all() -> None:
    histogram = Histogram()
    histogram.record(array([1, 2, 3]))
    histogram.clear()
    assert histogram.count == 0


def test_wrong_shapes_types_and_bounds_are_refused() -> None:
    histogram = Histogram()
    with pytest.raises(TypeError):
        histogram.record(np.zeros(3, dtype=np.int64))
    with pytest.raises(TypeError):
        histogram.record(np.zeros((2, 2), dtype=np.uint64))
    with pytest.raises(ValueError, match="contiguous"):
        histogram.record(np.zeros(8, dtype=np.uint64)[::2])
    with pytest.raises(ValueError, match="between 0 and 100"):
        histogram.percentiles([100.5])
    with pytest.raises(ValueError, match="other bounds"):
        histogram.merge(Histogram(1, 1000, 3))
    for bounds in [(0, 10, 3), (1, 1, 3), (1, 1000, 6), (1, 2**62, 3), (2**60, 2**61, 3)]:
        with pytest.raises(ValueError):
            Histogram(*bounds)


def test_a_read_only_batch_is_taken() -> None:
    batch = array([1, 2])
    batch.flags.writeable = False
    histogram = Histogram()
    histogram.record(batch)
    assert histogram.count == 2

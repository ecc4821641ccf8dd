"""Tops, windows, decay and intersections are those of plain lists and dicts."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from muster_server.pyext import tops

ITEMS = st.one_of(st.integers(0, 30), st.sampled_from([2**64 - 1, 2**64 - 2, 2**63]))
parts = st.lists(st.dictionaries(ITEMS, st.integers(-5, 5).map(float), max_size=20), max_size=6)
numbers = st.lists(ITEMS | st.integers(0, 5000), unique=True, max_size=300).map(sorted)

Part = Sequence[tuple[int, float]]


def joined(lists: Sequence[Part]) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.int64]]:
    items = np.array([item for part in lists for item, _ in part], dtype=np.uint64)
    scores = np.array([score for part in lists for _, score in part], dtype=np.float64)
    return items, scores, np.cumsum([0, *map(len, lists)], dtype=np.int64)


def falling(entry: tuple[int, float]) -> tuple[float, int]:
    return -entry[1], -entry[0]


def written(count: int, items: NDArray[np.uint64], scores: NDArray[np.float64]) -> list[tuple[int, float]]:
    return [(int(items[i]), float(scores[i])) for i in range(count)]


@settings(max_examples=200, deadline=None)
@given(parts, st.integers(0, 50))
def test_a_merge_is_the_top_of_all(shards: list[dict[int, float]], wanted: int) -> None:
    best: dict[int, float] = {}
    for shard in shards:
        for item, score in shard.items():
            best[item] = max(score, best.get(item, score))
    items, scores = np.zeros(wanted, np.uint64), np.zeros(wanted)
    done = tops.merge(*joined([sorted(shard.items(), key=falling) for shard in shards]), items, scores)
    assert written(done, items, scores) == sorted(best.items(), key=falling)[:wanted]


@settings(max_examples=200, deadline=None)
@given(parts, st.data())
def test_a_window_is_the_sum_of_its_buckets(buckets: list[dict[int, float]], data: st.DataObject) -> None:
    factors = [data.draw(st.sampled_from([0.0, 0.25, 1.0])) for _ in buckets]
    total: dict[int, float] = defaultdict(float)
    for factor, bucket in zip(factors, buckets, strict=True):
        for item, score in bucket.items():
            total[item] += factor * score
    arrays = joined([sorted(bucket.items()) for bucket in buckets])
    items, scores = np.zeros(len(arrays[0]), np.uint64), np.zeros(len(arrays[0]))
    done = tops.sums(*arrays, np.array(factors, dtype=np.float64), items, scores)
    assert written(done, items, scores) == sorted(total.items())


@settings(max_examples=200, deadline=None)
@given(numbers, numbers)
def test_an_intersection_is_that_of_sets(one: list[int], other: list[int]) -> None:
    out = np.zeros(min(len(one), len(other)), np.uint64)
    done = tops.intersect(np.array(one, np.uint64), np.array(other, np.uint64), out)
    assert [int(number) for number in out[:done]] == sorted(set(one) & set(other))


def test_a_short_list_among_many() -> None:
    many, few = np.arange(0, 10**6, dtype=np.uint64), np.array([3, 999_999, 5_000_000], np.uint64)
    out = np.zeros(3, np.uint64)
    assert tops.intersect(many, few, out) == tops.intersect(few, many, out) == 2
    assert list(out[:2]) == [3, 999_999]


def test_a_score_halves_in_each_half_life() -> None:
    scores = np.array([8.0, 8.0, 8.0, -1.0])
    tops.decay(scores, np.array([0.0, 1.0, 3.0, 2.0]), 1.0, scores)
    assert list(scores) == [8.0, 4.0, 1.0, -0.25]


def test_lists_out_of_order_stay_within_their_bounds() -> None:
    rng = np.random.default_rng(1)
    items = rng.integers(0, 50, 1000).astype(np.uint64)
    scores, bounds = rng.random(1000), np.array([0, 300, 1000], np.int64)
    out_items, out_scores = np.zeros(1000, np.uint64), np.zeros(1000)
    assert tops.merge(items, scores, bounds, out_items, out_scores) == 50
    assert 50 <= tops.sums(items, scores, bounds, np.ones(2), out_items, out_scores) <= 1000
    assert tops.intersect(items, items[::-1].copy(), out_items) <= 1000


def test_wrong_sizes_are_refused() -> None:
    items, scores, room = np.zeros(2, np.uint64), np.zeros(2), np.zeros(1, np.uint64)
    for bounds in ([0, 1], [1, 2], [], [0, 2, 1, 2]):
        with pytest.raises(ValueError, match="bounds"):
            tops.merge(items, scores, np.array(bounds, np.int64), items.copy(), scores.copy())
    with pytest.raises(ValueError, match="scores"):
        tops.merge(items, np.zeros(3), np.array([0, 2]), items.copy(), scores.copy())
    with pytest.raises(ValueError, match="factors"):
        tops.sums(items, scores, np.array([0, 2]), np.ones(2), items.copy(), scores.copy())
    with pytest.raises(ValueError, match="room"):
        tops.sums(items, scores, np.array([0, 2]), np.ones(1), room, scores.copy())
    with pytest.raises(ValueError, match="room"):
        tops.intersect(items, items, room)
    with pytest.raises(ValueError, match="half_life"):
        tops.decay(scores, scores, 0.0, scores)

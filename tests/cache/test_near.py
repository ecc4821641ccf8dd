"""Level 1: one contract over moka and the plain model, and its bound."""

import gc
import json
import tracemalloc
from time import monotonic
from typing import Any

import pytest

from muster.cache.near import OVERHEAD, Entry, Near
from muster.cache.weight import weight
from tests.reference.lru import Lru


def kept(value: Any, left_s: float = 60.0) -> Entry:
    now = monotonic()
    return Entry(value, now + left_s, now + left_s, now + left_s, 0.0, b"", weight(value))


@pytest.fixture(params=[Near, Lru], ids=["moka", "lru"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_value_is_there_until_it_is_removed_replaced_or_all_go(kind: Any) -> None:
    near = kind(1 << 20)
    assert near.get("a") is None
    near.put("a", kept(1))
    near.put("b", kept(2))
    assert (near.get("a").value, near.count) == (1, 2)
    near.put("a", kept(3))
    assert near.get("a").value == 3
    near.remove("a")
    near.remove("no")
    assert near.get("a") is None
    near.clear()
    assert (near.get("b"), near.count, near.bytes) == (None, 0, 0)
    near.put("b", kept(4))
    assert near.get("b").value == 4


def test_a_value_that_has_ended_is_not_there(kind: Any) -> None:
    near = kind(1 << 20)
    near.put("a", kept(1, -1.0))
    assert near.get("a") is None


def test_bytes_are_bounded_whatever_comes(kind: Any) -> None:
    near = kind(100_000)
    for number in range(2_000):
        near.put(f"key-{number}", kept("x" * 500))
    assert near.bytes <= 100_000
    assert 50 < near.count < 130


def test_a_value_as_large_as_all_is_not_kept_and_throws_nothing_out(kind: Any) -> None:
    near = kind(10_000)
    near.put("small", kept("x"))
    near.put("large", kept("x" * 20_000))
    assert near.get("large") is None
    assert near.get("small") is not None


def test_a_scan_leaves_what_is_used_often() -> None:
    near = Near(500 * (OVERHEAD + 100))
    hot = [f"hot-{number}" for number in range(100)]
    hits = scanned = 0
    for turn in range(200):
        for key in hot:
            if near.get(key) is not None:
                hits += turn >= 20
            else:
                near.put(key, kept("x"))
        for _ in range(200):
            scanned += 1
            if near.get(f"scan-{scanned}") is None:
                near.put(f"scan-{scanned}", kept("x"))
    assert hits / (180 * len(hot)) > 0.9


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 7, "title": "a title", "tags": ["a", "b"], "n": 1.5}',
        json.dumps(list(range(10_000, 10_200))),
        '"long %s"',
    ],
)
def test_the_estimate_is_near_what_python_takes(text: str) -> None:
    text = text.replace("%s", "x" * 5_000)
    gc.collect()
    tracemalloc.start()
    try:
        values = [json.loads(text) for _ in range(200)]
        # Other threads of this process allocate, too.
        own = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(True, json.decoder.__file__),))
        taken = sum(trace.size for trace in own.traces)
    finally:
        tracemalloc.stop()
    estimated = sum(weight(value) for value in values)
    assert taken * 0.8 < estimated < taken * 2.5


def test_objects_of_classes_are_weighed_with_what_they_have() -> None:
    class Plain:
        def __init__(self) -> None:
            self.text = "x" * 1_000

    class Slots:
        __slots__ = ("other", "text")

        def __init__(self) -> None:
            self.text = "x" * 1_000

    assert weight(Plain()) > 1_000
    assert weight(Slots()) > 1_000

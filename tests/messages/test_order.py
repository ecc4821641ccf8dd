"""The order in which a worker takes topics: strict, but that a topic with a share never waits for ever."""

import itertools
from collections import Counter

import pytest

from muster.errors import Invalid
from muster.tasks.order import Order


def taken(order: Order, there: set[str], count: int) -> list[str]:
    found = [order.next(there.__contains__) for _ in range(count)]
    return [topic for topic in found if topic is not None]


def test_the_first_topic_that_has_tasks_comes_first() -> None:
    order = Order.parse("high, middle ,low")
    assert order.topics == ("high", "middle", "low")
    assert taken(order, {"high", "middle", "low"}, 5) == ["high"] * 5
    assert taken(order, {"middle", "low"}, 5) == ["middle"] * 5
    assert taken(order, set(), 5) == []


def test_a_topic_with_a_share_is_taken_so_often_and_no_more() -> None:
    order = Order.parse("high,middle=1/4,low=1/10")
    counts = Counter(taken(order, {"high", "middle", "low"}, 400))
    assert counts["middle"] == 100
    assert counts["low"] in {39, 40}  # where two are due at once, one comes a turn later
    # One after the other: no topic with a share waits for longer than its share says, but for another one's turn.
    turns = [at for at, topic in enumerate(taken(order, {"high", "middle", "low"}, 400)) if topic == "middle"]
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= 5


def test_a_topic_without_tasks_saves_no_turns_up() -> None:
    order = Order.parse("high,low=1/4")
    taken(order, {"high"}, 100)
    assert taken(order, {"high", "low"}, 8) == ["high", "high", "high", "low"] * 2


@pytest.mark.parametrize(
    "text", ["", "high,", "high,high", "high,low=1", "high,low=1/0", "high=1/2,low=1/2", "high,low=a/b"]
)
def test_an_order_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"^topics: "):
        Order.parse(text)

"""The index says what plain dicts of the newest records say, for any order and doubling of updates."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server.pyext import bits
from muster_server.systems.fleet.index import Index, Snapshot, Update, UpdateError
from muster_server.systems.fleet.selector import EVERYONE, Selector, matches, parse

SELECTORS = [
    parse(text)
    for text in [
        "country=CN",
        "country=CN and carrier=1",
        "country!=CN",
        "carrier in (1, 2) and not tag=x",
        "tag=x or country=US",
        "not (tag=x or carrier=1)",
        "not carrier=1 and not carrier=2",
        "version=9",
        "",
    ]
]

attributes = st.fixed_dictionaries(
    {
        "country": st.sampled_from([["CN"], ["US"]]),
        "carrier": st.sampled_from([["1"], ["2"], ["3"]]),
        "tag": st.lists(st.sampled_from("xyz"), max_size=3),
    }
)
names = st.sampled_from([f"c{n}" for n in range(12)])


@st.composite
def histories(draw: st.DrawFn) -> list[Update]:
    """Each (client, epoch, version) says one thing."""
    stamps = draw(st.lists(st.tuples(names, st.integers(1, 3), st.integers(1, 4)), max_size=40, unique=True))
    return [Update(*stamp, draw(st.none() | attributes)) for stamp in stamps]


def newest(updates: list[Update]) -> dict[str, Update]:
    found: dict[str, Update] = {}
    for update in updates:
        known = found.get(update.client)
        if known is None or (update.epoch, update.version) > (known.epoch, known.version):
            found[update.client] = update
    return found


def picked(index: Index, selector: Selector) -> set[str]:
    return {index.name(number) for number in index.select(selector)}


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_any_order_of_updates_makes_the_same_index(updates: list[Update], data: st.DataObject) -> None:
    truth = newest(updates)
    mixed = data.draw(st.permutations(updates + updates[::3]))
    index = Index()
    for update in mixed:
        index.apply(update)
    snapshot = msgspec.msgpack.encode(index.snapshot())
    agrees(index, truth)
    again = Index.restored(msgspec.msgpack.decode(snapshot, type=Snapshot))
    agrees(again, truth)
    for update in mixed[::2]:
        assert not again.apply(update)
    agrees(again, truth)


def agrees(index: Index, truth: dict[str, Update]) -> None:
    there = {name: record for name, record in truth.items() if record.attributes is not None}
    assert index.online == len(there)
    assert {name: index.record(name) for name in truth} == truth
    for selector in SELECTORS:
        expected = {name for name, record in there.items() if matches(selector, record.attributes or {})}
        assert picked(index, selector) == expected, str(selector)
        words = np.zeros(index.words, dtype=np.uint64)
        index.members(selector, words)
        assert {index.name(number) for number in bits.numbers(words).tolist()} == expected
    assert sum(index.values("country").values()) == len(there)


def test_an_old_leave_takes_nobody_and_an_old_join_brings_nobody_back() -> None:
    index = Index()
    assert index.apply(Update("a", 2, 1, {"country": ["CN"]}))
    assert not index.apply(Update("a", 1, 9, None))
    assert index.online == 1
    assert index.apply(Update("a", 2, 2, None))
    assert not index.apply(Update("a", 2, 1, {"country": ["CN"]}))
    assert (index.online, index.refused) == (0, 2)


def test_a_client_keeps_its_number_until_it_is_forgotten() -> None:
    index = Index()
    for number, name in enumerate("abc"):
        index.apply(Update(name, 1, 1, {}))
        assert index.number(name) == number
    index.apply(Update("b", 1, 2, None))
    index.apply(Update("b", 1, 3, {}))
    assert index.number("b") == 1
    with pytest.raises(UpdateError, match="client b is online"):
        index.forget("b")
    index.apply(Update("b", 1, 4, None))
    assert index.forget("b") == 1
    with pytest.raises(UpdateError, match="client b is unknown"):
        index.forget("b")
    again = Index.restored(index.snapshot())
    for each in (index, again):
        each.apply(Update("d", 1, 1, {}))
        assert (each.number("d"), each.name(1)) == (1, "d")
        assert picked(each, EVERYONE) == {"a", "c", "d"}


def test_a_client_that_changes_is_meant_by_its_new_values_only() -> None:
    index = Index()
    index.apply(Update("a", 1, 1, {"country": ["CN"], "tag": ["x", "y"]}))
    index.apply(Update("a", 1, 2, {"country": ["US"], "tag": ["y"]}))
    meant = {text: bool(picked(index, parse(text))) for text in ("country=CN", "country=US", "tag=x", "tag=y")}
    assert meant == {"country=CN": False, "country=US": True, "tag=x": False, "tag=y": True}
    assert (index.values("country"), index.values("tag")) == ({"US": 1}, {"y": 1})
    index.apply(Update("a", 1, 3, None))
    assert index.values("country") == {}


def test_every_change_moves_the_counter_of_changes() -> None:
    index = Index()
    seen = [index.changes]
    for update in (Update("a", 1, 1, {}), Update("a", 1, 2, {"tag": ["x"]}), Update("a", 1, 3, None)):
        index.apply(update)
        seen.append(index.changes)
    assert len(set(seen)) == 4
    index.apply(Update("a", 1, 3, None))
    assert index.changes == seen[-1]


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (Update("a/b", 1, 1, {}), "invalid client name 'a/b'"),
        (Update("a+", 1, 1, None), "invalid client name"),
        (Update("x" * 65, 1, 1, {}), "invalid client name"),
        (Update("a\n", 1, 1, {}), "invalid client name"),
        (Update("a", 1, 1, {"colour": ["red"]}), "unknown attribute 'colour'"),
        (Update("a", 1, 1, {"tag": ["x" * 65]}), "invalid value"),
        (Update("a", 1, 1, {"tag": [""]}), "invalid value"),
        (Update("a", 1, 1, {"tag": ['"']}), "invalid value"),
        (Update("a", 1, 1, {"tag": [str(n) for n in range(33)]}), "values: 33"),
    ],
)
def test_a_bad_update_is_refused_and_changes_nothing(update: Update, problem: str) -> None:
    index = Index()
    with pytest.raises(UpdateError, match=problem):
        index.apply(update)
    assert (index.changes, index.words, index.snapshot().records) == (0, 1, [])


def test_a_snapshot_that_gives_a_number_twice_is_refused() -> None:
    twice = [(0, Update("a", 1, 1, {})), (0, Update("b", 1, 1, {}))]
    with pytest.raises(UpdateError, match="number 0 of b"):
        Index.restored(Snapshot(twice, 1))
    with pytest.raises(UpdateError, match="number 5 of a"):
        Index.restored(Snapshot([(5, Update("a", 1, 1, {}))], 1))

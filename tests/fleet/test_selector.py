"""Selectors mean what they say, have one normal form, and refuse everything else with a place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server.systems.fleet import selector
from muster_server.systems.fleet.selector import (
    ATTRIBUTES,
    EVERYONE,
    And,
    In,
    Not,
    Or,
    Selector,
    SelectorError,
    matches,
    parse,
)

VALUES = ["1", "CN", "520000", "a b", "and", "v1.2-3"]

terms: st.SearchStrategy[Selector] = st.builds(
    In, st.sampled_from(ATTRIBUTES[:3]), st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(tuple)
)
selectors: st.SearchStrategy[Selector] = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=10,
)
clients = st.dictionaries(st.sampled_from(ATTRIBUTES[:3]), st.lists(st.sampled_from(VALUES), max_size=3))


@settings(max_examples=200, deadline=None)
@given(selectors, st.lists(clients, max_size=5))
def test_what_is_printed_is_read_as_the_same(wanted: Selector, fleet: list[dict[str, list[str]]]) -> None:
    normal = parse(str(wanted))
    assert parse(str(normal)) == normal
    for client in fleet:
        assert matches(normal, client) == matches(wanted, client)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("CN_520000_522200_1", "country=CN and province=520000 and city=522200 and carrier=1"),
        ("d1_CN_520000_522200_1", "device=d1 and CN_520000_522200_1"),
        ("province=520000 AND country=CN", "country=CN and province=520000"),
        ("((country=CN))", 'country="CN"'),
        ("(a=1", None),
        ("carrier in (2, 1, 1)", "carrier in (1,2)"),
        ("carrier not in (1, 2)", "not carrier in (1, 2)"),
        ("not not carrier=1", "carrier=1"),
        ("carrier!=1", "not carrier=1"),
        ("country=CN and country=CN", "country=CN"),
        ("carrier=1 or (carrier=2 or carrier=3)", "carrier=3 or carrier=2 or carrier=1"),
        ("  ", "everyone"),
    ],
)
def test_texts_of_one_meaning_have_one_normal_form(text: str, same: str | None) -> None:
    if same is None:
        with pytest.raises(SelectorError):
            parse(text)
    else:
        assert parse(text) == parse(same)


def test_and_binds_closer_than_or() -> None:
    client = {"country": ["CN"], "carrier": ["2"]}
    assert matches(parse("country=CN or carrier=1 and province=9"), client)
    assert not matches(parse("(country=CN or carrier=1) and province=9"), client)
    assert matches(EVERYONE, {})


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ("provnce=1", "unknown attribute 'provnce' (known: device, country", 1),
        ("country=CN and", "attribute, mark, 'not' or '(' expected, not the end", 15),
        ("country=CN carrier=1", "'and' or 'or' expected, not 'carrier'", 12),
        ("country CN", "'=', '!=' or 'in' expected, not 'CN'", 9),
        ("country=", "value expected, not the end", 9),
        ("country in (1, )", "value expected, not ')'", 16),
        ("country in 1", "'(' expected, not '1'", 12),
        ("country not 1", "'in' expected, not '1'", 13),
        ("(country=1", "')' expected, not the end", 11),
        ("country=1 ; x", "unexpected character ';'", 11),
        ('country="x', "unexpected character '\"'", 9),
        ('country=""', "value expected", 9),
        ("CN_520000_1", "invalid mark 'CN_520000_1' (expected [device_]country_province_city_carrier)", 1),
        ("CN__522200_1", "invalid mark", 1),
        ("or", "attribute, mark, 'not' or '(' expected, not 'or'", 1),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, problem: str, position: int) -> None:
    with pytest.raises(SelectorError) as told:
        parse(text)
    assert problem in str(told.value)
    assert told.value.position == position
    assert str(told.value).endswith(f"at character {position}")
    assert "\n" not in str(told.value)


def test_length_depth_and_values_are_bounded() -> None:
    deep = "(" * selector.DEPTH_MAX
    assert parse(f"{deep}carrier=1{')' * selector.DEPTH_MAX}") == In("carrier", ("1",))
    for text in (f"({deep}carrier=1)", "not " * 33 + "carrier=1"):
        with pytest.raises(SelectorError, match="limit 32"):
            parse(text)
    values = ",".join(map(str, range(selector.TERMS_MAX)))
    parse(f"carrier in ({values})")
    with pytest.raises(SelectorError, match="limit 256"):
        parse(f"carrier in ({values},x)")
    with pytest.raises(SelectorError, match="64 characters"):
        parse("carrier=" + "x" * 65)
    with pytest.raises(SelectorError, match="4097 characters"):
        parse(" " * 4097)


@given(st.text(alphabet="()=!, \"'_1aZ;\n\tnotandinor=carrier", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    position = 1
    try:
        parse(text)
    except SelectorError as error:
        position = error.position
    assert 1 <= position <= len(text) + 1

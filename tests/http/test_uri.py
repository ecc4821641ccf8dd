"""Paths and queries are decoded once, and strictly."""

import pytest

from muster_server.systems.http.uri import BadUri, Query, check_query, part, path


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("/api/v1/rooms", "/api/v1/rooms"),
        ("/api/v1/rooms/", "/api/v1/rooms"),
        ("/", "/"),
        ("/likes/share/a%3Ab", "/likes/share/a:b"),
        ("/l%69kes/share/a:b", "/likes/share/a:b"),
        ("/likes/a%2Fb", "/likes/a%2Fb"),
        ("/likes/a%2fb", "/likes/a%2Fb"),
        ("/likes/%2541", "/likes/%2541"),
        ('/likes/a"b', "/likes/a%22b"),
        ("/likes/a%00b", "/likes/a%00b"),
        ("/likes/%c3%bc", "/likes/%C3%BC"),
        ("/likes/..", "/likes/.."),
    ],
)
def test_equal_paths_are_equal_text(raw: str, canonical: str) -> None:
    assert path(raw.encode()).rstrip("/") == canonical.rstrip("/")


@pytest.mark.parametrize("raw", ["/likes//a", "//likes", "/likes/a//"])
def test_an_empty_part_is_refused(raw: str) -> None:
    with pytest.raises(BadUri, match="empty part"):
        path(raw.encode())


@pytest.mark.parametrize(("encoded", "name"), [("a%2Fb", "a/b"), ("%2541", "%41"), ("%00", "\0"), ("a+b", "a+b")])
def test_a_part_is_decoded_once(encoded: str, name: str) -> None:
    assert part(path(b"/" + encoded.encode()).removeprefix("/")) == name


@pytest.mark.parametrize("encoded", ["%FF", "%C3", "%ED%A0%80", "%", "%4", "%zz", "100%", "a%FFb"])
def test_a_part_that_cannot_be_decoded_is_refused(encoded: str) -> None:
    with pytest.raises(BadUri, match=r"UTF-8|two hex digits"):
        part(path(b"/" + encoded.encode()).removeprefix("/"))


KNOWN = Query({"limit", "states"}, {"states"})


@pytest.mark.parametrize("raw", ["", "limit=1", "l%69mit=1", "states=a&states=b", "limit=1&states=a&", "limit"])
def test_a_query_of_known_words_is_taken(raw: str) -> None:
    check_query(raw.encode(), KNOWN)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("in_s=60", r"unknown query parameter 'in_s'; this path accepts limit, states"),
        ("=1", "unknown query parameter ''"),
        ("Limit=1", "unknown query parameter 'Limit'"),
        ("limit=1&limit=2", "limit is repeated"),
        ("limit=%FF", "UTF-8"),
        ("limit=1%", "two hex digits"),
    ],
)
def test_a_query_that_a_route_does_not_take_is_refused(raw: str, why: str) -> None:
    with pytest.raises(BadUri, match=why):
        check_query(raw.encode(), KNOWN)

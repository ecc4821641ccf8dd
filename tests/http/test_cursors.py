"""Every list has one form of pages, and entries that come or go between two pages neither repeat nor hide another one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.plane.systems import actions
from muster_server.systems.http import cursors
from muster_server.systems.http.problems import Problem
from tests.http.conftest import Make

ALL = [f"{action}:*" for action in actions()]
BOUNDED = {
    "/api/v1/fleet/counts": "limit, most clients first: at most 1,000 values, and `more` counts the others",
    "/api/v1/fleet/runs/{run}": "the clients of one run: its pick, at most 1,048,576",
    "/api/v1/fleet/runs/{run}/draws": "the draws of one run",
    "/api/v1/fleet/wheel": "120 minutes",
    "/api/v1/likes/both": "at most 10,000 users",
    "/api/v1/likes/imports": "the last 20",
    "/api/v1/likes/partitions": "the partitions, at most 256, and the nodes of likes",
    "/api/v1/likes/{kind}/{item}": "at most 32 newest likers, and the fields of one item",
    "/api/v1/likes/{kind}/{item}/curve": "an hour of points each 5 s",
    "/api/v1/presence/stats": "the shards of all sites",
    "/api/v1/rooms/{room}/messages": "`history` messages, at most http.history_max, and `after`",
    "/api/v1/rooms/{room}/trace": "`limit` proxies, at most 16, each with at most 16 hops",
    "/api/v1/topics/{topic}": "the targets that get nothing now",
    "/api/v1/topics/{topic}/messages/{id}": "the tags of one message, at most 8",
    "/api/v1/topics/{topic}/stats": "an hour of minutes",
}
"""Routes whose answers have lists without cursors, each with its bound."""


def lists(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The operations whose answers have a list, by path."""
    found = {}
    for path, item in document["paths"].items():
        content = item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        shape = resolved(document, content.get("application/json", {}).get("schema", {}))
        parts = [shape, *(resolved(document, each) for each in shape.get("properties", {}).values())]
        if any(each.get("type") == "array" for each in parts):
            found[path] = item["get"] | {"shape": shape}
    return found


def resolved(document: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    if (name := shape.get("$ref")) is None:
        return shape
    found: dict[str, Any] = document["components"]["schemas"][name.rpartition("/")[2]]
    return found


async def test_every_list_has_cursors_or_a_bound(make: Make) -> None:
    document = (await (await make()).client().get("/openapi.json")).json()
    found = lists(document)
    assert found.keys() >= BOUNDED.keys(), "a bound of a route without a list"
    paged = {path: each for path, each in found.items() if path not in BOUNDED}
    assert len(paged) == 19
    for path, operation in paged.items():
        parameters = {each["name"]: each for each in operation["parameters"]}
        assert {"limit", "after"} <= parameters.keys(), path
        assert parameters["limit"]["schema"]["maximum"] <= 10_000, path
        assert "next" in operation["shape"].get("properties", {}), path
        assert "next" in operation["shape"]["required"], path


async def test_every_list_refuses_a_cursor_that_it_did_not_give(make: Make) -> None:
    client = (await make()).client(*ALL)
    document = (await client.get("/openapi.json")).json()
    given = (cursors.written("another list", "a"), "~", "a b", "%00", "9" * 2_000)
    for path in lists(document).keys() - BOUNDED.keys():
        at = path.replace("{user}", "7").replace("{", "").replace("}", "")
        own = {"user": "7"} if path == "/api/v1/inbox" else {}
        for after in given:
            if path == "/api/v1/fleet/clients" and after == given[0]:
                continue  # its cursors are names of clients
            answer = await client.get(at, params={"after": after} | own)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), (path, after, answer.text)
            assert "after" in answer.json()["detail"] or "cursor" in answer.json()["detail"]


@pytest.mark.parametrize("after", ["x", "AAAA", "gqF4", cursors.written("a", "x"), cursors.written("b", 7), "ü"])
def test_only_cursors_of_the_same_list_are_read(after: str) -> None:
    with pytest.raises(Problem) as refused:
        cursors.read("b", after, str)
    assert (refused.value.code, "`next` of a page" in refused.value.detail) == ("bad_request", True)


def test_a_place_beyond_the_bound_is_no_cursor() -> None:
    for place in ([0, [b"x"]], [1 << 33, [b"x"]], [1, []], [1, [b"x"] * 4]):
        with pytest.raises(Problem):
            cursors.read("a", cursors.written("a", place), cursors.Anchored)


NAMES = st.sets(st.text("abc", min_size=1, max_size=3), max_size=20)


@given(before=NAMES, after=NAMES, limit=st.integers(1, 5))
def test_names_that_stay_are_listed_once_while_others_come_and_go(
    before: set[str], after: set[str], limit: int
) -> None:
    seen: list[str] = []
    rows, cursor = sorted(before), ""
    while True:
        found, next = cursors.page("n", rows, str, cursors.read("n", cursor, str), limit)
        assert len(found) <= limit
        seen += found
        if next is None:
            break
        rows, cursor = sorted(after), next
    assert seen == sorted(set(seen))
    assert before & after <= set(seen) <= before | after


@given(st.data(), st.integers(1, 5))
def test_entries_by_place_that_stay_are_listed_once(data: st.DataObject, limit: int) -> None:
    """At most two of the last three entries of a page go before the next one, and any number comes before them."""
    rows = list(range(20))
    stayed, fresh = set(rows), iter(range(100, 1_000))

    async def fetch(start: int, count: int) -> Sequence[int]:
        return rows[start : start + count]

    def key(row: int) -> bytes:
        return str(row).encode()

    async def read() -> list[int]:
        seen: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            former = cursors.read("p", cursor, cursors.Anchored)
            place, found, cursor = await cursors.page_by_place("p", fetch, key, former, limit)
            assert rows[place : place + len(found)] == found
            seen += found
            ends = seen[-min(limit, cursors.ANCHORS) :]
            for each in data.draw(st.sets(st.sampled_from(rows), max_size=3)):
                if len(set(ends) - {each} - (set(ends) - set(rows))) > 0:
                    rows.remove(each)
                    stayed.discard(each)
            for _ in range(data.draw(st.integers(0, 3))):
                rows.insert(0, next(fresh))
        return seen

    seen = asyncio.run(read())
    assert len(seen) == len(set(seen))
    assert stayed <= set(seen)


async def test_a_page_begins_at_its_former_place_if_all_anchors_are_gone() -> None:
    async def fetch(start: int, count: int) -> Sequence[bytes]:
        return [b"%d" % number for number in range(100, 120)][start : start + count]

    former = cursors.Anchored(4, [b"gone"])
    assert await cursors.page_by_place("p", fetch, bytes, former, 2) == (
        4,
        [b"104", b"105"],
        cursors.written("p", cursors.Anchored(6, [cursors._anchor(b"104"), cursors._anchor(b"105")])),
    )

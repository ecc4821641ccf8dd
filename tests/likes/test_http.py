"""What each route of likes says, over a real node."""

import time
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import Likes
from tests.likes.conftest import Face, Node, problem
from tests.waiting import PATIENT_S

SNOWFLAKE = (1 << 64) - 1
ALL = ("like:*", "likes:*")


async def said(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_put_get_and_delete_change_one_like(face: Face, likes: Likes) -> None:
    async with face.client(*ALL) as client:
        one = f"/api/v1/likes/share/1000/{SNOWFLAKE}"
        told = {"item": "share:1000", "user": str(SNOWFLAKE)}
        assert await said(await client.put(one)) == {**told, "likes": True, "before": False, "count": 1}
        assert await said(await client.put(one)) == {**told, "likes": True, "before": True, "count": 1}
        assert await likes.likes(b"share:1000", SNOWFLAKE)
        assert await said(await client.get(one)) == {**told, "likes": True, "count": 1}
        assert await said(await client.delete(one)) == {**told, "likes": False, "before": True, "count": 0}
        assert await said(await client.get(one)) == {**told, "likes": False, "count": 0}


async def test_items_likers_ranks_and_users_are_told(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:%d" % item, user, True) for item in range(3) for user in range(item + 1)])
    await likes.put_fields(b"share:1", ["agriculture"])
    async with face.client(*ALL) as client:
        shown = await said(await client.get("/api/v1/likes/share/2"))
        assert (shown["count"], shown["newest"]) == (3, ["2", "1", "0"])
        assert shown["ranks"] == [{"field": "", "rank": 0, "of": 3}, {"field": "share", "rank": 0, "of": 3}]
        assert set(shown["windows"]) == {"1h", "24h", "7d"}
        assert await said(await client.get("/api/v1/likes/share/2/likers?start=2&limit=1")) == {
            "users": ["2"],
            "next": None,
        }
        both = await said(await client.get("/api/v1/likes/both?item=share:1&item=share:2"))
        assert both == {"users": ["0", "1"]}
        items = await said(await client.get("/api/v1/users/1/likes"))
        liked = [each.at_s for each in await likes.items(1, 0, 9)]
        assert items == {"user": "1", "items": ["share:2", "share:1"], "at": liked, "next": None}
        assert all(abs(at - time.time()) < PATIENT_S for at in items["at"])
        top = await said(await client.get("/api/v1/ranks?start=1&limit=1"))
        assert top.pop("next")
        assert top == {"field": "", "window": "", "items": [{"rank": 1, "item": "share:1", "score": 2.0}]}
        field = await said(await client.get("/api/v1/ranks/agriculture?window=24h"))
        assert [each["item"] for each in field["items"]] == ["share:1"]


async def pages(client: httpx2.AsyncClient, path: str, name: str, limit: int, between: Any = None) -> list[Any]:
    """All entries of a list by its cursors; `between` is called after each page."""
    found: list[Any] = []
    after = ""
    while after is not None:
        page = await said(await client.get(path, params={"limit": limit, "after": after}))
        assert len(page[name]) <= limit
        found += page[name]
        after = page["next"]
        if between is not None:
            await between()
    return found


async def test_pages_have_each_entry_once_while_likes_come_and_go(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:%d" % item, 7, True) for item in range(9)])
    await likes.put_all([(b"share:0", user, True) for user in range(100, 109)])
    fresh = iter(range(1_000, 2_000))

    async def between() -> None:
        number = next(fresh)
        await likes.put_all([(b"fresh:%d" % number, 7, True), (b"share:0", number, True)])

    async def lead() -> None:
        number = next(fresh)
        await likes.put_all([(b"lead:%d" % number, user, True) for user in range(60)])

    async with face.client(*ALL) as client:
        users = await pages(client, "/api/v1/likes/share/0/likers", "users", 2, between)
        assert users[:10] == ["7", *map(str, range(100, 109))]
        assert len(users) == len(set(users))
        items = await pages(client, "/api/v1/users/7/likes", "items", 2, between)
        shares = [item for item in items if item.startswith("share")]
        assert shares == [f"share:{item}" for item in reversed(range(9))]
        assert len(items) == len(set(items))
        ranks = [each["item"] for each in await pages(client, "/api/v1/ranks", "items", 2, lead)]
        assert {f"share:{item}" for item in range(9)} <= set(ranks)
        assert len(ranks) == len(set(ranks))


async def test_a_page_of_ranks_says_the_ranks_of_now(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:%d" % item, user, True) for item in range(4) for user in range(item + 1)])
    async with face.client(*ALL) as client:
        first = await said(await client.get("/api/v1/ranks/share?limit=2"))
        assert [(each["rank"], each["item"]) for each in first["items"]] == [(0, "share:3"), (1, "share:2")]
        await likes.put_all([(b"share:9", user, True) for user in range(9)])
        second = await said(await client.get("/api/v1/ranks/share", params={"limit": 2, "after": first["next"]}))
        assert [(each["rank"], each["item"]) for each in second["items"]] == [(3, "share:1"), (4, "share:0")]
        assert second["next"] is None
        problem(await client.get("/api/v1/ranks", params={"after": first["next"]}), 400, "bad_request")


async def test_a_deprecated_word_works_and_says_its_end(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:1", user, True) for user in range(3)])
    async with face.client(*ALL) as client:
        old = await client.get("/api/v1/likes/share/1/likers?start=1")
        assert old.json()["users"] == ["1", "2"]
        assert old.headers["deprecation"] == "@1795910400"
        assert old.headers["sunset"] == "Tue, 01 Jun 2027 00:00:00 GMT"
        new = await client.get("/api/v1/likes/share/1/likers?limit=1")
        assert not {"deprecation", "sunset"} & new.headers.keys()


async def test_batch_tells_each_outcome_in_its_order(face: Face, likes: Likes) -> None:
    changes = [
        {"item": "share:1", "user": "7"},
        {"item": "share:1", "user": "7", "likes": True},
        {"item": "rank:share", "user": "7"},
        {"item": "share:1", "user": "7", "likes": False},
    ]
    async with face.client(*ALL) as client:
        answer = await said(await client.post("/api/v1/likes/batch", json=changes))
        assert (answer["done"], answer["failed"]) == (3, 1)
        assert [each.get("before") for each in answer["changes"]] == [False, True, None, True]
        assert answer["changes"][2]["error"]["code"] == "bad_request"
        problem(await client.post("/api/v1/likes/batch", json=[{"item": "a", "user": "-1"}]), 400, "bad_body")
        problem(await client.post("/api/v1/likes/batch", content=b"["), 400, "bad_body")
        problem(
            await client.post("/api/v1/likes/batch", json=[{"item": "a:1", "user": str(1 << 64)}]), 400, "bad_request"
        )
    assert await likes.counts([b"share:1"]) == [0]


async def test_a_page_of_a_feed_is_told_in_the_order_of_the_request(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:%d" % item, user, True) for item in range(3) for user in (5, SNOWFLAKE)[: item + 1]])
    async with face.client(*ALL) as client:
        asked = {"items": ["share:2", "share:0", "share:9", "share:2"], "viewer": str(SNOWFLAKE), "newest": 1}
        page = await said(await client.post("/api/v1/likes/feed", json=asked))
        two = {"item": "share:2", "count": 2, "likes": True, "newest": [str(SNOWFLAKE)]}
        zero = {"item": "share:0", "count": 1, "likes": False, "newest": ["5"]}
        assert page == {"items": [two, zero, {"item": "share:9", "count": 0, "likes": False, "newest": []}, two]}
        page = await said(await client.post("/api/v1/likes/feed", json={"items": ["share:1"]}))
        assert page == {"items": [{"item": "share:1", "count": 2, "likes": None, "newest": [str(SNOWFLAKE), "5"]}]}
        assert await said(await client.post("/api/v1/likes/feed", json={"items": []})) == {"items": []}


async def test_a_page_of_a_feed_beyond_its_limits_is_refused(face: Face, likes: Likes) -> None:
    path = "/api/v1/likes/feed"
    async with face.client(*ALL) as client, face.client("likes:share:*") as reader:
        assert (
            len((await said(await client.post(path, json={"items": ["share:1"] * 1_000, "newest": 10})))["items"])
            == 1_000
        )
        told = problem(await client.post(path, json={"items": ["share:1"] * 1_001}), 400, "bad_body")
        assert "1000" in told["detail"]
        problem(await client.post(path, json={"items": ["share:1"], "newest": 11}), 400, "bad_body")
        problem(await client.post(path, json={"items": ["share:1"], "viewer": "-1"}), 400, "bad_body")
        problem(await client.post(path, json={"items": ["share:1"], "viewer": str(1 << 64)}), 400, "bad_request")
        problem(await client.post(path, json={"items": ["share:1", "rank:share"]}), 400, "bad_request")
        problem(await reader.post(path, json={"items": ["share:1", "private:1"]}), 403, "not_allowed")
        assert (await reader.post(path, json={"items": ["share:1"]})).status_code == 200
    for items, newest in (([b"share:1"] * 1_001, 3), ([b"share:1"], 11), ([b"share:1"], -1)):
        with pytest.raises(StoreError, match="up to 1,000 items with 0 to 10 newest likers"):
            await likes.feed(items, 7, newest)


async def test_scopes_say_which_items_a_key_may_change_and_read(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"share:1", 7, True), (b"private:1", 7, True)])
    async with face.client("like:share:*", "likes:share:*") as client, face.client("likes:share:1") as reader:
        assert (await client.put("/api/v1/likes/share/1/7")).status_code == 200
        problem(await client.put("/api/v1/likes/private/1/8"), 403, "not_allowed")
        problem(await client.get("/api/v1/likes/private/1"), 403, "not_allowed")
        problem(await client.get("/api/v1/ranks"), 403, "not_allowed")
        assert (await client.get("/api/v1/ranks/share")).status_code == 200
        batch = [{"item": "share:2", "user": "9"}, {"item": "private:1", "user": "9"}]
        problem(await client.post("/api/v1/likes/batch", json=batch), 403, "not_allowed")
        assert await likes.counts([b"share:2", b"private:1"]) == [0, 1], "nothing of it was made"
        assert (await said(await client.get("/api/v1/users/7/likes")))["items"] == ["share:1"]
        problem(await reader.put("/api/v1/likes/share/1/7"), 403, "not_allowed")
        assert (await reader.get("/api/v1/likes/share/1")).status_code == 200


@pytest.mark.parametrize("item", ["a:b", "a/b", "100%", "%3A", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "a+b", " "])
async def test_an_item_has_the_same_name_over_http_and_resp(face: Face, likes: Likes, item: str) -> None:
    name, one = f"share:{item}", f"/api/v1/likes/share/{quote(item, safe='')}"
    async with face.client(f"like:{name}", f"likes:{name}") as client:
        assert (await said(await client.put(f"{one}/7")))["item"] == name
        assert await likes.counts([name.encode()]) == [1]
        assert (await said(await client.get(one)))["item"] == name
        assert await said(await client.get(f"{one}/likers")) == {"users": ["7"], "next": None}
        assert (await said(await client.get("/api/v1/users/7/likes")))["items"] == [name]
        assert (await said(await client.delete(f"{one}/7")))["count"] == 0


async def test_a_field_of_a_ranking_is_decoded(face: Face, likes: Likes) -> None:
    await likes.put_all([(b"a b:1", 7, True)])
    async with face.client(*ALL) as client:
        found = await said(await client.get("/api/v1/ranks/a%20b"))
    assert [each["item"] for each in found["items"]] == ["a b:1"]


@pytest.mark.parametrize("path", ["share/%FF", "share/1%", "%C3/1", "share/1/7%0A", "share/1/%37%0a"])
async def test_paths_that_cannot_be_decoded_are_refused(face: Face, path: str) -> None:
    async with face.client(*ALL) as client:
        problem(await client.get(f"/api/v1/likes/{path}"), 400, "bad_request")


async def test_malformed_paths_are_problems(face: Face) -> None:
    async with face.client(*ALL) as client:
        for path in ("share/1/x", "share/1/-1", "share/1/01"):
            assert (await client.put(f"/api/v1/likes/{path}")).status_code == 400, path
        problem(await client.put(f"/api/v1/likes/share/1/{1 << 64}"), 400, "bad_request")
        problem(await client.put("/api/v1/likes/rank/1/7"), 400, "bad_request")
        problem(await client.put(f"/api/v1/likes/share/{'x' * 600}/7"), 400, "bad_request")


async def test_node_that_is_away_is_unavailable_and_found_again(face: Face, node: Node) -> None:
    async with face.client(*ALL) as client:
        assert (await client.put("/api/v1/likes/share/1/7")).status_code == 200
        await node.end()
        problem(await client.put("/api/v1/likes/share/1/8"), 503, "unavailable")
        await node.start()
        assert (await said(await client.put("/api/v1/likes/share/1/8")))["count"] == 2
        face.nodes = []
        await node.end()
        problem(await client.get("/api/v1/likes/share/1"), 503, "unavailable")
        assert (
            "no node of likes runs" in problem(await client.get("/api/v1/likes/share/1"), 503, "unavailable")["detail"]
        )
        await node.start()


async def test_description_has_every_route(face: Face) -> None:
    async with face.client(*ALL) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert {
        "/api/v1/likes/{kind}/{item}/{user}",
        "/api/v1/likes/batch",
        "/api/v1/likes/feed",
        "/api/v1/ranks/{field}",
        "/api/v1/leaderboards/{leaderboard}",
        "/api/v1/leaderboards/{leaderboard}/members/{member}",
        "/api/v1/leaderboards/{leaderboard}/members/{member}/raise",
    } <= paths.keys()

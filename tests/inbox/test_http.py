"""Inboxes over HTTP: entries, pages, marks, settings, audiences, streams; foreign inboxes and bad input are refused."""

import asyncio
from typing import Any

import httpx2
import pytest

from tests.http.conftest import Beside, eventually
from tests.http.streams import Reader, stream
from tests.http.test_routes import token
from tests.inbox.conftest import Rig
from tests.waiting import PATIENT_S

BOTH = ("notify:*", "broadcast:*", "inbox:*")


async def entries(client: httpx2.AsyncClient, **words: Any) -> list[str]:
    said = await client.get("/api/v1/inbox", params=words)
    assert said.status_code == 200, said.text
    return [each["id"] for each in said.json()["entries"]]


async def test_an_entry_is_kept_listed_counted_and_read(beside: Beside) -> None:
    program, ann = beside.client(*BOTH), beside.client(token=token(7, "read"))
    new = {"users": ["7", "8"], "kind": "like", "data": {"song": 3}, "actor": "bo", "id": "like:3:bo"}
    said = await program.post("/api/v1/inbox", json=new)
    assert said.json() == {
        "users": [{"user": "7", "seq": 1, "outcome": "new"}, {"user": "8", "seq": 1, "outcome": "new"}]
    }
    assert (await program.post("/api/v1/inbox", json=new)).json()["users"][0]["outcome"] == "same"
    page = (await ann.get("/api/v1/inbox")).json()
    (one,) = page["entries"]
    assert (one["id"], one["kind"], one["actor"], one["data"], one["read"]) == ("1", "like", "bo", {"song": 3}, False)
    assert page["after"] == "1-0"
    assert page["next"] is None
    counts = {"unread": {"like": 1}, "unseen": {"like": 1}, "total_unread": 1, "total_unseen": 1}
    assert (await ann.get("/api/v1/inbox/unread")).json() == counts
    seen = await ann.post("/api/v1/inbox/seen", json={"to": page["after"]})
    assert seen.json() == counts | {"unseen": {}, "total_unseen": 0}
    assert (await ann.post("/api/v1/inbox/read", json={"entries": ["1"]})).json()["unread"] == {}
    assert (await program.get("/api/v1/inbox?user=8")).json()["entries"][0]["read"] is False


async def test_a_user_named_twice_in_a_request_gets_one_entry(beside: Beside) -> None:
    program, ann = beside.client(*BOTH), beside.client(token=token(7, "read"))
    said = await program.post("/api/v1/inbox", json={"users": ["7", "8", "7"], "kind": "like"})
    assert [each["user"] for each in said.json()["users"]] == ["7", "8"]
    assert await entries(ann) == ["1"]


@pytest.mark.parametrize(("until", "unit"), [(1_900_000_000, "seconds"), (1_900_000_000_000_000, "microseconds")])
async def test_an_end_in_another_unit_is_refused(beside: Beside, until: int, unit: str) -> None:
    program = beside.client(*BOTH)
    said = await program.post("/api/v1/broadcasts", json={"audience": "all", "kind": "news", "until": until})
    assert (said.status_code, said.json()["code"]) == (400, "bad_body"), said.text
    assert f"until: {until} is in {unit}" in said.json()["detail"]
    for good in (1_900_000_000_000, "2030-03-17T17:46:40Z"):
        said = await program.post("/api/v1/broadcasts", json={"audience": "all", "kind": "news", "until": good})
        assert said.json()["until"] == 1_900_000_000_000, said.text


async def test_pages_follow_each_other_in_both_directions(beside: Beside) -> None:
    program, ann = beside.client(*BOTH), beside.client(token=token(7, "read"))
    for number in range(7):
        await program.post("/api/v1/inbox", json={"users": ["7"], "kind": "like", "data": number})
    await program.post("/api/v1/broadcasts", json={"audience": "all", "kind": "news", "data": "n"})
    back: list[str] = []
    words: dict[str, Any] = {"limit": 3}
    while True:
        page = (await ann.get("/api/v1/inbox", params=words)).json()
        back += [each["id"] for each in page["entries"]]
        if page["next"] is None:
            break
        words["before"] = page["next"]
    assert sorted(back) == sorted(["b1", *map(str, range(1, 8))])
    assert await entries(ann, after="5-1") == ["6", "7"]
    assert await entries(ann, after="5", kind="news") == ["b1"]


async def test_a_broadcast_reaches_its_audience_and_settings_hide_a_kind(beside: Beside) -> None:
    program, ann = beside.client(*BOTH), beside.client(token=token(7, "read"))
    assert (await program.put("/api/v1/audiences/field:corn/7")).json() == {"changed": 1}
    for audience in ("all", "field:corn", "field:rye"):
        said = await program.post("/api/v1/broadcasts", json={"audience": audience, "kind": "news"})
        assert said.json()["outcome"] == "new"
    assert await entries(ann) == ["b2", "b1"]
    assert (await program.delete("/api/v1/audiences/field:corn/7")).json() == {"changed": 1}
    assert await entries(ann) == ["b1"]
    off = {"kinds": {"news": {"inbox": False}}}
    assert (await ann.put("/api/v1/inbox/settings", json=off)).json() == off
    assert await entries(ann) == []
    assert (await ann.get("/api/v1/inbox/settings")).json() == off
    assert (await program.delete("/api/v1/audiences/all/7")).status_code == 400


async def test_a_user_reaches_no_foreign_inbox_and_a_key_only_those_of_its_scopes(beside: Beside) -> None:
    program = beside.client(*BOTH)
    await program.post("/api/v1/inbox", json={"users": ["7"], "kind": "like", "data": "secret"})
    eve = beside.client(token=token(8, "read"))
    for path in ("/api/v1/inbox", "/api/v1/inbox/unread", "/api/v1/inbox/settings"):
        assert (await eve.get(path, params={"user": "7"})).status_code == 403
        assert (await beside.client("inbox:8*").get(path, params={"user": "7"})).status_code == 403
        assert (await beside.client("inbox:8*").get(path)).status_code == 400
        assert (await beside.client().get(path)).status_code == 401
    marked = {"to": "1-0"}
    assert (await eve.post("/api/v1/inbox/read", params={"user": "7"}, json=marked)).status_code == 403
    assert (await eve.put("/api/v1/inbox/settings", params={"user": "7"}, json={"kinds": {}})).status_code == 403
    assert (await eve.post("/api/v1/inbox", json={"users": ["8"], "kind": "like"})).status_code == 403
    assert (await eve.post("/api/v1/broadcasts", json={"audience": "all", "kind": "x"})).status_code == 403
    assert (await eve.put("/api/v1/audiences/all/8")).status_code == 403
    mine = beside.client(token=token(9, "publish"))
    assert (await mine.get("/api/v1/inbox")).status_code == 403
    narrow = beside.client("notify:7", "broadcast:field:*")
    assert (await narrow.post("/api/v1/inbox", json={"users": ["7", "70"], "kind": "x"})).status_code == 403
    assert (await narrow.post("/api/v1/broadcasts", json={"audience": "all", "kind": "x"})).status_code == 403
    assert (await narrow.post("/api/v1/broadcasts", json={"audience": "field:a", "kind": "x"})).status_code == 200
    assert await entries(eve) == []
    headers = {"accept": "text/event-stream"}
    assert (await eve.get("/api/v1/inbox", params={"user": "7"}, headers=headers)).status_code == 403


async def test_a_bad_entry_is_refused(beside: Beside) -> None:
    client = beside.client(*BOTH)
    mistakes: list[dict[str, Any]] = [
        {"users": [], "kind": "like"},
        {"users": ["7"] * 1_001, "kind": "like"},
        {"users": ["-7"], "kind": "like"},
        {"users": [str(1 << 64)], "kind": "like"},
        {"users": ["7"], "kind": "Like"},
        {"users": ["7"], "kind": "k" * 33},
        {"users": ["7"], "kind": "like", "id": "a b"},
        {"users": ["7"], "kind": "like", "group": "g" * 65},
        {"users": ["7"], "kind": "like", "group": "a\u0000b"},
        {"users": ["7"], "kind": "like", "actor": "a\nb"},
        {"users": ["7"], "kind": "like", "more": 1},
        {"users": ["7"]},
    ]
    for body in mistakes:
        said = await client.post("/api/v1/inbox", json=body)
        assert said.status_code == 400, said.text
        assert said.json()["detail"]


async def test_data_has_a_limit(beside: Beside) -> None:
    program = beside.client(*BOTH)
    for length, status in ((4_094, 200), (4_095, 413)):
        said = await program.post("/api/v1/inbox", json={"users": ["7"], "kind": "like", "data": "x" * length})
        assert said.status_code == status


async def test_a_bad_cursor_or_limit_is_refused(beside: Beside) -> None:
    ann = beside.client(token=token(7, "read"))
    mistakes = [
        "after=x",
        "after=-1",
        "after=1-",
        "after=01",
        "before=1--2",
        "limit=0",
        "limit=201",
        "kind=A",
        "after=1&before=2",
        "after=99999999999999999999",
        "user=x%00",
    ]
    for query in mistakes:
        assert (await ann.get(f"/api/v1/inbox?{query}")).status_code in {400, 403}, query


async def test_bad_marks_are_refused(beside: Beside) -> None:
    ann = beside.client(token=token(7, "read"))
    for body in ({}, {"to": "1", "entries": ["1"]}, {"to": "x"}, {"entries": ["0"]}, {"entries": ["b"]}, {"x": 1}):
        assert (await ann.post("/api/v1/inbox/read", json=body)).status_code == 400
    assert (await ann.post("/api/v1/inbox/seen", json={"entries": ["1"]})).status_code == 400
    assert (await ann.post("/api/v1/inbox/other", json={"to": "1"})).status_code == 404
    assert (await ann.put("/api/v1/inbox/settings", json={"kinds": {"x": {"mail": "now"}}})).status_code == 400


async def read(reader: Reader) -> tuple[str, str]:
    async with asyncio.timeout(PATIENT_S):
        event = await reader.message()
    return event.id, event.data["id"]


async def test_a_stream_has_what_came_since_and_what_comes(beside: Beside, rig: Rig) -> None:
    program, key = beside.client(*BOTH), beside.key("inbox:7")
    new = {"users": ["7"], "kind": "like"}
    for _ in range(2):
        await program.post("/api/v1/inbox", json=new)
    at = beside.server.address
    async with stream(at, "/api/v1/inbox?user=7&after=1", key) as reader:
        assert await read(reader) == ("2-0", "2")
        await program.post("/api/v1/inbox", json=new)
        assert await read(reader) == ("3-0", "3")
        await program.post("/api/v1/broadcasts", json={"audience": "all", "kind": "news"})
        assert await read(reader) == ("3-1", "b1")
        await program.post("/api/v1/broadcasts", json={"audience": "corn", "kind": "news"})
        await program.put("/api/v1/audiences/corn/7")
        await program.post("/api/v1/broadcasts", json={"audience": "corn", "kind": "news"})
        assert await read(reader) == ("3-3", "b3")
    async with stream(at, "/api/v1/inbox?user=7", key, {"last-event-id": "3-1"}) as reader:
        assert await read(reader) == ("3-3", "b3")


async def test_a_stream_survives_the_death_of_its_node_and_misses_nothing(beside: Beside, rig: Rig) -> None:
    program, key = beside.client(*BOTH), beside.key("inbox:7")
    new = {"users": ["7"], "kind": "like"}
    async with stream(beside.server.address, "/api/v1/inbox?user=7&after=0", key) as reader:
        await program.post("/api/v1/inbox", json=new)
        assert await read(reader) == ("1-0", "1")
        await rig.kill()
        await rig.start()

        async def written() -> bool:
            return (await program.post("/api/v1/inbox", json=new)).status_code == 200

        await eventually(written)
        assert await read(reader) == ("2-0", "2")


async def test_a_stream_ends_when_its_key_is_revoked(beside: Beside, rig: Rig) -> None:
    from muster_server.systems.http import keys

    key = beside.key("inbox:7", name="bell")
    async with stream(beside.server.address, "/api/v1/inbox?user=7", key) as reader:
        keys.revoke(beside.keys_file, "bell")
        async with asyncio.timeout(PATIENT_S):
            event = await reader.message()
        assert (event.name, event.data["reason"]) == ("goodbye", "revoked")


async def test_without_a_node_the_routes_say_so(beside: Beside, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "processes", property(lambda self: []))
    said = await beside.client(*BOTH).post("/api/v1/inbox", json={"users": ["7"], "kind": "like"})
    assert said.status_code == 503
    assert "--with inbox" in said.json()["detail"]


async def test_data_over_several_lines_is_one_event(beside: Beside) -> None:
    program, key = beside.client(*BOTH), beside.key("inbox:7")
    body = b'{"users": ["7"], "kind": "like", "data": {"a":\n\n1,\r\n "b": 1.50, "c": 123456789012345678901234567890}}'
    async with stream(beside.server.address, "/api/v1/inbox?user=7&after=0", key) as reader:
        said = await program.post("/api/v1/inbox", content=body, headers={"content-type": "application/json"})
        assert said.status_code == 200
        async with asyncio.timeout(PATIENT_S):
            event = await reader.message()
        assert event.data["data"] == {"a": 1, "b": 1.5, "c": 123456789012345678901234567890}


async def test_a_stream_without_a_cursor_begins_where_it_was_opened(beside: Beside) -> None:
    program, key = beside.client(*BOTH), beside.key("inbox:7")
    await program.post("/api/v1/inbox", json={"users": ["7"], "kind": "like"})
    for number in range(2, 5):
        async with stream(beside.server.address, "/api/v1/inbox?user=7", key) as reader:
            await program.post("/api/v1/inbox", json={"users": ["7"], "kind": "like"})
            assert await read(reader) == (f"{number}-0", str(number))

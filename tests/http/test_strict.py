"""What a route does not know is refused, and answers are what any client of HTTP takes."""

import asyncio
import json
from typing import Any

import pytest
from openapi_spec_validator import validate

from muster_server.plane.systems import actions
from muster_server.systems.http.problems import Problem
from muster_server.systems.messages.http import bodies
from muster_server.systems.rooms.http.centrifugo.methods import METHODS, MISSING
from tests.http.conftest import Make
from tests.http.streams import stream
from tests.http.test_hostile import raw

ALL = [f"{action}:*" for action in actions()]
MESSAGES = "/api/v1/rooms/sports:final/messages"
BODIES = {
    "rooms": ("POST", MESSAGES),
    "commands": ("POST", "/api/v1/rooms/sports:final/commands"),
    "requests": ("POST", "/api/v1/rooms/sports:final/request"),
    "runs": ("POST", "/api/v1/fleet/runs"),
    "tasks": ("PUT", "/api/v1/fleet/tasks/shop"),
    "likes": ("POST", "/api/v1/likes/batch"),
    "presence": ("POST", "/api/v1/presence"),
    "send": ("POST", "/api/v1/send"),
    "ends": ("POST", "/api/v1/presence/end"),
    "status": ("PUT", "/api/v1/presence/status?user=7"),
    "imports": ("POST", "/api/v1/likes/imports"),
    "leaderboards": ("POST", "/api/v1/leaderboards/game:7"),
    "messages": ("POST", "/api/v1/topics/orders/messages"),
}
NO_JSON = {
    "no UTF-8": b'{"data": "\xff"}',
    "no UTF-8 in a part": b'{"data": {"a": "\xff"}}',
    "no UTF-8 in a name": b'{"\xff": 1}',
    "no UTF-8 in a batch": b'[{"data": "\xff"}]',
    "deep": b'{"data": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    "very deep": b"[" * 100_000,
    "half of a pair": b'{"data": "\\ud800"}',
    "empty": b"",
    "unknown": b'{"data": "x", "in_s": 60}',
    "two": b"{}{}",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
async def test_a_body_that_is_none_is_the_callers_mistake(make: Make, body: bytes) -> None:
    client = (await make()).client(*ALL)
    for name, (method, path) in BODIES.items():
        answer = await client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_body"), (name, answer.text)


async def test_json_of_some_hundred_levels_is_taken(make: Make) -> None:
    client = (await make()).client("publish:*", "history:*")
    body = b'{"data": ' + b"[" * 500 + b"]" * 500 + b"}"
    answer = await client.post(MESSAGES, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text


async def test_each_route_refuses_a_word_that_it_does_not_know(make: Make) -> None:
    beside = await make(requests_rate=100_000)
    client = beside.client(*ALL)
    document = (await client.get("/openapi.json")).json()
    for path, item in document["paths"].items():
        for method in item:
            at = path.replace("{verb}", "cancel").replace("{user}", "7").replace("{", "").replace("}", "")
            answer = await client.request(method, f"{at}?in_s=60", content=b"")
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), (method, path, answer.text)
            assert "unknown query parameter 'in_s'" in answer.json()["detail"]


async def test_a_route_without_a_described_body_refuses_any(make: Make) -> None:
    beside = await make(requests_rate=100_000)
    client = beside.client(*ALL)
    document = (await client.get("/openapi.json")).json()
    seen: set[str] = set()
    for path, item in document["paths"].items():
        for method in item.keys() & {"post", "put", "patch", "delete"}:
            if "requestBody" in item[method]:
                continue
            seen.add(f"{method} {path}")
            at = path.replace("{user}", "7").replace("{", "").replace("}", "")
            needed = [each for each in item[method].get("parameters", []) if each["in"] == "query" and each["required"]]
            at += "?" * bool(needed) + "&".join(f"{each['name']}=7" for each in needed)
            for body in (b'{"in_s": 60}', b"\xff", b"[]"):
                answer = await client.request(method, at, content=body)
                assert (answer.status_code, answer.json()["code"]) == (400, "bad_body"), (method, path, answer.text)
                assert answer.json()["detail"] == "this path accepts no body"
    assert {"put /api/v1/likes/{kind}/{item}/{user}", "delete /api/v1/topics/{topic}/recurring/{name}"} <= seen
    assert not any(each.startswith("patch") for each in seen)


@pytest.mark.parametrize("query", ["in_ms=60&in_ms=61", "in_ms=%FF", "in_ms=1%"])
async def test_a_query_that_is_not_clear_is_refused(make: Make, query: str) -> None:
    client = (await make()).client(*ALL)
    answer = await client.post(f"/api/v1/topics/orders/messages?{query}", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("body", [b'{"data": 1}', b'[{"data": 1}]'])
async def test_words_of_the_query_do_not_get_lost_beside_json(make: Make, body: bytes) -> None:
    client = (await make()).client(*ALL)
    headers = {"content-type": "application/json"}
    answer = await client.post("/api/v1/topics/orders/messages?in_ms=60000", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert "put these into the body" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["at", "expires_at"])
@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (1_764_300_000, "seconds"),
        (0, "seconds"),
        (-5, "seconds"),
        (1_764_300_000_000_000, "microseconds"),
        (1_764_300_000_000, ""),
        ("2027-01-01T00:00:00Z", ""),
    ],
)
def test_a_time_in_another_unit_is_refused(name: str, time: Any, unit: str) -> None:
    asked = json.dumps({"data": 1, name: time}).encode()
    if not unit:
        assert getattr(bodies.one(asked, bodies.JSON, {}), name) in {1_764_300_000_000, 1_798_761_600_000}
        return
    with pytest.raises(Problem, match="bad_body") as told:
        bodies.one(asked, bodies.JSON, {})
    assert f"{name}: {time} is in {unit}" in told.value.detail
    with pytest.raises(Problem, match="bad_body"):
        bodies.one(b"x", "text/plain", {name: str(time)})


async def test_a_change_refuses_a_body_or_a_time_that_it_does_not_take(make: Make) -> None:
    client = (await make()).client(*ALL)
    message = "/api/v1/topics/orders/messages/a"
    for verb, body in (("cancel", {"by_ms": 5}), ("postpone", {"to": 1_764_300_000}), ("postpone", {"by_s": 5})):
        answer = await client.post(f"{message}/{verb}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_body"), answer.text


async def test_head_is_get_without_the_body(make: Make) -> None:
    client = (await make()).client(*ALL)
    for path in ("/healthz", "/openapi.json", MESSAGES, "/api/v1/rooms/%FF/messages", "/nowhere"):
        got, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-length"] == str(len(got.content))
        assert head.headers["content-type"] == got.headers["content-type"]


async def test_head_of_a_stream_ends_and_leaves_nothing_open(make: Make) -> None:
    beside = await make()
    client = beside.client("read:*")
    head = await client.head(MESSAGES, headers={"accept": "text/event-stream"})
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    async with asyncio.timeout(60):
        while beside.server._front.running:  # noqa: ASYNC110 - it ends in another task
            await asyncio.sleep(0)


async def test_a_method_that_is_not_taken_gets_those_that_are(make: Make) -> None:
    client = (await make()).client()
    for path, allowed in (
        ("/api/v1/rooms", "GET, HEAD, OPTIONS"),
        ("/api/v1/rooms/", "GET, HEAD, OPTIONS"),
        ("/api/v1/fleet/tasks/a%2Fb", "DELETE, OPTIONS, PUT"),
        ("/api/v1/likes/batch", "OPTIONS, POST"),
        ("/api/v1/likes/share/a%3Ab", "GET, HEAD, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ):
        answer = await client.patch(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path
        asked = await client.options(path)
        assert (asked.status_code, asked.headers["allow"], asked.content) == (204, allowed, b""), path


async def test_a_missing_parameter_is_named(make: Make) -> None:
    client = (await make()).client("presence:*", "likes:*")
    for path, name in (("/api/v1/presence/changes", "users"), ("/api/v1/likes/both", "item")):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["detail"]) == (400, f"{name}: missing"), path


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_page_may_use_each_method_that_routes_have(make: Make, method: str) -> None:
    client = (await make(cors_origins=("https://example.com",))).client()
    asked = {"origin": "https://example.com", "access-control-request-method": method}
    answer = await client.options("/api/v1/likes/share/1/7", headers=asked)
    assert answer.status_code < 300
    assert method in answer.headers["access-control-allow-methods"].split(", ")


async def test_http_1_0_gets_no_chunks(make: Make) -> None:
    beside = await make(heartbeat_s=0.1)
    key = beside.key("read:*", "history:*")
    head = f"host: localhost\r\nx-api-key: {key}\r\n"
    said = await raw(beside, f"GET {MESSAGES} HTTP/1.0\r\n{head}\r\n".encode())
    top, _, body = said.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in top
    assert json.loads(body)["messages"] == []
    reader, writer = await asyncio.open_connection(*beside.server.address)
    writer.write(f"GET {MESSAGES} HTTP/1.0\r\naccept: text/event-stream\r\n{head}\r\n".encode())
    top = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in top
    assert b"transfer-encoding" not in top
    assert b"connection: close" in top
    assert await reader.readline() == b"retry: 1000\n"
    assert await reader.readline() == b":\n"
    ending = asyncio.create_task(beside.server.stop())
    assert b"goodbye" in await reader.read()
    writer.close()
    await ending


async def test_a_stream_has_no_event_without_data(make: Make) -> None:
    """At each empty line readers tell an event; httpx-sse does so also after a comment, or `retry`, alone."""
    beside = await make(heartbeat_s=0.05)
    client = beside.client("publish:*")
    async with stream(beside.server.address, MESSAGES, beside.key("read:*")) as reader:
        await reader.event()
        for _ in range(3):
            await client.post(MESSAGES, content=b"x")
            assert (await reader.message()).data["data"] == "x"
            assert (await reader.event()).data == ":"


async def test_the_description_has_each_body(make: Make) -> None:
    document = (await (await make()).client().get("/openapi.json")).json()
    validate(document)
    described = {
        (method.upper(), path): operation["requestBody"]["content"]
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation
    }
    assert {path for _, path in described if not path.startswith("/api/v1/")} == {
        f"/api/{method}" for method in (*METHODS, *MISSING)
    }
    assert {path for _, path in described if path.startswith("/api/v1/")} == {
        "/api/v1/rooms/{room}/messages",
        "/api/v1/rooms/{room}/commands",
        "/api/v1/rooms/{room}/request",
        "/api/v1/fleet/runs",
        "/api/v1/fleet/tasks/{task}",
        "/api/v1/likes/imports",
        "/api/v1/inbox",
        "/api/v1/inbox/{verb}",
        "/api/v1/inbox/settings",
        "/api/v1/broadcasts",
        "/api/v1/likes/batch",
        "/api/v1/likes/feed",
        "/api/v1/leaderboards/{leaderboard}",
        "/api/v1/leaderboards/{leaderboard}/members/{member}",
        "/api/v1/leaderboards/{leaderboard}/members/{member}/raise",
        "/api/v1/presence",
        "/api/v1/presence/end",
        "/api/v1/presence/status",
        "/api/v1/send",
        "/api/v1/topics/{topic}",
        "/api/v1/topics/{topic}/lease",
        "/api/v1/topics/{topic}/leases",
        "/api/v1/topics/{topic}/messages",
        "/api/v1/topics/{topic}/messages/{id}/{verb}",
        "/api/v1/topics/{topic}/recurring/{name}",
        "/api/v1/topics/{topic}/tags/{tag}/{verb}",
    }
    schemas = document["components"]["schemas"]
    (run,) = (described["POST", "/api/v1/fleet/runs"]["application/json"]["schema"],)
    assert set(schemas[run["$ref"].rpartition("/")[2]]["required"]) == {"kind", "pick"}
    assert set(described["POST", "/api/v1/topics/{topic}/messages"]) == {"application/json", "application/octet-stream"}

"""What each route says, over a real instance."""

import asyncio
import base64
import itertools
import time
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

import muster
import muster.testing
from muster_server.control.node import metrics
from muster_server.plane.auth import mint
from muster_server.plane.kind import Right
from muster_server.systems.http import keys
from tests.faults.instance import samples
from tests.http.conftest import SECRET, Beside, Make, eventually, until_refused

ALL = ("publish:*", "read:*", "history:*", "members:*", "command:*", "rooms:*")
ROOM = "/api/v1/rooms/sports:final"
MESSAGES = f"{ROOM}/messages"


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem that an answer is."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["status"], document["code"]) == (status, status, code), document
    assert document["type"] == f"urn:muster:problem:{code}"
    assert document["request_id"] == response.headers["x-request-id"]
    return document


async def datas(client: httpx2.AsyncClient, room: str = "sports:final", count: int = 100) -> list[str]:
    """What the room's last messages carry."""
    answer = await client.get(f"/api/v1/rooms/{quote(room, safe='')}/messages", params={"history": count})
    assert answer.status_code == 200, answer.text
    return [message["data"] for message in answer.json()["messages"]]


async def test_what_is_published_reaches_members_and_has_its_position(
    make: Make, address: muster.testing.Instance
) -> None:
    client = (await make()).client("publish:*")
    async with muster.connect(address) as member, member.join("sports:final") as room:
        answer = await client.post(MESSAGES, content=b"hello")
        item = await anext(room)
    assert isinstance(item, muster.Message)
    assert item.data == b"hello"
    assert answer.json() == {"position": str(item.position)}


@pytest.mark.parametrize(
    ("kind", "body", "data"),
    [
        ("", b"raw", b"raw"),
        ("text/plain", b'{"data":"x"}', b'{"data":"x"}'),
        ("application/x-www-form-urlencoded", b"a=b", b"a=b"),
        ("application/octet-stream", b"\xff\x00", b"\xff\x00"),
        ("application/json", b'{"data": "text"}', b"text"),
        ("application/json; charset=utf-8", b'"text"', b"text"),
        ("application/json", b'{"data": {"a": [1, 2]}}', b'{"a": [1, 2]}'),
        ("application/json", b'{"data": "/wA=", "encoding": "base64"}', b"\xff\x00"),
        ("application/octet-stream", b"", b""),
    ],
)
async def test_a_body_is_one_message(
    make: Make, address: muster.testing.Instance, kind: str, body: bytes, data: bytes
) -> None:
    client = (await make()).client("publish:*")
    async with muster.connect(address) as member, member.join("sports:final") as room:
        answer = await client.post(MESSAGES, content=body, headers={"content-type": kind} if kind else {})
        assert answer.status_code == 200, answer.text
        item = await anext(room)
    assert isinstance(item, muster.Message)
    assert item.data == data


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"1", b'{"text": "x"}', b'{"data": "x", "encoding": "rot13"}', b'{"data": "?", "encoding": "base64"}'],
)
async def test_json_that_is_no_message_is_refused(make: Make, body: bytes) -> None:
    client = (await make()).client("publish:*")
    problem(await client.post(MESSAGES, content=body, headers={"content-type": "application/json"}), 400, "bad_body")


async def test_headers_reach_members_and_come_back(make: Make, address: muster.testing.Instance) -> None:
    client = (await make()).client("publish:*", "history:*")
    headers = {"kind": "goal", "note": "ä"}
    async with muster.connect(address) as member, member.join("sports:final") as room:
        await client.post(MESSAGES, json={"data": "x", "headers": headers})
        batch = [{"data": "y", "headers": {"n": "1"}}, "z", {"data": "w", "headers": {"a b": ""}}]
        said = (await client.post(MESSAGES, json=batch)).json()
        items = [await anext(room) for _ in range(3)]
    assert (said["published"], said["failed"]) == (2, 1)
    assert said["messages"][2]["error"]["code"] == "bad_request"
    assert [item.headers for item in items if isinstance(item, muster.Message)] == [headers, {"n": "1"}, {}]
    found = (await client.get(MESSAGES, params={"history": 3})).json()["messages"]
    assert [message.get("headers") for message in found] == [headers, {"n": "1"}, None]


@pytest.mark.parametrize(
    "headers", [{"a b": "x"}, {"a": "x" * 1_100}, {f"n{at}": "" for at in range(17)}, {"a": 1}, []]
)
async def test_wrong_headers_are_refused(make: Make, headers: Any) -> None:
    answer = await (await make()).client("publish:*").post(MESSAGES, json={"data": "x", "headers": headers})
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in {"bad_body", "bad_request"}


async def test_a_command_has_no_headers(make: Make) -> None:
    client = (await make()).client("command:*")
    answer = await client.post("/api/v1/rooms/sports:final/commands", json={"data": "x", "headers": {"a": "b"}})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_body")


async def test_a_batch_keeps_its_order_and_tells_each_position(make: Make) -> None:
    client = (await make()).client("publish:*", "history:*")
    said = [f"message {at}" for at in range(500)]
    answer = await client.post(MESSAGES, json=said)
    assert answer.status_code == 200
    document = answer.json()
    assert (document["published"], document["failed"]) == (500, 0)
    offsets = [int(entry["position"].rpartition(":")[2]) for entry in document["messages"]]
    assert offsets == list(range(1, 501))
    assert await datas(client, count=500) == said


async def test_a_broken_line_fails_alone(make: Make) -> None:
    client = (await make()).client("publish:*", "history:*")
    lines = b'{"data": "one"}\n{"data": \n\n"three"\n{"data": "four"}'
    answer = await client.post(MESSAGES, content=lines, headers={"content-type": "application/x-ndjson"})
    assert answer.status_code == 207
    document = answer.json()
    assert (document["published"], document["failed"]) == (3, 1)
    assert [sorted(entry) for entry in document["messages"]] == [["position"], ["error"], ["position"], ["position"]]
    error = document["messages"][1]["error"]
    assert (error["code"], error["retryable"]) == ("bad_body", False)
    assert error["detail"].startswith("line 2:")
    assert await datas(client) == ["one", "three", "four"]


async def test_a_long_message_fails_alone_and_a_long_batch_whole(make: Make) -> None:
    client = (await make(batch_max=3)).client("publish:*", "history:*")
    answer = await client.post(MESSAGES, json=["x", "y" * 70_000, "z"])
    assert [entry.get("error", {}).get("code") for entry in answer.json()["messages"]] == [None, "too_long", None]
    problem(await client.post(MESSAGES, json=["a", "b", "c", "d"]), 413, "too_long")
    problem(await client.post(MESSAGES, content=b"y" * 70_000), 413, "too_long")
    assert await datas(client) == ["x", "z"]


async def test_history_is_the_last_messages_and_says_whether_it_is_whole(make: Make) -> None:
    client = (await make()).client("publish:*", "history:*")
    await client.post(MESSAGES, json=[str(at) for at in range(10)])
    answer = (await client.get(MESSAGES, params={"history": 3})).json()
    assert [message["data"] for message in answer["messages"]] == ["7", "8", "9"]
    assert answer["room"] == "sports:final"
    assert (await client.get(MESSAGES, params={"history": 50})).json()["whole"] is True
    assert (await client.get(MESSAGES, params={"history": 0})).json()["messages"] == []
    problem(await client.get(MESSAGES, params={"history": 1_001}), 400, "too_much_history")
    problem(await client.get(MESSAGES, params={"history": "many"}), 400, "bad_request")


async def test_history_of_binary_is_base64(make: Make) -> None:
    client = (await make()).client("publish:*", "history:*")
    await client.post(MESSAGES, content=b"\xff\x00")
    message = (await client.get(MESSAGES)).json()["messages"][0]
    assert message["encoding"] == "base64"
    assert base64.b64decode(message["data"]) == b"\xff\x00"


@pytest.mark.parametrize("name", ["a/b", "a b", "ü", "a?b#c", "%41", "files:a/../b", "a+b", "100%"])
async def test_a_room_may_have_any_name_percent_encoded(
    make: Make, address: muster.testing.Instance, name: str
) -> None:
    client = (await make()).client("publish:*", "history:*")
    async with muster.connect(address) as member, member.join(name) as room:
        answer = await client.post(f"/api/v1/rooms/{quote(name, safe='')}/messages", content=b"x")
        assert answer.status_code == 200, answer.text
        assert isinstance(await anext(room), muster.Message)
    assert await datas(client, name) == ["x"]


@pytest.mark.parametrize("name", ["%FF", "%0A", "A:b", "x" * 201])
async def test_what_is_no_room_name_is_refused(make: Make, name: str) -> None:
    client = (await make()).client("publish:*")
    answer = await client.post(f"/api/v1/rooms/{name}/messages", content=b"x")
    problem(answer, 400, "bad_room_name")


async def test_members_are_counted_and_named(make: Make, address: muster.testing.Instance) -> None:
    client = (await make()).client("members:*")
    async with muster.connect(address) as member, member.join("sports:final"):
        answer = await client.get(f"{ROOM}/members", params={"ids": "true"})
    assert answer.json() == {"count": 1, "ids": ["1"], "truncated": False, "partial": False, "next": None}
    for wrong in ({"wait": "0"}, {"wait": "61"}, {"start": "-1"}, {"ids": "perhaps"}):
        problem(await client.get(f"{ROOM}/members", params=wrong), 400, "bad_request")


async def test_a_command_tells_what_came_of_it(make: Make, address: muster.testing.Instance) -> None:
    client = (await make()).client("command:*")
    assert (await client.post(f"{ROOM}/commands", content=b"x")).json() == {"outcome": "nobody", "members": 0}
    async with muster.connect(address) as member, member.join("sports:final") as room:
        answer = await client.post(f"{ROOM}/commands", content=b"half-time", params={"expires": 5})
        item = await anext(room)
    assert answer.json() == {"outcome": "delivered", "members": 1}
    assert isinstance(item, muster.Command)
    assert item.data == b"half-time"
    problem(await client.post(f"{ROOM}/commands", content=b"x" * 801), 413, "too_long")
    problem(await client.post(f"{ROOM}/commands", content=b"x", params={"expires": 61}), 400, "bad_request")


async def test_a_request_has_the_reply_of_a_responder(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    client = beside.client("publish:sports:final/*")
    asks = f"{ROOM}/request"
    problem(await client.post(asks, content=b"x", params={"timeout": 60}), 503, "no_responders")
    requests: list[muster.Request] = []

    async def handler(request: muster.Request) -> bytes:
        requests.append(request)
        match request.data:
            case b"raise":
                raise RuntimeError
            case b"binary":
                return b"\xff"
            case b"wait":
                await asyncio.get_running_loop().create_future()
        return request.data

    async with muster.connect(address) as member, member.respond("sports:final", handler) as responder:
        for _ in range(2):
            same = {"idempotency-key": "once"}
            said = (await client.post(asks, content=b"EUR", params={"timeout": 60}, headers=same)).json()
            assert said == {"responder": responder.id, "sender": "1", "data": "EUR", "encoding": "utf-8"}
        assert len(requests) == 1, "the same key has the same reply"
        said = (await client.post(asks, json={"data": "YmluYXJ5", "encoding": "base64"})).json()
        assert (said["data"], said["encoding"]) == ("/w==", "base64")
        problem(await client.post(asks, content=b"raise", params={"timeout": 60}), 502, "responder_failed")
        problem(await client.post(asks, content=b"wait", params={"timeout": 0.5}), 504, "timeout")
        problem(await client.post(asks, content=b"x" * 48_001), 413, "too_long")
        for wrong in (0, 61, "soon"):
            problem(await client.post(asks, content=b"x", params={"timeout": wrong}), 400, "bad_request")
        problem(await client.post(f"/api/v1/rooms/{'r' * 155}/request", content=b"x"), 400, "bad_room_name")
        problem(await beside.client("publish:sports:final").post(asks, content=b"x"), 403, "not_allowed")
        await member.close()
    registry = metrics.registry(beside.server.counts, {"role": "http", "node": "1", "name": "http"}, "0", list)
    counted = samples((await metrics.text(metrics.read(registry))).decode())
    for outcome, count in (
        ("replied", 2),
        ("no_responders", 1),
        ("timeout", 1),
        ("responder_failed", 1),
        ("failed", 1),
    ):
        assert counted[f'http_room_requests{{outcome="{outcome}"}}'] == count


# --- who may what -----------------------------------------------------------------------------------------------

ASKS = [
    ("publish", "POST", MESSAGES, {}),
    ("history", "GET", MESSAGES, {}),
    ("read", "GET", MESSAGES, {"accept": "text/event-stream"}),
    ("members", "GET", f"{ROOM}/members", {}),
    ("command", "POST", f"{ROOM}/commands", {}),
    ("rooms", "GET", "/api/v1/rooms", {}),
]


@pytest.mark.parametrize(("action", "method", "path", "headers"), ASKS, ids=[ask[0] for ask in ASKS])
async def test_a_route_needs_its_scope_for_its_room(
    make: Make, action: str, method: str, path: str, headers: dict[str, str]
) -> None:
    beside = await make()
    others = [f"{other}:*" for other, *_ in ASKS if other != action]
    elsewhere = [f"{action}:sports:other"] if action != "rooms" else []
    without = beside.client(*others, *elsewhere)
    problem(await without.request(method, path, headers=headers), 403, "not_allowed")
    client = beside.client(f"{action}:sports:*")
    async with client.stream(method, path, headers=headers) as answer:
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "no_credential"),
        ({"authorization": "Bearer"}, "no_credential"),
        ({"x-api-key": "mk_000000000000_" + "A" * 43}, "bad_credential"),
        ({"x-api-key": "nothing"}, "bad_credential"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "bad_credential"),
        ({"authorization": "Bearer " + "x" * 5_000}, "bad_credential"),
        ({"authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiI3IiwiZXhwIjo5OTk5OTk5OTk5fQ."}, "bad_credential"),
    ],
)
async def test_without_a_good_credential_nothing_is_done(make: Make, headers: dict[str, str], code: str) -> None:
    beside = await make()
    for _, method, path, more in ASKS:
        answer = await beside.client().request(method, path, headers=headers | more)
        problem(answer, 401, code)
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert beside.server.status()["rooms"] == 0


async def test_the_token_that_programs_share_opens_nothing(make: Make, address: muster.testing.Instance) -> None:
    beside = await make()
    problem(await beside.client(token=address.token.decode()).get(MESSAGES), 401, "bad_credential")


async def test_a_key_goes_as_bearer_too(make: Make) -> None:
    beside = await make()
    client = beside.client(token=beside.key("history:*"))
    assert (await client.get(MESSAGES)).status_code == 200


async def test_a_revoked_key_opens_nothing_once_the_file_is_seen(make: Make) -> None:
    beside = await make()
    client = beside.client("history:*")
    assert (await client.get(MESSAGES)).status_code == 200
    keys.revoke(beside.keys_file, "key-0")

    async def refused() -> bool:
        return (await client.get(MESSAGES)).status_code != 200

    await eventually(refused)
    problem(await client.get(MESSAGES), 401, "bad_credential")


def token(user: int, *rights: Right, seconds: float = 3_600, secret: bytes = SECRET) -> str:
    return mint(secret, user, rights, time.time(), seconds)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (token(7, "read", seconds=-60), 401, "bad_credential"),
        (token(7, "read", secret=b"x" * 32), 401, "bad_credential"),
        (token(7), 403, "not_allowed"),
        (token(7, "publish"), 403, "not_allowed"),
    ],
)
async def test_a_user_s_token_is_checked_as_at_gateways(make: Make, said: str, status: int, code: str) -> None:
    problem(await (await make()).client(token=said).get(MESSAGES), status, code)


async def test_users_may_not_list_rooms(make: Make) -> None:
    problem(await (await make()).client(token=token(7, "read", "publish")).get("/api/v1/rooms"), 403, "not_allowed")


async def test_a_user_acts_as_itself(tmp_path: Any) -> None:
    tokens = {b"shared": 1, token(7, "publish", "read").encode(): 7}
    async with muster.testing.instance(tokens=tokens) as address:
        beside = Beside(address, tmp_path)
        await beside.server.start()
        try:
            mine = beside.client(token=list(tokens)[1].decode())
            async with muster.connect(address) as member, member.join("sports:final") as room:
                assert (await mine.post(MESSAGES, content=b"x")).status_code == 200
                item = await anext(room)
                assert isinstance(item, muster.Message)
                assert item.sender == 7
                assert (await mine.get(MESSAGES)).json()["messages"][0]["sender"] == "7"
                members = await mine.get(f"{ROOM}/members", params={"ids": "true"})
                assert members.json()["ids"] == ["1", "7"]
            assert beside.server.status()["sessions"] == 1
        finally:
            for client in beside.clients:
                await client.aclose()
            await beside.server.stop()


# --- limits and idempotency -------------------------------------------------------------------------------------


async def test_the_same_key_publishes_once(make: Make) -> None:
    beside = await make()
    client = beside.client("publish:*", "history:*")
    headers = {"idempotency-key": "order-17"}
    answers = await asyncio.gather(*(client.post(MESSAGES, content=b"x", headers=headers) for _ in range(5)))
    assert len({answer.text for answer in answers}) == 1
    assert sorted(answer.headers.get("idempotency-replayed", "") for answer in answers) == ["", *["true"] * 4]
    problem(await client.post(MESSAGES, content=b"y", headers=headers), 422, "idempotency_mismatch")
    other = beside.client("publish:*")
    assert "idempotency-replayed" not in (await other.post(MESSAGES, content=b"z", headers=headers)).headers
    assert await datas(client) == ["x", "z"]
    problem(await client.post(MESSAGES, content=b"y", headers={"idempotency-key": "k" * 256}), 400, "bad_request")


async def test_a_key_has_its_rate_and_hears_when_to_come_again(make: Make) -> None:
    beside = await make(requests_rate=5)
    client = beside.client("history:*")
    refused = await until_refused(lambda: client.get(MESSAGES))
    document = problem(refused, 429, "rate_limited")
    assert document["retryable"] is True
    assert int(refused.headers["retry-after"]) >= 1
    assert (await beside.client("history:*").get(MESSAGES)).status_code == 200


async def test_a_batch_counts_what_it_carries(make: Make) -> None:
    beside = await make(messages_rate=10)
    client = beside.client("publish:*", "history:*")
    assert (await client.post(MESSAGES, json=["x"] * 20)).status_code == 200
    keys, headers = itertools.count(), dict[str, str]()

    async def with_another_key() -> httpx2.Response:
        headers["idempotency-key"] = f"k{next(keys)}"
        return await client.post(MESSAGES, content=b"y", headers=headers)

    problem(await until_refused(with_another_key), 429, "rate_limited")
    passed = next(keys) - 1
    assert passed < 15, "a batch counts what it carries"

    async def taken() -> bool:
        return (await client.post(MESSAGES, content=b"y", headers=headers)).status_code == 200

    await eventually(taken)
    assert await datas(client) == ["x"] * 20 + ["y"] * (passed + 1)


async def test_commands_have_the_rate_of_proxies(tmp_path: Any) -> None:
    async with muster.testing.instance() as address:
        beside = Beside(address, tmp_path)
        await beside.server.start()
        try:
            client = beside.client("command:*")
            answer = await until_refused(lambda: client.post(f"{ROOM}/commands", content=b"x"))
            refused = problem(answer, 429, "rate_limited")
            assert refused["retry_after"] > 0
        finally:
            for client in beside.clients:
                await client.aclose()
            await beside.server.stop()


async def test_a_request_id_is_kept_if_it_is_sane(make: Make) -> None:
    client = (await make()).client()
    assert (await client.get("/healthz", headers={"x-request-id": "a.b-1"})).headers["x-request-id"] == "a.b-1"
    for said in ("x" * 65, "a b", "a;b", ""):
        made = (await client.get("/healthz", headers={"x-request-id": said})).headers["x-request-id"]
        assert made != said
        assert len(made) == 16


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("localhost", 200),
        ("api.example.com", 200),
        ("a.b.example.org:443", 200),
        ("evil.com", 421),
        ("example.org", 421),
        ("xexample.org", 421),
        ("a b", 421),
        ("", 421),
    ],
)
async def test_only_known_hosts_are_answered(make: Make, host: str, status: int) -> None:
    beside = await make(hosts=("api.example.com", "*.example.org"))
    answer = await beside.client().get("/healthz", headers={"host": host})
    assert answer.status_code == status
    if status == 421:
        problem(answer, 421, "unknown_host")


async def test_other_origins_may_call_only_where_they_are_named(make: Make) -> None:
    origin = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    shut = (await make()).client("history:*")
    assert "access-control-allow-origin" not in (await shut.get(MESSAGES, headers=origin)).headers
    opened = (await make(cors_origins=("https://app.example.com",))).client("history:*")
    answer = await opened.options(MESSAGES, headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "last-event-id" in answer.headers["access-control-allow-headers"].lower()
    refused = await opened.get(MESSAGES, headers=origin | {"x-api-key": "wrong"})
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
    other = await opened.get(MESSAGES, headers={"origin": "https://evil.com"})
    assert "access-control-allow-origin" not in other.headers


async def test_without_servers_it_lives_and_is_not_ready(tmp_path: Any) -> None:
    beside = Beside(str(tmp_path / "nobody"), tmp_path)
    await beside.server.start()
    try:
        client = beside.client("publish:*", "history:*")
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        for answer in (await client.post(MESSAGES, content=b"x"), await client.get(MESSAGES)):
            document = problem(answer, 503, "unavailable")
            assert document["retryable"] is True
            assert "retry-after" in answer.headers
    finally:
        for client in beside.clients:
            await client.aclose()
        await beside.server.stop()


async def test_servers_that_are_known_later_are_used_then(address: muster.testing.Instance, tmp_path: Any) -> None:
    beside = Beside(muster.Address((), (), address.token), tmp_path)
    await beside.server.start()
    try:
        client = beside.client("publish:*", "history:*")
        problem(await client.post(MESSAGES, content=b"x"), 503, "unavailable")
        problem(await client.get(MESSAGES), 503, "unavailable")
        assert (await client.get("/readyz")).status_code == 503
        beside.server.redirect(muster.Address(address.gateways, address.proxies, address.token))

        async def ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await eventually(ready)
        assert (await client.post(MESSAGES, content=b"x")).status_code == 200
        assert await datas(client) == ["x"]
    finally:
        for client in beside.clients:
            await client.aclose()
        await beside.server.stop()


async def test_an_unknown_path_and_method_are_problems(make: Make) -> None:
    client = (await make()).client()
    problem(await client.get("/api/v2/rooms"), 404, "not_found")
    answer = await client.delete(MESSAGES)
    problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) >= {"GET", "POST"}

"""The server API of Centrifugo: what its methods do with rooms, their scopes and the codes of their errors."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

import muster.testing
from muster_server.systems.rooms.http.centrifugo import positions
from muster_server.systems.rooms.http.centrifugo.methods import METHODS, MISSING
from tests.http.conftest import Make, eventually
from tests.waiting import PATIENT_S

ALL = ("publish:*", "history:*", "members:*", "rooms:*")
Call = Callable[..., Awaitable[Any]]


def calling(client: httpx2.AsyncClient) -> Call:
    """Calls a method, and returns its whole answer."""

    async def call(method: str, **body: Any) -> Any:
        answer = await client.post(f"/api/{method}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return call


async def test_a_message_reaches_members_as_the_json_that_was_sent(
    make: Make, address: muster.testing.Instance
) -> None:
    call = calling((await make()).client(*ALL))
    async with muster.connect(address) as member, member.join("chat:lobby") as room:
        said = await call("publish", channel="chat:lobby", data="hi")
        item = await anext(room)
    assert isinstance(item, muster.Message)
    assert item.data == b'"hi"'
    assert said == {"result": {"offset": 1, "epoch": positions.of(item.position).epoch}}


async def test_a_binary_message_comes_in_base64(make: Make, address: muster.testing.Instance) -> None:
    call = calling((await make()).client(*ALL))
    async with muster.connect(address) as member, member.join("chat:lobby") as room:
        await call("publish", channel="chat:lobby", b64data=base64.b64encode(b"\xff\x00").decode())
        item = await anext(room)
    assert isinstance(item, muster.Message)
    assert item.data == b"\xff\x00"


async def test_tags_are_headers_and_come_back_as_tags(make: Make, address: muster.testing.Instance) -> None:
    call = calling((await make()).client(*ALL))
    async with muster.connect(address) as member, member.join("chat:lobby") as room:
        await call("publish", channel="chat:lobby", data={"n": 1}, tags={"kind": "goal"}, idempotency_key="k")
        item = await anext(room)
    assert isinstance(item, muster.Message)
    assert item.headers == {"kind": "goal"}
    [message] = (await call("history", channel="chat:lobby", limit=1))["result"]["publications"]
    assert message["tags"] == {"kind": "goal"}
    again = await call("publish", channel="chat:lobby", data={"n": 1}, tags={"kind": "save"}, idempotency_key="k")
    assert again["error"]["code"] == 107


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, 107, "channel"),
        ({"channel": "a:b"}, 107, "`data` is missing"),
        ({"channel": "a:b", "b64data": "?"}, 107, "base64"),
        ({"channel": "a\nb", "data": 1}, 107, "control character"),
        ({"channel": "a:b", "data": "x" * 70_000}, 107, "65536"),
        ({"channel": "a:b", "data": 1, "colour": "red"}, 107, "colour"),
        ({"channel": "a:b", "data": 1, "skip_history": True}, 108, "skip_history"),
        ({"channel": "a:b", "data": 1, "tags": {"a b": ""}}, 107, "the name of a header"),
        ({"channel": "a:b", "data": 1, "version": 7}, 108, "version"),
    ],
)
async def test_a_publish_that_cannot_be_done_says_why(make: Make, body: dict[str, Any], code: int, says: str) -> None:
    call = calling((await make()).client(*ALL))
    error = (await call("publish", **body))["error"]
    assert error["code"] == code
    assert says in error["message"].replace(",", "")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"channel": "\xff"}', b"[" * 100_000])
async def test_a_body_that_is_no_json_of_the_method_is_a_bad_request(make: Make, body: bytes) -> None:
    client = (await make()).client(*ALL)
    answer = await client.post("/api/publish", content=body)
    assert answer.json()["error"]["code"] == 107


async def test_a_broadcast_answers_each_channel_apart(make: Make) -> None:
    call = calling((await make()).client("publish:chat:*"))
    said = await call("broadcast", channels=["chat:a", "news:a", "chat:b"], data={"n": 1})
    codes = [each.get("error", {}).get("code") for each in said["result"]["responses"]]
    assert codes == [None, 103, None]


async def test_history_has_the_position_alone_or_messages_from_either_end(make: Make) -> None:
    call = calling((await make()).client(*ALL))
    for n in range(1, 6):
        top = (await call("publish", channel="chat:lobby", data=n))["result"]

    async def complete() -> bool:
        return bool((await call("history", channel="chat:lobby"))["result"] == {"publications": [], **top})

    await eventually(complete)

    async def numbers(**wanted: Any) -> list[int]:
        found = (await call("history", channel="chat:lobby", **wanted))["result"]["publications"]
        return [each["data"] for each in found]

    since = {"offset": 2, "epoch": top["epoch"]}
    assert await numbers(limit=-1) == [1, 2, 3, 4, 5]
    assert await numbers(limit=2) == [1, 2]
    assert await numbers(limit=2, reverse=True) == [5, 4]
    assert await numbers(limit=10, since=since) == [3, 4, 5]
    assert await numbers(limit=10, since=since, reverse=True) == [1]
    assert await numbers(limit=10, since={"offset": 4}) == [5]


@pytest.mark.parametrize("epoch", ["x", "AAAA", "AQIAAAABAAAACQAAAAAAAAAAAAAA", "ü"])
async def test_history_since_a_foreign_position_is_unrecoverable(make: Make, epoch: str) -> None:
    call = calling((await make()).client(*ALL))
    await call("publish", channel="chat:lobby", data=1)
    said = await call("history", channel="chat:lobby", limit=1, since={"offset": 0, "epoch": epoch})
    assert said["error"]["code"] == 112


async def test_history_of_what_is_no_json_is_base64_and_says_so(make: Make) -> None:
    client = (await make()).client(*ALL)
    await client.post("/api/v1/rooms/chat:lobby/messages", content=b"no json")
    call = calling(client)

    async def there() -> bool:
        return bool((await call("history", channel="chat:lobby", limit=1))["result"]["publications"])

    await eventually(there)
    [message] = (await call("history", channel="chat:lobby", limit=1))["result"]["publications"]
    assert message["tags"] == {"encoding": "base64"}
    assert base64.b64decode(message["data"]) == b"no json"


async def test_a_publish_with_an_idempotency_key_is_done_once_for_each_channel(make: Make) -> None:
    call = calling((await make()).client(*ALL))
    first = await call("publish", channel="chat:a", data=1, idempotency_key="k")
    assert await call("publish", channel="chat:a", data=1, idempotency_key="k") == first
    assert (await call("publish", channel="chat:b", data=1, idempotency_key="k"))["result"]["offset"] == 1
    assert (await call("publish", channel="chat:a", data=2, idempotency_key="k"))["error"]["code"] == 107


async def test_presence_names_users_and_counts_members(make: Make, address: muster.testing.Instance) -> None:
    call = calling((await make()).client(*ALL))
    async with muster.connect(address) as member, member.join("chat:lobby"):
        presence = (await call("presence", channel="chat:lobby"))["result"]["presence"]
        stats = (await call("presence_stats", channel="chat:lobby"))["result"]
    assert presence == {"u1": {"client": "u1", "user": "1"}}
    assert stats == {"num_clients": 1, "num_users": 1}


async def test_a_batch_answers_each_command_in_order(make: Make) -> None:
    call = calling((await make()).client("publish:*"))
    commands = [
        {"publish": {"channel": "chat:a", "data": 1}},
        {"presence": {"channel": "chat:a"}},
        {"fly": {}},
        {"batch": {"commands": []}},
        {"publish": {"channel": "chat:a", "data": 2}},
    ]
    for parallel in (False, True):
        replies = (await call("batch", commands=commands, parallel=parallel))["replies"]
        assert [next(iter(reply)) for reply in replies] == ["publish", "error", "error", "error", "publish"]
        assert [reply["error"]["code"] for reply in replies[1:4]] == [103, 104, 107]


async def test_a_batch_is_bounded(make: Make) -> None:
    call = calling((await make(batch_max=2)).client(*ALL))
    assert (await call("batch", commands=[{"info": {}}] * 3))["error"]["code"] == 107
    assert (await call("broadcast", channels=["a", "b", "c"], data=1))["error"]["code"] == 107


@pytest.mark.parametrize(
    ("method", "scope", "body"),
    [
        ("publish", "publish:chat:*", {"channel": "chat:a", "data": 1}),
        ("history", "history:chat:*", {"channel": "chat:a"}),
        ("presence", "members:chat:*", {"channel": "chat:a"}),
        ("presence_stats", "members:chat:*", {"channel": "chat:a"}),
        ("channels", "rooms:chat:*", {}),
        ("info", "rooms:chat:*", {}),
    ],
)
async def test_a_method_needs_the_scope_of_the_same_action(
    make: Make, method: str, scope: str, body: dict[str, Any]
) -> None:
    beside = await make()
    others = [f"{action}:*" for action in ("publish", "read", "history", "members", "rooms", "command")]
    without = [other for other in others if other.partition(":")[0] != scope.partition(":")[0]]
    assert (await calling(beside.client(*without))(method, **body))["error"]["code"] == 103
    assert "result" in await calling(beside.client(scope))(method, **body)


@pytest.mark.parametrize("method", MISSING)
async def test_a_method_that_rooms_cannot_do_says_what_to_do_instead(make: Make, method: str) -> None:
    error = (await calling((await make()).client(*ALL))(method, user="7", channel="a"))["error"]
    assert error["code"] == 108
    assert MISSING[method] in error["message"]


async def test_a_key_may_come_by_either_header(make: Make) -> None:
    beside = await make()
    key = beside.key("publish:*")
    client = beside.client()
    for headers in ({"x-api-key": key}, {"authorization": f"apikey {key}"}, {"authorization": f"Bearer {key}"}):
        answer = await client.post("/api/publish", json={"channel": "a:b", "data": 1}, headers=headers)
        assert "result" in answer.json(), headers
    for headers in ({}, {"x-api-key": "no key"}, {"authorization": "apikey no-key"}, {"authorization": f"Basic {key}"}):
        assert (await client.post("/api/publish", json={}, headers=headers)).status_code == 401


async def test_a_rate_limit_is_the_code_for_too_many(make: Make) -> None:
    call = calling((await make(messages_rate=1)).client(*ALL))
    codes: list[int | None] = []
    async with asyncio.timeout(PATIENT_S):
        while 111 not in codes:  # a machine that stands still for a second lets one more pass
            codes.append((await call("publish", channel="a:b", data=1)).get("error", {}).get("code"))
    assert len(codes) >= 3
    assert set(codes) == {None, 111}


async def test_every_method_is_described(make: Make) -> None:
    paths = (await (await make()).client().get("/openapi.json")).json()["paths"]
    for method in (*METHODS, *MISSING):
        assert set(paths[f"/api/{method}"]) == {"post"}

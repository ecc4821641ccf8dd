"""Presence over HTTP, in front of a real reader: look-ups, the stream of changes, the typed client, keys that are wrong."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

import muster.testing
from muster.errors import Refused, Unavailable
from muster.presence import Change, Presence
from muster_server.control.cluster.instance import Process
from muster_server.plane.trust import Trust
from muster_server.plane.users import user_of
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.presence.http.send import Device, Sender
from tests.http.conftest import SECRET, Beside, eventually
from tests.presence.rig import Rig
from tests.waiting import PATIENT_S

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """One site, one gateway."""
    async with Rig(tmp_path, writers=(1,), gateways=1, grace_ms=0) as made:
        await made.right([7])
        yield made


@pytest.fixture
async def beside(rig: Rig, address: muster.testing.Instance, tmp_path: Path) -> AsyncIterator[Beside]:
    """A face that finds the rig's reader."""
    nodes = [
        Process(
            name="online-reader",
            role="online-reader",
            node=1,
            partition=0,
            pid=1,
            epoch=1,
            restarts=0,
            ready=True,
            link=("127.0.0.1", 0),
            admin=("127.0.0.1", 1),
            bind=each,
        )
        for each in rig.addresses
    ]

    async def found() -> Sequence[Process]:
        return nodes

    made = Beside(address, tmp_path)
    secret = str(tmp_path / "cluster.secret")
    told = {"presence": {"sites": 2, "shards": [1, 2]}}  # the second site has no reader
    made.settings = dataclasses.replace(made.settings, nodes=found, cluster_secret_file=secret, told=told)
    made.begin()
    await made.server.start()
    yield made
    for client in made.clients:
        await client.aclose()
    await made.server.stop()


async def test_users_are_told_in_the_order_of_the_question(rig: Rig, beside: Beside) -> None:
    rig.gateways[1].online([7, (1 << 64) - 1])
    await rig.right([7, (1 << 64) - 1])
    client = beside.client("presence:*")
    said = (await client.post("/api/v1/presence", json={"users": ["8", "18446744073709551615", "7"], "site": 1})).json()
    assert said["site"] == 1
    assert [each["user"] for each in said["users"]] == ["8", "18446744073709551615", "7"]
    assert [each["online"] for each in said["users"]] == [False, True, True]
    (device,) = said["users"][2]["devices"]
    assert (device["device"], device["gateway"]) == ("phone", 1)
    mistakes: list[dict[str, object]] = [
        {"users": ["x"]},
        {"users": ["007"]},
        {"users": ["-7"]},
        {"users": [str(1 << 64)]},
        {"users": ["1"] * 1_001},
        {"user": "1"},
    ]
    for wrong in mistakes:
        assert (await client.post("/api/v1/presence", json=wrong)).status_code == 400
    assert (await client.post("/api/v1/presence", json={"users": ["7"], "site": 9})).status_code == 400
    assert (await client.post("/api/v1/presence", json={"users": []})).json() == {"site": 1, "users": []}


async def test_a_key_sees_its_own_users_alone(beside: Beside) -> None:
    asked = {"users": ["7", "70"]}
    for scopes, status in (((), 401), (("publish:*",), 403), (("presence:7",), 403), (("presence:7*",), 200)):
        client = beside.client(*scopes)
        assert (await client.post("/api/v1/presence", json=asked)).status_code == status
        sent = await client.post("/api/v1/send", json=asked | {"data": "x"})
        assert sent.status_code == (403 if scopes else 401), "a key of presence sends nothing"
        users, streamed = ("7,70", status) if status != 200 else ("x", 400)
        assert (await client.get(f"/api/v1/presence/changes?users={users}")).status_code == streamed
    foreign = httpx2.AsyncClient(base_url=beside.server.url, headers={"x-api-key": "mk_nobody"}, trust_env=False)
    beside.clients.append(foreign)
    assert (await foreign.post("/api/v1/presence", json=asked)).status_code == 401
    assert (await foreign.post("/api/v1/send", json=asked | {"data": "x"})).status_code == 401
    assert (await foreign.get("/api/v1/presence/changes?users=7")).status_code == 401


async def test_the_typed_client_looks_up_and_watches(rig: Rig, beside: Beside) -> None:
    key = beside.key("presence:*")
    told: asyncio.Queue[Change] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def watch(presence: Presence, count: int) -> None:
        for change in itertools.islice((each for each in presence.watch([7, 8]) if each.id is not None), count):
            loop.call_soon_threadsafe(told.put_nowait, change)

    with Presence(beside.server.url, key=key) as presence:
        assert [user.online for user in await asyncio.to_thread(presence.who, [7, 8])] == [False, False]
        watching = asyncio.create_task(asyncio.to_thread(watch, presence, 2))
        changes: list[Change] = []
        async with asyncio.timeout(PATIENT_S):
            while len(changes) < 2:  # the watch may open after the first of them
                rig.gateways[1].online([7])
                await rig.right([7])
                rig.gateways[1].offline([7])
                await rig.right([7])
                while not told.empty():
                    changes.append(told.get_nowait())
        await watching
        assert {change.user for change in changes} == {7}
        assert {change.state for change in changes} == {"online", "offline"}
        (user,) = await asyncio.to_thread(presence.who, [7])
        assert user.last_seen is not None
    with Presence(beside.server.url, key="mk_nobody") as stranger:
        with pytest.raises(Refused):
            await asyncio.to_thread(stranger.who, [7])
        with pytest.raises(Refused):
            await asyncio.to_thread(next, stranger.watch([7]))


async def test_a_reader_that_is_gone_is_unavailable(rig: Rig, beside: Beside) -> None:
    await rig.readers[1].kill()
    with Presence(beside.server.url, key=beside.key("presence:*")) as presence, pytest.raises(Unavailable):
        await asyncio.to_thread(presence.who, [7])


async def test_a_user_that_is_named_twice_gets_one_message() -> None:
    asked: list[int] = []

    async def ask(client: muster.Client, user: int) -> list[muster.DeviceResult]:
        asked.append(user)
        return [muster.DeviceResult("phone", "delivered")]

    async def opened() -> Any:
        return None

    sender = Sender(cast(Any, SimpleNamespace(where=None)))
    sender._opened = opened  # type: ignore[method-assign]
    sent = await sender.each([7, 9, 7], ["7", "alice", "7"], ask)
    assert asked == [7, 9]
    assert [(each.user, each.text, each.devices) for each in sent.users] == [
        ("7", None, [Device("phone", "delivered")]),
        ("9", "alice", [Device("phone", "delivered")]),
    ]


async def test_stats_name_the_shards_of_a_site_that_does_not_answer(beside: Beside) -> None:
    """They were left out, as if the instance had one site."""
    said = (await beside.client("presence:*").get("/api/v1/presence/stats")).json()["shards"]
    assert [(each["site"], each["shard"], each["serving"]) for each in said] == [
        (1, 0, True),
        (2, 0, False),
        (2, 1, False),
    ]
    assert {each["why"] for each in said[1:]} == {"no reader of this site answers"}


async def test_first_digits_match_no_number_that_may_be_the_hash_of_a_text(beside: Beside) -> None:
    hashed, other = str((1 << 63) + 5), str((1 << 63) + 6)
    for scopes, status in (
        (("presence:9*", "unicast:9*"), 403),
        ((f"presence:{hashed}", f"unicast:{hashed}"), 200),
        (("presence:*", "unicast:*"), 200),
    ):
        client = beside.client(*scopes)
        assert (await client.post("/api/v1/presence", json={"users": [hashed]})).status_code == status
        sent = await client.post("/api/v1/send", json={"users": [hashed], "data": "x", "expires": 0.1})
        assert sent.status_code == status or (status, sent.json().get("code")) == (200, "unavailable"), sent.text
        ended = await client.post("/api/v1/presence/end", json={"users": [hashed], "expires": 0.1})
        assert ended.status_code == 403, "this needs a scope of its own"
    assert (await client.post("/api/v1/presence", json={"users": ["97"]})).status_code == 200
    for path in ("/api/v1/presence/changes?users=" + other,):
        answer = await beside.client("presence:9*").get(path)
        assert answer.status_code == 403
    assert (await beside.client("presence:9*").post("/api/v1/presence", json={"users": ["97"]})).status_code == 200


class Events:
    """A stream of changes that is open."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The id of the next event, or its name, and its data."""
        head = ""
        async with asyncio.timeout(60):
            async for line in self._lines:
                if line.startswith(("id: ", "event: ")):
                    head = line.partition(": ")[2]
                elif line.startswith("data: "):
                    return head, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream ended")


@contextlib.asynccontextmanager
async def watched(client: httpx2.AsyncClient, users: str, after: str = "") -> AsyncIterator[Events]:
    """A watch over HTTP."""
    headers = {"last-event-id": after} if after else {}
    async with client.stream("GET", f"/api/v1/presence/changes?users={users}", headers=headers) as answer:
        assert answer.status_code == 200
        yield Events(answer)


async def test_a_watch_begins_with_the_state_and_goes_on_where_it_was_cut(rig: Rig, beside: Beside) -> None:
    gateway, client = rig.gateways[1], beside.client("presence:*")
    gateway.online([7])
    await rig.right([7])
    async with watched(client, "7,7,8") as events:  # each has its state once
        first = dict([await events.next() for _ in range(1)])
        assert first["state"]["user"] == "7"
        assert (first["state"]["device"], first["state"]["state"], first["state"]["id"]) == ("phone", "online", None)
        name, told = await events.next()
        assert (name, told["user"], told["device"], told["state"]) == ("state", "8", None, "offline")
        gateway.online([8])
        last, told = await events.next()
        while told["user"] != "8":  # that 7 came may be told again
            last, told = await events.next()
        assert (last, told["state"]) == (told["id"], "online")
    gateway.offline([8])
    gateway.online([8], "laptop")
    await rig.right([7, 8])
    async with watched(client, "7,8", after=last) as events:
        missed = [await events.next() for _ in range(2)]
        assert sorted((told["device"], told["state"]) for _, told in missed) == [
            ("laptop", "online"),
            ("phone", "offline"),
        ]
        assert all(name == told["id"] for name, told in missed)
    async with watched(client, "7,8", after="9-9-9-9") as events:
        assert (await events.next())[0] == "state", "an id that is not known: the state again"
    assert (await client.get("/api/v1/presence/changes?users=7&after=x")).status_code == 400


async def test_many_watches_leave_look_ups_alone_and_end_with_their_clients(rig: Rig, beside: Beside) -> None:
    gateway, client = rig.gateways[1], beside.client("presence:*", limits=httpx2.Limits(max_connections=None))
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(watched(client, "7,8")) for _ in range(150)]
        for events in opened:
            assert [(await events.next())[0] for _ in range(2)] == ["state"] * 2
        assert (await client.post("/api/v1/presence", json={"users": ["7"]})).status_code == 200
        gateway.online([7])
        for events in opened:
            assert (await events.next())[1]["state"] == "online"
        assert beside.server.status()["presence_watches"] == 150
    await eventually(lambda: _holds(lambda: beside.server.status()["presence_watches"] == 0), 60)


async def _holds(what: Callable[[], bool]) -> bool:
    return what()


async def test_a_face_takes_as_many_watches_as_it_may_and_says_so(beside: Beside) -> None:
    beside.settings = dataclasses.replace(beside.settings, options=HttpOptions(streams_max=2))
    await beside.server.stop()
    beside.begin()
    await beside.server.start()
    client = beside.client("presence:*")
    async with watched(client, "7") as one, watched(client, "7") as two:
        for events in (one, two):
            await events.next()
        refused = await client.get("/api/v1/presence/changes?users=7")
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert "http.streams_max" in refused.json()["detail"]
    await eventually(lambda: _opens(client), 60)


async def _opens(client: httpx2.AsyncClient) -> bool:
    async with client.stream("GET", "/api/v1/presence/changes?users=7") as answer:
        return answer.status_code == 200


async def test_users_of_text_are_asked_for_and_watched_by_their_text(rig: Rig, beside: Beside) -> None:
    beside.settings = dataclasses.replace(beside.settings, trust=Trust((SECRET,), user_key=b"k" * 16))
    await beside.server.stop()
    beside.begin()
    await beside.server.start()
    beside.server.reload(beside.settings.trust)
    number = user_of("alice", b"k" * 16)
    rig.gateways[1].online([number])
    await rig.right([number])
    key = beside.key("presence:*")
    beside.server.reload(beside.settings.trust)
    with Presence(beside.server.url, key=key) as presence:
        (alice, other) = await asyncio.to_thread(presence.who, ["alice", 9])
        assert (alice.user, alice.text, alice.online) == (number, "alice", True)
        assert (other.user, other.text, other.online) == (9, None, False)
        state = await asyncio.to_thread(next, presence.watch(["alice"]))
        assert (state.user, state.device, state.id) == (number, "phone", None)

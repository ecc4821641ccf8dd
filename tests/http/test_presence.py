"""Presence over HTTP, in front of a real reader: look-ups, the stream of changes, the typed client, keys that are wrong."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import shutil
import time
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
from muster_server.plane.auth import Patterns, mint
from muster_server.plane.trust import Trust
from muster_server.plane.users import user_of
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.presence.http.routes import USER_WATCHES_MAX
from muster_server.systems.presence.http.send import Sender
from muster_server.systems.presence.http.sent import Device
from tests.documents import ROOT, fenced
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


def token(user: int | str, *cap: tuple[str, Sequence[str]], seconds: float = 600, name: str | None = None) -> str:
    """A user's token with this `cap`."""
    wanted: Patterns = cap
    return mint(SECRET, user, [], time.time(), seconds, wanted, name)


async def test_a_member_sees_itself_and_the_users_of_its_cap(rig: Rig, beside: Beside) -> None:
    hashed = str((1 << 63) + 5)
    cap = [("presence:8", ["watch"]), ("presence:7*", ["watch"]), ("presence:71", []), ("presence:9*", ["watch"])]
    client = beside.client(token=token(5, *cap))
    for users, status in (
        (["8"], 200),
        (["5", "70", "799"], 200),
        (["71"], 403),
        (["8", "6"], 403),
        ([hashed], 403),  # its first digits have no meaning
        (["x"], 400),
    ):
        assert (await client.post("/api/v1/presence", json={"users": users})).status_code == status, users
        async with client.stream("GET", f"/api/v1/presence/changes?users={','.join(users)}") as answer:
            assert answer.status_code == status, users
    assert (await client.get("/api/v1/presence/stats")).status_code == 403
    assert (await client.post("/api/v1/send", json={"users": ["8"], "data": "x"})).status_code == 403
    whole = beside.client(token=token(5, (f"presence:{hashed}", ["watch"])))
    assert (await whole.post("/api/v1/presence", json={"users": [hashed]})).status_code == 200
    rights = beside.client(token=token(5, ("*", ["read", "publish", "members"]), ("presence:*", ["read"])))
    assert (await rights.post("/api/v1/presence", json={"users": ["8"]})).status_code == 403, (
        "rights in rooms are others"
    )
    every = beside.client(token=token(5, ("presence:*", ["watch"])))
    assert (await every.post("/api/v1/presence", json={"users": ["8", hashed]})).status_code == 200
    assert (await every.get("/api/v1/presence/stats")).status_code == 403
    assert (await beside.client(token="x.y.z").post("/api/v1/presence", json={"users": ["5"]})).status_code == 401


async def test_a_member_watches_and_goes_on_where_it_was_cut(rig: Rig, beside: Beside) -> None:
    gateway, credential = rig.gateways[1], token(5, ("presence:7", ["watch"]))

    loop, told = asyncio.get_running_loop(), asyncio.Queue[Change]()

    def watch(after: str | None, count: int) -> None:
        with Presence(beside.server.url, token=credential) as presence:
            for each in itertools.islice(presence.watch([7], after=after), count):
                loop.call_soon_threadsafe(told.put_nowait, each)

    first = asyncio.create_task(asyncio.to_thread(watch, None, 2))
    state = await told.get()
    gateway.online([7])
    change = await told.get()
    await first
    assert (state.device, state.state, state.id) == (None, "offline", None)
    assert (change.device, change.state) == ("phone", "online")
    gateway.offline([7])
    await rig.right([7])
    await asyncio.to_thread(watch, change.id, 1)
    missed = await told.get()
    assert (missed.device, missed.state) == ("phone", "offline")
    assert missed.id not in {None, change.id}


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
async def test_the_example_for_a_page_watches_and_goes_on(rig: Rig, beside: Beside) -> None:
    (example,) = fenced((ROOT / "docs" / "presence.md").read_text(), "js")
    rig.gateways[1].online([7])
    await rig.right([7])

    async def told(after: str, count: int) -> list[dict[str, Any]]:
        words = json.dumps([beside.server.url, token(5, ("presence:7", ["watch"])), ["7"]])[1:-1]
        tell = "change => console.log(JSON.stringify(change))"
        script = f"{example}\nwatch({words}, {tell}, {json.dumps(after)})"
        node = await asyncio.create_subprocess_exec("node", "-e", script, stdout=asyncio.subprocess.PIPE)
        assert node.stdout is not None
        try:
            async with asyncio.timeout(PATIENT_S):
                lines = [await node.stdout.readline() for _ in range(count)]
        finally:
            node.kill()
            await node.wait()
        return [json.loads(line) for line in lines]

    (state,) = await told("", 1)
    assert (state["device"], state["state"], state["id"]) == ("phone", "online", None)
    async with watched(beside.client(token=token(7)), "7") as events:
        await events.next()
        rig.gateways[1].offline([7])
        change: dict[str, Any] = {"state": "online"}
        while change["state"] != "offline":
            change = (await events.next())[1]
        rig.gateways[1].online([7], "laptop")
        await rig.right([7])
    (missed,) = await told(change["id"], 1)
    assert (missed["device"], missed["state"]) == ("laptop", "online")


async def test_a_watch_ends_with_its_token(rig: Rig, beside: Beside) -> None:
    revoked = beside.client(token=token(5, name="first"))
    async with watched(revoked, "5") as events:
        assert (await events.next())[0] == "state"
        beside.server.reload(Trust((SECRET,), tokens=frozenset({"first"})))
        with pytest.raises(AssertionError, match="the stream ended"):
            await events.next()
    assert (await revoked.post("/api/v1/presence", json={"users": ["5"]})).status_code == 401


async def test_a_user_has_so_many_watches_and_is_told(rig: Rig, beside: Beside) -> None:
    client = beside.client(token=token(5), limits=httpx2.Limits(max_connections=None))
    other = beside.client(token=token(6))
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(watched(client, "5")) for _ in range(USER_WATCHES_MAX)]
        for events in opened:
            assert (await events.next())[0] == "state"
        refused = await client.get("/api/v1/presence/changes?users=5")
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert f"limit {USER_WATCHES_MAX}" in refused.json()["detail"]
        async with watched(other, "6") as events:
            assert (await events.next())[0] == "state"
    await eventually(lambda: _holds(lambda: beside.server.status()["presence_watches"] == 0))


async def _status(client: httpx2.AsyncClient, document: object, user: str = "") -> httpx2.Response:
    return await client.put("/api/v1/presence/status" + (f"?user={user}" if user else ""), json=document)


async def test_a_user_sets_its_status_and_its_watchers_see_it(rig: Rig, beside: Beside) -> None:
    mine, other = beside.client(token=token(7)), beside.client(token=token(8, ("presence:7", ["watch"])))
    async with watched(other, "7") as events:
        assert (await events.next())[0] == "state"
        said = (await _status(mine, {"mode": "dnd", "text": "in a meeting \N{GRINNING FACE}"})).json()["status"]
        assert (said["mode"], said["text"], said["until"]) == ("dnd", "in a meeting \N{GRINNING FACE}", None)
        head, told = await events.next()
        assert (head, told["state"], told["device"], told["status"]) == ("status", "status", None, said)
        last = told["id"]
        assert (await _status(mine, {})).json() == {"status": None}
        assert (await events.next())[1]["status"] is None
    async with watched(other, "7", after=last) as events:
        names = [await events.next() for _ in range(2)]
        assert [(told["state"], told.get("status")) for _, told in names] == [("offline", None), ("status", None)]
        assert names[1][1]["id"], "a watch goes on from here"
    assert (await _status(mine, {"text": "back", "expires": 60})).status_code == 200
    async with watched(other, "7") as events:
        assert [(await events.next())[0] for _ in range(2)] == ["state", "status"]
    (user,) = (await other.post("/api/v1/presence", json={"users": ["7"]})).json()["users"]
    assert user["status"]["text"] == "back"
    assert user["status"]["until"] - user["status"]["at"] == 60_000


async def test_an_invisible_user_is_offline_to_others_and_itself_to_itself(rig: Rig, beside: Beside) -> None:
    rig.gateways[1].online([7])
    await rig.right([7])
    mine, other = beside.client(token=token(7)), beside.client(token=token(8, ("presence:7", ["watch"])))
    backend = beside.client("presence:*")
    async with watched(other, "7") as events, watched(mine, "7") as own:
        assert (await events.next())[1]["device"] == "phone"
        assert (await own.next())[1]["device"] == "phone"
        assert (await _status(mine, {"mode": "invisible", "text": "hidden"})).status_code == 200
        told = [(await events.next())[1] for _ in range(2)]
        assert [(each["state"], each["device"]) for each in told] == [("offline", None), ("status", None)]
        assert told[1]["status"] is None
        assert (await own.next())[1]["status"]["mode"] == "invisible"
        rig.gateways[1].online([7], "laptop")
        assert (await own.next())[1]["device"] == "laptop"
        for client, devices in ((other, 0), (backend, 0), (mine, 2)):
            (user,) = (await client.post("/api/v1/presence", json={"users": ["7"]})).json()["users"]
            assert (user["online"], len(user["devices"])) == (bool(devices), devices)
            assert user["last_seen"] is not None
            assert user.get("status", {}).get("mode") == ("invisible" if devices else None)
        (found,) = (await rig.asking.who([7])).users
        assert len(found.devices) == 2, "messages still reach it"
        last = told[1]["id"]
        async with watched(other, "7", after=last) as again:  # the laptop, which came meanwhile, is not told
            assert (await _status(mine, {"mode": "available"})).status_code == 200
            for each in (events, again):
                told = [(await each.next())[1] for _ in range(3)]
                assert sorted(str(one["device"]) for one in told) == ["None", "laptop", "phone"]
                assert {one["state"] for one in told} == {"online", "status"}
    async with watched(other, "7", after=last) as events:
        told = [(await events.next())[1] for _ in range(3)]
        assert sorted(str(one["device"]) for one in told) == ["None", "laptop", "phone"]


async def test_a_status_that_is_wrong_or_not_ones_own_is_refused(beside: Beside) -> None:
    mine = beside.client(token=token(7))
    wrong: list[object] = [
        {"mode": "asleep"},
        {"text": "x" * 257},
        {"text": "\N{GRINNING FACE}" * 65},
        {"text": "two\nlines"},
        {"away_after": 86_401},
        {"expires": -1},
        {"status": "x"},
        [],
    ]
    for document in wrong:
        answer = await _status(mine, document)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_body"), document
    assert "limit 256" in (await _status(mine, {"text": "x" * 257})).json()["detail"]
    assert (await _status(mine, {"text": "x" * 256})).status_code == 200
    assert (await _status(mine, {}, "7")).status_code == 200
    assert (await _status(mine, {}, "8")).status_code == 403
    assert (await _status(beside.client("status:7*"), {}, "8")).status_code == 403
    assert (await _status(beside.client("status:7*"), {}, "77")).status_code == 200
    assert (await _status(beside.client("presence:*"), {}, "77")).status_code == 403
    unnamed = await _status(beside.client("status:*"), {})
    assert (unnamed.status_code, unnamed.json()["code"]) == (400, "bad_request")
    assert (await beside.client().put("/api/v1/presence/status", json={})).status_code == 401


async def test_a_user_that_does_nothing_is_away_and_a_status_ends(rig: Rig, beside: Beside) -> None:
    other = beside.client("presence:*")
    with Presence(beside.server.url, token=token(7)) as presence:
        async with watched(other, "7") as events:
            assert (await events.next())[0] == "state"
            await asyncio.to_thread(presence.set_status, text="at work", away_after=0.001)
            told = (await events.next())[1]["status"]
            while told["mode"] != "away":  # the first one may be told before it turns
                told = (await events.next())[1]["status"]
            assert told["text"] == "at work"
            (user,) = await asyncio.to_thread(presence.who, [7])
            assert user.status is not None
            assert (user.status.mode, user.status.text) == ("away", "at work")
            await asyncio.to_thread(presence.set_status, text="at work", away_after=600)
            assert (await events.next())[1]["status"]["mode"] == "available"
            await asyncio.to_thread(presence.set_status, "dnd", expires=0.001)
            told = (await events.next())[1]["status"]
            while told is not None:
                told = (await events.next())[1]["status"]
            (user,) = await asyncio.to_thread(presence.who, [7])
            assert user.status is None


async def test_without_the_store_of_statuses_nobody_is_told_where_users_are(rig: Rig, beside: Beside) -> None:
    """An invisible user would be told as online."""
    await rig.redis[0].kill()
    answer = await beside.client("presence:*").post("/api/v1/presence", json={"users": ["7"]})
    assert answer.status_code == 503
    assert (await _status(beside.client(token=token(7)), {"text": "x"})).status_code == 503

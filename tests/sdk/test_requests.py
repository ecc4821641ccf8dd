"""One responder answers each request, and the client learns at once that there is none. The cases are those of NATS's
clients: no responders, time-out, many responders, one that dies, many requests at once, a reply that is too long."""

import asyncio
import contextlib
import json
from collections import Counter
from typing import Final

import pytest

import muster
import muster.testing
from muster import requests
from muster.responder import SHARED_USER, Handler
from muster.sizes import REQUEST_BYTES_MAX
from muster_server import _engines
from tests.waiting import PATIENT_S, until

TURNS: Final = 100


async def echo(request: muster.Request) -> bytes:
    """Answers with the request."""
    return request.data


async def never(request: muster.Request) -> bytes:
    """Does not answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def test_a_responder_answers_a_request(address: muster.testing.Instance) -> None:
    seen: list[muster.Request] = []

    async def handler(request: muster.Request) -> bytes:
        seen.append(request)
        return json.dumps({"eur": request.json()["usd"] * 2}).encode()

    async with muster.connect(address) as asks, muster.connect(address) as answers:
        async with answers.respond("prices", handler) as responder:
            reply = await asks.request("prices", json={"usd": 2}, timeout=60)
            assert (reply.room, reply.responder, reply.sender) == ("prices", responder.id, SHARED_USER)
            assert reply.json() == {"eur": 4}
            assert seen == [muster.Request("prices", SHARED_USER, b'{"usd":2}')]
            assert responder.stats() == {"requests": 1, "replies": 1, "failed": 0, "busy": 0, "unsent": 0}
        assert asks.stats()["requests"] == 1


def test_the_user_of_the_shared_token_is_that_of_the_servers() -> None:
    assert SHARED_USER == _engines.SHARED_USER


@pytest.mark.parametrize(
    "data", [b"", b"text", 'é\n"'.encode(), b"\x00" * 1_000, b"\xff\xfe", b"\\" * REQUEST_BYTES_MAX]
)
async def test_any_bytes_come_and_go_unchanged(address: muster.testing.Instance, data: bytes) -> None:
    async with muster.connect(address) as client, client.respond("r", echo):
        assert (await client.request("r", data, timeout=60)).data == data


async def test_the_longest_request_of_any_bytes_is_a_message() -> None:
    for data in (b"\xff" * REQUEST_BYTES_MAX, b"\x01" * REQUEST_BYTES_MAX, b'"' * REQUEST_BYTES_MAX):
        room = "n" * 32 + ":" + "r" * 160
        said = {"to": "f" * 64, "id": 1 << 53, "reply": room, **requests.pack(data), "sender": str(1 << 63)}
        assert len(requests.encode(said)) <= 65_536
        assert requests.unpack(requests.decode(requests.encode(said))) == data


async def test_no_responder_is_told_at_once_and_one_that_comes_later_answers(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        async with asyncio.timeout(PATIENT_S):  # the request's own time is no less
            with pytest.raises(muster.NoResponders, match="request to prices: the room has no responder now") as none:
                await client.request("prices", b"?", timeout=60)
        assert (none.value.code, none.value.retry) == ("no_responders", True)
        async with client.respond("prices", echo):
            assert (await client.request("prices", b"?", timeout=60)).data == b"?"
        stats = client.stats()
        assert (stats["requests"], stats["requests_no_responders"], stats["requests_timed_out"]) == (2, 1, 0)


async def test_members_of_the_room_itself_are_no_responders_and_see_no_request(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client, client.join("prices") as room:
        with pytest.raises(muster.NoResponders):
            await client.request("prices", b"?", timeout=60)
        async with client.respond("prices", echo):
            await client.request("prices", b"?", timeout=60)
        await client.publish("prices", b"a message")
        item = await anext(room)
        assert isinstance(item, muster.Message)
        assert item.data == b"a message"


async def test_a_responder_without_a_reply_is_a_time_out_and_a_late_reply_is_counted(
    address: muster.testing.Instance,
) -> None:
    go = asyncio.Event()
    go.set()

    async def late(request: muster.Request) -> bytes:
        await go.wait()
        return b"late"

    async with muster.connect(address) as client, client.respond("r", late) as responder:
        await client.request("r", b"?", timeout=60)  # from now on the client knows the responder
        go.clear()
        with pytest.raises(muster.TimedOut, match=r"request to r: no answer in 1 s") as error:
            await client.request("r", b"?", timeout=1)
        assert not isinstance(error.value, muster.NoResponders)
        await until(lambda: responder.stats()["requests"] == 2)
        go.set()
        await until(lambda: client.stats()["replies_late"])
        assert client.stats()["requests_timed_out"] == 1
        assert (await client.request("r", b"?", timeout=60)).data == b"late"


async def test_each_request_goes_to_one_of_many_responders(address: muster.testing.Instance) -> None:
    handled: Counter[bytes] = Counter()

    def handler(name: bytes) -> Handler:
        async def answer(request: muster.Request) -> bytes:
            handled[request.data] += 1
            return name

        return answer

    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            client = await stack.enter_async_context(muster.connect(address))
            await stack.enter_async_context(client.respond("r", handler(b"%d" % number)))
        asks = await stack.enter_async_context(muster.connect(address))
        replies: Counter[bytes] = Counter()
        for turn in range(TURNS):  # the others answer the question a moment after the first one
            said = await asyncio.gather(*(asks.request("r", b"%d-%d" % (turn, n), timeout=60) for n in range(100)))
            replies.update(reply.data for reply in said)
            if len(replies) == 3:
                break
        assert set(replies) == {b"0", b"1", b"2"}
        assert set(handled.values()) == {1}, "no request is handled twice"


async def test_a_responder_that_dies_under_way_costs_its_requests_and_the_next_one_answers(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as asks:
        dies = await muster.connect(address)

        async def hang(request: muster.Request) -> bytes:
            return b"!" if request.data == b"first" else await never(request)

        hangs = dies.respond("r", hang)
        await hangs.__aenter__()
        await asks.request("r", b"first", timeout=60)
        under_way = asyncio.create_task(asks.request("r", b"?", timeout=2))
        await until(lambda: hangs.stats()["requests"] == 2)
        dies._close(muster.Closed("as a crash"))
        async with muster.connect(address) as lives, lives.respond("r", echo):
            with pytest.raises(muster.TimedOut):
                await under_way
            assert (await asks.request("r", b"again", timeout=60)).data == b"again"
        await hangs.__aexit__(None, None, None)


async def test_requests_go_on_while_responders_come_and_end(address: muster.testing.Instance) -> None:
    """A responder that ends answers what it has taken, so none is lost."""
    async with muster.connect(address) as asks, asyncio.TaskGroup() as tasks:
        clients = [await muster.connect(address) for _ in range(2)]
        first = await clients[0].respond("r", echo).__aenter__()
        running = True

        async def ask() -> None:
            while running:
                await asks.request("r", b"?", timeout=60)

        for _ in range(8):
            tasks.create_task(ask())
        for turn in range(1, 4):
            before = asks.stats()["requests"]
            second = await clients[turn % 2].respond("r", echo).__aenter__()
            await until(lambda before=before: asks.stats()["requests"] > before + 20)  # type: ignore[misc]
            await first.__aexit__(None, None, None)
            first = second
        running = False
        await until(lambda: asks._requests is not None and not asks._requests._waiting)
        await first.__aexit__(None, None, None)
        for client in clients:
            await client.close()


async def test_ten_thousand_requests_at_once_are_all_answered(address: muster.testing.Instance) -> None:
    """By ten responders: 1,024 wait at each, beside those that are handled."""
    async with contextlib.AsyncExitStack() as stack:
        responders = []
        for _ in range(10):
            client = await stack.enter_async_context(muster.connect(address))
            responders.append(await stack.enter_async_context(client.respond("r", echo, at_once=1_000)))
        asks = await stack.enter_async_context(muster.connect(address))
        await asks.request("r", b"first", timeout=60)
        await until(lambda: asks._requests is not None and len(asks._requests._rooms["r"].responders) == 10)
        said = await asyncio.gather(*(asks.request("r", b"%d" % number, timeout=60) for number in range(10_000)))
        assert [reply.data for reply in said] == [b"%d" % number for number in range(10_000)]
        assert sum(each.stats()["requests"] for each in responders) == 10_001


async def test_more_requests_than_a_client_may_have_are_refused(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UNDER_WAY_MAX", 3)
    async with muster.connect(address) as client, client.respond("r", never) as responder:
        asked = [asyncio.create_task(client.request("r", b"?", timeout=60)) for _ in range(3)]
        await until(lambda: responder.stats()["requests"] == 3)
        with pytest.raises(muster.Refused, match="too many calls") as refused:
            await client.request("r", b"?", timeout=60)
        assert (refused.value.code, refused.value.retry) == ("busy", True)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(muster.TimedOut):
            await client.request("r", b"?", timeout=0.01)
        await client.close()


async def test_a_responder_with_too_many_requests_says_so(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.responder.WAITING_MAX", 2)
    go = asyncio.Event()

    async def waits(request: muster.Request) -> bytes:
        await go.wait()
        return request.data

    async with muster.connect(address) as client, client.respond("r", waits, at_once=1) as responder:
        asked = [asyncio.create_task(client.request("r", b"?", timeout=60)) for _ in range(4)]
        await until(lambda: responder.stats()["requests"] == 4)
        go.set()
        said = await asyncio.gather(*asked, return_exceptions=True)
        failed = [each for each in said if isinstance(each, muster.ResponderFailed)]
        assert [(each.reason, each.retry) for each in failed] == [("busy", True)]
        assert responder.stats()["busy"] == 1


async def test_a_handler_that_fails_or_gives_no_valid_reply_is_told_without_its_details(
    address: muster.testing.Instance,
) -> None:
    async def handler(request: muster.Request) -> bytes:
        match request.data:
            case b"raise":
                raise RuntimeError("a secret")
            case b"long":
                return b"x" * (REQUEST_BYTES_MAX + 1)
            case _:
                return "text"  # type: ignore[return-value]

    async with muster.connect(address) as client, client.respond("r", handler) as responder:
        for data, reason, words in (
            (b"raise", "failed", "the responder's handler failed"),
            (b"long", "too_long", r"the reply is too long: 48001 bytes \(limit 48000\)"),
            (b"text", "invalid", r"invalid reply of type str \(expected bytes\)"),
        ):
            with pytest.raises(muster.ResponderFailed, match=words) as error:
                await client.request("r", data, timeout=60)
            assert (error.value.code, error.value.reason, error.value.retry) == ("responder_failed", reason, False)
            assert "secret" not in str(error.value)
        assert responder.stats()["failed"] == 3


@pytest.mark.parametrize(
    ("data", "timeout", "error"),
    [
        (b"x" * (REQUEST_BYTES_MAX + 1), 5, muster.TooLong),
        ("text", 5, muster.Invalid),
        (None, 5, muster.Invalid),
        (b"x", 0, muster.Invalid),
        (b"x", 61, muster.Invalid),
        (b"x", float("nan"), muster.Invalid),
    ],
)
async def test_mistakes_are_told_before_anything_is_sent(
    address: muster.testing.Instance, data: bytes, timeout: float, error: type[muster.MusterError]
) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(error):
            await client.request("r", data, timeout=timeout)
        with pytest.raises(muster.BadRoomName):
            await client.request("", b"x")
        with pytest.raises(muster.BadRoomName):
            await client.request("r" * 155, b"x")
        with pytest.raises(muster.Invalid, match="invalid user"):
            await client.request("r", b"x", user=-1)
        with pytest.raises(muster.Invalid, match="invalid at_once"):
            client.respond("r", echo, at_once=0)
        assert client.stats()["requests_timed_out"] == 0
    async with muster.connect(address, gateways=[]) as publishes:
        with pytest.raises(muster.Unavailable, match="no gateway"):
            await publishes.request("r", b"x")
        with pytest.raises(muster.Unavailable, match="no gateway"):
            publishes.respond("r", echo)


async def test_a_closed_client_ends_its_requests_and_its_responder(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as asks:
        answers = await muster.connect(address)
        responder = await answers.respond("r", never).__aenter__()
        asked = asyncio.create_task(asks.request("r", b"?", timeout=60))
        await until(lambda: responder.stats()["requests"])
        await answers.close()
        with pytest.raises(muster.Closed):
            await responder.wait()
        await responder.__aexit__(None, None, None)
        await asks.close()
        with pytest.raises(muster.Closed):
            await asked


async def test_roles_that_start_again_cost_no_more_than_their_time(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as asks, muster.connect(address) as answers, answers.respond("r", echo):
        await asks.request("r", b"?", timeout=60)
        for role in muster.testing.ROLES:
            address.restart(role)
            async with asyncio.timeout(PATIENT_S):
                while True:
                    with contextlib.suppress(muster.NoResponders, muster.TimedOut):
                        assert (await asks.request("r", b"again", timeout=2)).data == b"again"
                        break


# --- rights, and clients that keep to no rule -----------------------------------------------------------------------


async def test_rights_decide_who_asks_and_who_answers() -> None:
    users: dict[bytes, int | muster.testing.User] = {
        b"all": SHARED_USER,
        b"asks": muster.testing.User(7, {"prices/*": ["publish", "members"], "replies:*": ["read", "publish"]}),
        b"answers": muster.testing.User(8, {"prices/*": ["read"], "replies:*": ["publish"]}),
        b"neither": muster.testing.User(9, {"other*": ["read", "publish"], "replies:*": ["read", "publish"]}),
        b"no replies": muster.testing.User(10, {"prices/*": ["publish"]}),
    }
    async with muster.testing.instance(tokens=users) as address, contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(muster.connect(address, token=name))
            for name in users
            if name != b"all"
        }
        with pytest.raises(muster.NoResponders):
            await clients[b"asks"].request("prices", b"?", timeout=60)
        seen: list[int] = []

        async def handler(request: muster.Request) -> bytes:
            seen.append(request.sender)
            return b"!"

        async with clients[b"answers"].respond("prices", handler):
            reply = await clients[b"asks"].request("prices", b"?", timeout=60)
            assert (reply.sender, reply.data) == (8, b"!")
            assert (await clients[b"asks"].request("prices", b"?", timeout=60, user=99)).data == b"!"
            assert seen == [7, 7], "only the shared token asks for others"
            for name in (b"neither", b"no replies"):
                with pytest.raises(muster.Refused, match="not_allowed"):
                    await clients[name].request("prices", b"?", timeout=60)
            async with muster.connect(address, token=b"all") as server:
                await server.request("prices", b"?", timeout=60, user=99)
            assert seen == [7, 7, 99]
        with pytest.raises(muster.Refused, match="not_allowed"):
            await clients[b"neither"].respond("prices", echo).__aenter__()


async def test_a_responder_publishes_nowhere_but_in_rooms_for_replies(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("chat") as chat, client.respond("r", echo) as responder:
        for reply in ("chat", "default:chat", "", 7, None):
            said = {"ask": 1, "reply": reply}
            await client.publish("r/requests", json=said)
            said = {"to": responder.id, "id": 1, "reply": reply, "data": "x"}
            await client.publish("r/requests", json=said)
        assert (await client.request("r", b"?", timeout=60)).data == b"?"
        await client.publish("chat", b"the first message")
        item = await anext(chat)
        assert isinstance(item, muster.Message)
        assert item.data == b"the first message"
        assert responder.stats()["requests"] == 1


async def test_malformed_messages_change_nothing(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.respond("r", echo) as responder:
        assert (await client.request("r", b"?", timeout=60)).data == b"?"
        home = client._requests._home if client._requests is not None else ""
        mine = {"to": responder.id, "reply": home}
        others: tuple[object, ...] = (
            1,
            None,
            [],
            {},
            {"ask": "x", "reply": home},
            {"to": "other", "id": 1, "reply": home},
        )
        for said in (*others, mine):
            await client.publish("r/requests", json=said)
        for data in (b"", b"\xff", b"[" * 50_000, b'{"to":', b'{"a":' * 5_000):
            await client.publish("r/requests", data)
            await client.publish(home, data)
        for id, responder_id in ((1, None), ("x", "y"), (1, 7), (9_999, "x" * 65)):
            await client.publish(home, json={"id": id, "responder": responder_id})
        await client.publish("r/requests", json={**mine, "id": 8_888, "data": "!", "encoding": "base64"})
        assert (await client.request("r", b"again", timeout=60)).data == b"again"
        assert responder.stats()["requests"] == 3
        assert responder.stats()["replies"] == 2


async def test_a_reply_in_the_name_of_another_responder_counts_for_nothing(address: muster.testing.Instance) -> None:
    async with (
        muster.connect(address) as client,
        muster.connect(address) as liar,
        client.respond("r", never) as responder,
    ):
        asked = asyncio.create_task(client.request("r", b"?", timeout=60))
        await until(lambda: responder.stats()["requests"])
        assert client._requests is not None
        (number,) = client._requests._waiting
        await liar.publish(client._requests._home, json={"id": number, "responder": "liar", "data": "no"})
        await liar.publish(client._requests._home, json={"id": number, "responder": responder.id, "data": {"a": 1}})
        assert (await asked).data == b'{"a":1}', "data that is no text is JSON"
        await client.close()


async def test_rooms_beyond_the_bound_replace_idle_ones(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ROOMS_MAX", 2)
    async with (
        muster.connect(address) as client,
        client.respond("a", echo),
        client.respond("b", echo),
        client.respond("c", echo),
    ):
        for name in ("a", "b", "c", "a", "b", "c"):
            assert (await client.request(name, name.encode(), timeout=60)).data == name.encode()
            assert client._requests is not None
            assert len(client._requests._rooms) <= 2

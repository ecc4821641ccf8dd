"""`AsyncMessages`: its questions as a face sees them, several at once, and each way in which an answer is missing."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import muster
from muster.face import CONNECTIONS
from muster.messages import BATCH_MAX, AsyncMessages, Changed, Messages, Sent, message
from tests.fakes.scripted import Asked, Scripted, problem, said
from tests.waiting import PATIENT_S, until

SENT = {"id": "m-1", "due_at": 5_000, "state": "scheduled", "duplicate": True}


def always(answer: bytes | None) -> Callable[[Asked], Awaitable[bytes | None]]:
    async def answered(_: Asked) -> bytes | None:
        return answer

    return answered


async def test_each_call_asks_its_route() -> None:
    stored = {
        "id": "a/b",
        "topic": "t",
        "state": "done",
        "due_at": 5_000,
        "attempts": 1,
        "type": "x",
        "data": 1,
        "result": 7,
    }

    async def answer(asked: Asked) -> bytes:
        if asked.method == "GET":
            return said(stored)
        if asked.path.endswith("/messages"):
            if isinstance(asked.document, list):
                return said({"messages": [SENT, {"problem": {"code": "bad_body", "detail": "no"}}]})
            return said(SENT)
        return said({"outcome": "done", "state": "scheduled", "due_at": 9_500})

    async with Scripted(answer) as face, AsyncMessages(face.url, key="k-1") as messages:
        assert await messages.send("a topic", {"n": 1}, in_s=1.5, id="m-1") == Sent("m-1", 5.0, "scheduled", True)
        many = await messages.send_many("t", [message(b"\x00"), message(2)])
        assert many[0] == Sent("m-1", 5.0, "scheduled", True)
        assert isinstance(many[1], muster.Refused)
        assert many[1].code == "bad_body"
        assert await messages.send_many("t", []) == []
        found = await messages.get("t", "a/b")
        assert found is not None
        assert (found.id, found.due_at, found.body, found.result) == ("a/b", 5.0, b"1", 7)
        for call in (messages.cancel, messages.postpone, messages.advance):
            move = {} if call == messages.cancel else {"by_s": 2.0}
            assert await call("t", "a/b", **move) == Changed("done", "scheduled", 9.5)
        await messages.advance("t", "a/b", to=7.0)
        seen = [(each.method, each.path, each.document) for each in face.asked]
    assert seen == [
        ("POST", "/api/v1/topics/a%20topic/messages", {"data": {"n": 1}, "in_ms": 1_500, "id": "m-1"}),
        ("POST", "/api/v1/topics/t/messages", [{"base64": "AA==", "type": "application/octet-stream"}, {"data": 2}]),
        ("GET", "/api/v1/topics/t/messages/a%2Fb", None),
        ("POST", "/api/v1/topics/t/messages/a%2Fb/cancel", {}),
        ("POST", "/api/v1/topics/t/messages/a%2Fb/postpone", {"by_ms": 2_000}),
        ("POST", "/api/v1/topics/t/messages/a%2Fb/advance", {"by_ms": 2_000}),
        ("POST", "/api/v1/topics/t/messages/a%2Fb/advance", {"to": 7_000}),
    ]
    assert {each.headers["x-api-key"] for each in face.asked} == {"k-1"}
    assert face.connections == 1, "one connection serves calls that follow each other"


def test_it_has_the_calls_of_messages() -> None:
    def calls(kind: type[Any]) -> dict[str, list[str]]:
        public = {name: each for name, each in vars(kind).items() if not name.startswith("_")}
        return {name: list(inspect.signature(each).parameters) for name, each in public.items()}

    plain, other = calls(Messages), calls(AsyncMessages)
    assert other.keys() == plain.keys()
    assert {name for name in plain if plain[name] != other[name]} == {"send"}, "it hands these on by name"


async def test_calls_go_on_side_by_side_and_no_more_than_its_connections() -> None:
    go_on = asyncio.Event()

    async def answer(_: Asked) -> bytes:
        await go_on.wait()
        return said(SENT)

    async with Scripted(answer) as face, AsyncMessages(face.url, key="k") as messages:
        calls = [asyncio.create_task(messages.send("t", number)) for number in range(3 * CONNECTIONS)]
        await until(lambda: face.now == CONNECTIONS)
        go_on.set()
        assert len(await asyncio.gather(*calls)) == 3 * CONNECTIONS
        assert (face.most, face.connections) == (CONNECTIONS, CONNECTIONS)


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (None, muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{}", muster.TimedOut, "timeout"),
        (b"SSH-2.0-x\r\n\r\n", muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 200 OK\r\n\r\n", muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n", muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", muster.Unavailable, "unavailable"),
        (b"HTTP/1.1 502 Bad\r\ncontent-length: 6\r\n\r\n<html>", muster.Unavailable, "unavailable"),
        (said([], 502), muster.Unavailable, "unavailable"),
        (said("away", 500), muster.Unavailable, "unavailable"),
        (problem(503, "draining"), muster.Unavailable, "unavailable"),
        (problem(504, "timeout"), muster.TimedOut, "timeout"),
        (problem(403, "not_allowed"), muster.Refused, "not_allowed"),
        (problem(429, "rate_limited", retry_after=3), muster.Refused, "rate_limited"),
    ],
)
async def test_each_missing_or_bad_answer_is_its_error_and_the_next_call_works(
    answer: bytes | None, kind: type[muster.MusterError], code: str
) -> None:
    async with Scripted(always(answer)) as face, AsyncMessages(face.url, key="k", timeout=1.0) as messages:
        with pytest.raises(kind) as caught:
            await messages.send("t", 1)
        assert caught.value.code == code
        if code == "rate_limited":
            assert isinstance(caught.value, muster.Refused)
            assert (caught.value.retry, caught.value.retry_after) == (True, 3)
        face.answer = always(said(SENT))
        async with AsyncMessages(face.url, key="k", timeout=PATIENT_S) as patient:
            await patient.send("t", 1)
        messages._face._timeout = PATIENT_S
        assert (await messages.send("t", 1)).id == "m-1"


async def test_an_answer_in_pieces_and_chunks_is_whole() -> None:
    body = b'{"id": "m-1", "due_at": 5000, "state": "scheduled"}'
    parts = [body[:7], body[7:20], body[20:]]
    chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with Scripted(always(answer)) as face, AsyncMessages(face.url, key="k") as messages:
        for _ in range(2):
            assert await messages.send("t", 1) == Sent("m-1", 5.0, "scheduled", False)
        assert face.connections == 1


async def test_a_connection_that_the_face_closed_is_not_used_again() -> None:
    closing = always(said(SENT, 200, "connection: close"))
    async with Scripted(closing) as face, AsyncMessages(face.url, key="k") as messages:
        for number in range(1, 4):
            await messages.send("t", 1)
            assert face.connections == number


async def test_a_call_that_is_cancelled_gives_up_its_connection() -> None:
    """Else the next call would read its answer."""
    started = asyncio.Event()

    async def never(_: Asked) -> bytes:
        started.set()
        await asyncio.sleep(3_600)
        raise AssertionError

    async with Scripted(never) as face, AsyncMessages(face.url, key="k") as messages:
        call = asyncio.create_task(messages.send("t", "first"))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: face.gone == 1)
        face.answer = always(said(SENT | {"id": "second"}))
        assert (await messages.send("t", "second")).id == "second"
        assert face.connections == 2


async def test_what_is_not_there_is_none_and_other_refusals_are_raised() -> None:
    async with Scripted(always(problem(404, "not_found"))) as face, AsyncMessages(face.url, key="k") as messages:
        assert await messages.get("t", "m") is None
        face.answer = always(problem(403, "not_allowed"))
        with pytest.raises(muster.Refused, match="not_allowed"):
            await messages.get("t", "m")


async def test_wrong_arguments_ask_nothing() -> None:
    async with Scripted(always(said(SENT))) as face:
        async with AsyncMessages(face.url, key="k") as messages:
            with pytest.raises(muster.Invalid, match="exclude each other"):
                await messages.send("t", 1, in_s=1, at=1)
            with pytest.raises(muster.Invalid, match="either by_s or to"):
                await messages.postpone("t", "m")
            with pytest.raises(muster.Invalid, match=f"limit {BATCH_MAX}"):
                await messages.send_many("t", [message(1)] * (BATCH_MAX + 1))
        with pytest.raises(muster.Invalid, match="closed"):
            await messages.send("t", 1)
        assert face.asked == []
    wrong: list[tuple[str, str, dict[str, Any]]]
    wrong = [("ftp://x", "k", {}), ("http://x/y", "k", {}), ("http://x", "", {}), ("http://x", "k", {"connections": 0})]
    for url, key, more in wrong:
        with pytest.raises(muster.Invalid):
            AsyncMessages(url, key=key, **more)

"""What strangers may send: too much, too slow, malformed. It costs little, and others are served meanwhile."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.http.conftest import Beside, Make, eventually
from tests.waiting import PATIENT_S

PATH = "/api/v1/rooms/sports:final/messages"
LIMITS = {"head_s_max": 1.0, "request_s_max": 1.0}


async def raw(beside: Beside, *parts: bytes) -> bytes:
    """All that comes back for these bytes, until the server closes."""
    reader, writer = await asyncio.open_connection(*beside.server.address)
    try:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        async with asyncio.timeout(PATIENT_S):
            found = b""
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65_536):
                    found += data
            return found
    finally:
        writer.transport.abort()


async def served(client: httpx2.AsyncClient) -> None:
    """Somebody else is served."""
    assert (await client.get(PATH)).status_code == 200


def rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def test_a_body_that_says_it_is_too_long_is_not_read(make: Make) -> None:
    beside = await make()
    client = beside.client("publish:*", "history:*")
    answer = await client.post(PATH, content=b"x" * (2 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_long")
    await served(client)


async def test_a_hundred_megabytes_in_chunks_are_refused_and_not_kept(make: Make) -> None:
    beside = await make()
    client = beside.client("publish:*", "history:*")

    async def body() -> AsyncIterator[bytes]:
        for _ in range(1_600):
            yield bytes(65_536)

    before = rss_kib()
    answer = await client.post(PATH, content=body())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_long")
    assert rss_kib() - before < 64 << 10
    assert beside.server.counts.value("http_rejected", reason="too_long") == 1
    await served(client)


async def test_a_body_that_does_not_end_is_timed_out(make: Make) -> None:
    beside = await make(**LIMITS)
    key = beside.key("publish:*").encode()
    head = (
        b"POST "
        + PATH.encode()
        + b" HTTP/1.1\r\nhost: localhost\r\nx-api-key: "
        + key
        + b"\r\ncontent-length: 10\r\n\r\n"
    )
    said = await raw(beside, head, b"x")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in said


async def test_what_follows_a_refusal_is_read_for_so_long_and_no_longer(make: Make) -> None:
    beside = await make(**LIMITS)
    reader, writer = await asyncio.open_connection(*beside.server.address)
    writer.write(b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")

    async def cut() -> bool:
        if writer.is_closing():
            return True
        writer.write(bytes(1_000))
        try:
            await writer.drain()
        except ConnectionError:
            return True
        return False

    await eventually(cut)
    writer.transport.abort()


async def test_a_head_that_does_not_end_is_cut(make: Make) -> None:
    beside = await make(**LIMITS)
    assert await raw(beside) == b""
    assert await raw(beside, b"GET / HTTP/1.1\r\nhost: loc") == b""


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 10_000],
        [b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 60_000 + b"\r\n\r\n"],
        [b"GET /" + b"y" * 60_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", *[b"y" * 65_536] * 500],
    ],
    ids=["many", "long", "line", "endless"],
)
async def test_a_head_bomb_is_cut(make: Make, parts: list[bytes]) -> None:
    beside = await make()
    client = beside.client("history:*")
    before = rss_kib()
    said = await raw(beside, *parts)
    assert said == b"" or b" 431 " in said.split(b"\r\n")[0]
    assert beside.server.counts.value("http_rejected", reason="head_too_long") == 1
    assert rss_kib() - before < 16 << 10
    await served(client)


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["tls", "words", "version", "length", "smuggling", "path"],
)
async def test_what_is_no_http_is_a_bad_request(make: Make, said: bytes) -> None:
    beside = await make()
    answer = await raw(beside, said)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"application/problem+json" in answer


async def test_connections_are_bounded(make: Make) -> None:
    beside = await make(connections_max=5)
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []  # a reader that is nowhere closes its connection
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            streams = await asyncio.open_connection(*beside.server.address)
            kept.append(streams)
            stack.callback(streams[1].transport.abort)

        async def full() -> bool:
            return bool(beside.server.status()["connections"] == 5)

        await eventually(full)
        assert await raw(beside, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n") == b""
    client = beside.client()

    async def again() -> bool:
        try:
            return (await client.get("/healthz")).status_code == 200
        except httpx2.HTTPError:
            return False

    await eventually(again)


async def test_pipelined_requests_are_answered_in_turn(make: Make) -> None:
    beside = await make()
    ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = ask.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert (await raw(beside, ask * 200 + last)).count(b'{"status":"ok"}') == 201


async def test_an_answer_that_is_not_read_is_cut(make: Make) -> None:
    beside = await make(room_bytes_max=64 << 20, **LIMITS)
    client = beside.client("publish:*", "history:*")
    for _ in range(20):
        assert (await client.post(PATH, json=["x" * 60_000] * 15)).status_code == 200
    key = beside.key("history:*").encode()
    reader, writer = await asyncio.open_connection(*beside.server.address, limit=1_024)
    writer.write(
        b"GET " + PATH.encode() + b"?history=1000 HTTP/1.1\r\nhost: localhost\r\nx-api-key: " + key + b"\r\n\r\n"
    )

    async def cut() -> bool:
        return not beside.server.status()["running"]

    await eventually(cut)
    writer.transport.abort()
    del reader


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_deep_json_is_refused_and_not_fatal(make: Make, kind: str) -> None:
    beside = await make()
    client = beside.client("publish:*", "history:*")
    deep = b"[" * 300_000 + b"]" * 300_000
    body = deep if kind == "application/json" else b'{"data": ' + deep + b"}"
    answer = await client.post(PATH, content=body, headers={"content-type": kind})
    assert answer.status_code in {207, 400, 413}
    await served(client)

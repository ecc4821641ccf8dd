"""Clients that keep to no rule, at a real edge: each is bounded or refused with a reason, and others go on."""

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

import muster
from muster_server.plane.auth import mint
from tests.edge.role import Role, role
from tests.edge.stranger import Stranger, frame, head, stranger
from tests.waiting import PATIENT_S

HALF_OPEN: Final = 32
PUBLISHED: Final = "hostile:room"
ARENA_MIB: Final = 8
CONNECTION_LIMIT: Final = 3504
MESSAGES: Final = 1_200
"""Messages of 20 KB: more than the edge keeps and sockets hold."""
BATCH: Final = 40
ADDRESS_MAX: Final = 160
"""Connections of one address."""
USER_MAX: Final = 16
"""Sessions of one user."""


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    limits = {
        "half_open_max": HALF_OPEN,
        "address_connections_max": ADDRESS_MAX,
        "user_sessions_max": USER_MAX,
        "stall_ms": 600_000,
        "user_timeout_ms": 600_000,
        "ping_ms": 600_000,
        "arena_mib": ARENA_MIB,
    }
    with role(tmp_path_factory.mktemp("edge"), "edge", edge=limits) as serving:
        yield serving


@contextlib.asynccontextmanager
async def honest(edge: Role) -> AsyncIterator[Stranger]:
    """A client that keeps to the rules beside the others. It publishes and hears itself before and after."""
    async with asyncio.timeout(PATIENT_S), stranger(edge.url) as client:
        assert "connect" in await client.connect(edge.token(7))
        client.say({"id": 2, "subscribe": {"channel": "hostile:honest"}})
        assert "subscribe" in await client.reply(2)
        yield client
        client.say({"id": 3, "publish": {"channel": "hostile:honest", "data": "on"}})
        assert "publish" in await client.reply(3)


async def test_bytes_that_come_one_by_one_are_taken(edge: Role) -> None:
    async with honest(edge), stranger(edge.url) as client:
        command = json.dumps({"id": 1, "connect": {"token": edge.token(8)}}).encode()
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parts = [*command[:60], command[60:]]
        pieces = [bytes([part]) if isinstance(part, int) else part for part in parts]
        fragments = [
            frame(piece, (0x80 if at == len(pieces) - 1 else 0) | (1 if at == 0 else 0))
            for at, piece in enumerate(pieces)
        ]
        for byte in head(client.address) + b"".join(fragments):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert b" 101 " in await client.reader.readuntil(b"\r\n\r\n")
        assert "connect" in await client.reply(1)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"x", announced=1 << 62), 1009),
        (frame(b"x", announced=1 << 40), 1009),
        (frame(b'{"id":2,"ping":{}}\xff\xfe'), 1007),
        (frame(b"\xc3"), 1007),
        (frame(b"compressed", first=0xC1), 1002),
        (bytes([0x81, 2]) + b"{}", 1002),
        (frame(b"[" * 60_000), 3501),
        (frame(b'{"id":2,' * 5_000), 3501),
    ],
    ids=[
        "2^62 bytes",
        "2^40 bytes",
        "bad UTF-8",
        "half a character",
        "compressed",
        "unmasked",
        "a deep list",
        "open objects",
    ],
)
async def test_a_frame_that_breaks_a_rule_ends_its_connection_alone(edge: Role, sent: bytes, code: int) -> None:
    async with honest(edge), stranger(edge.url) as client:
        await client.connect(edge.token(8))
        client.writer.write(sent)
        assert await client.end() == code


async def test_data_too_deep_for_parsers_reaches_others_as_text(edge: Role) -> None:
    """JSON that no client could parse would break the line of every receiver."""
    async with honest(edge), stranger(edge.url) as client:
        await client.connect(edge.token(8))
        client.say({"id": 2, "subscribe": {"channel": "hostile:deep"}})
        assert "subscribe" in await client.reply(2)
        deep = b"[" * 20_000 + b"]" * 20_000
        client.writer.write(frame(b'{"id":3,"publish":{"channel":"hostile:deep","data":' + deep + b"}}"))
        while "pub" not in (told := (await client.message()).get("push", {})):
            pass
        assert told["pub"]["tags"] == {"encoding": "base64"}
        assert base64.b64decode(told["pub"]["data"]) == deep


async def test_compression_is_never_agreed_to(edge: Role) -> None:
    async with honest(edge), stranger(edge.url) as client:
        answer = await client.upgrade("Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=15")
        assert " 101 " in answer
        assert "extensions" not in answer.lower()


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (("Content-Length: 30",), "400"),
        (("Transfer-Encoding: chunked",), "400"),
        (("Content-Length: 0", "Content-Length: 30"), "400"),
        (("Transfer-Encoding : chunked",), "400"),
        (("X: y\r\n folded",), "400"),
        (("Host: elsewhere",), "400"),
        (("X: " + "y" * 9_000,), "400"),
        (tuple(f"X{n}: y" for n in range(100)), "400"),
    ],
    ids=["a length", "chunks", "two lengths", "a space before the colon", "folded", "two hosts", "long", "many"],
)
async def test_a_request_within_a_request_is_refused_and_never_answered(
    edge: Role, more: tuple[str, ...], status: str
) -> None:
    """A proxy in front may take the inner one for the body, and its answer for that of the next client."""
    async with honest(edge), stranger(edge.url) as client:
        client.writer.write(head(client.address, *more) + head(client.address))
        answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status.encode())
        assert answer.count(b"Content-Length") == 1, "one answer"


async def test_a_page_of_another_site_is_refused_with_the_key_to_change(edge: Role) -> None:
    async with honest(edge), stranger(edge.url) as client:
        client.writer.write(head(client.address, "Origin: https://evil.example"))
        answer = (await client.reader.read()).decode()
        assert answer.startswith("HTTP/1.1 403")
        assert "https://evil.example" in answer
        assert "edge.origins" in answer


def unsigned(token: str) -> str:
    """The same claims without a signature."""
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    return f"{none}.{token.split('.')[1]}."


async def test_forged_tokens_end_the_connection_and_an_expired_one_draws_another(edge: Role) -> None:
    good = edge.token(8)
    forged = [
        "",
        "x",
        unsigned(good),
        good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB"),
        mint(b"x" * 32, 8, ["read"], 2_000_000_000, 60),
    ]
    async with honest(edge):
        for token in forged:
            async with stranger(edge.url) as client:
                assert await client.connect(token) == {"close": 3500}
        async with stranger(edge.url) as client:
            assert (await client.connect(edge.token(8, -60)))["error"]["code"] == 109
        async with stranger(edge.url) as client:
            assert await client.connect(edge.token(8, rooms=["hostile:a"], cap=[("b:*", ["read"])])) == {"close": 3500}


async def test_connections_that_say_nothing_make_room_for_others(edge: Role) -> None:
    async with honest(edge), contextlib.AsyncExitStack() as stack:
        for number in range(4 * HALF_OPEN):
            silent = await stack.enter_async_context(stranger(edge.url))
            silent.writer.write(b"GET /connection/webso"[: number % 2 * 20])
        async with stranger(edge.url) as client:
            assert "connect" in await client.connect(edge.token(8))


async def test_a_flood_of_one_address_leaves_room_for_others(edge: Role) -> None:
    flood = "127.0.0.9"
    async with honest(edge), contextlib.AsyncExitStack() as stack:
        for number in range(ADDRESS_MAX):
            client = await stack.enter_async_context(stranger(edge.url, flood))
            assert "connect" in await client.connect(edge.token(100 + number // USER_MAX))
        for _ in range(HALF_OPEN):
            async with stranger(edge.url, flood) as client:
                answer = await client.upgrade()
                assert " 503 " in answer
                assert "retry-after:" in answer.lower()
        async with stranger(edge.url) as client:
            assert "connect" in await client.connect(edge.token(8))


async def test_a_flood_of_one_user_is_refused_and_others_go_on(edge: Role) -> None:
    """By connections, then by commands of those that are there."""
    async with honest(edge), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(stranger(edge.url)) for _ in range(USER_MAX)]
        for client in clients:
            assert "connect" in await client.connect(edge.token(9))
        for _ in range(USER_MAX):
            async with stranger(edge.url) as client:
                assert await client.connect(edge.token(9)) == {"close": CONNECTION_LIMIT}

        async def flood(client: Stranger) -> dict[str, int]:
            said: dict[str, int] = {}
            for start in range(2, 1_002, 100):
                lines = [
                    json.dumps({"id": n, "publish": {"channel": "hostile:flood", "data": n}})
                    for n in range(start, start + 100)
                ]
                client.writer.write(frame("\n".join(lines).encode()))
            await client.writer.drain()
            while sum(said.values()) < 1_000:
                told: Any = await client.message()
                if "close" in told:
                    return said | {"close": told["close"]}
                kind = "published" if "publish" in told else str(told["error"]["code"])
                said[kind] = said.get(kind, 0) + 1
            return said

        for said in await asyncio.gather(*map(flood, clients)):
            assert set(said) <= {"published", "111", "close"}, said
            assert said.get("published", 0) < 1_000, said


async def test_ten_thousand_subscriptions_are_refused_beyond_the_bound(edge: Role) -> None:
    async with honest(edge), stranger(edge.url) as client:
        await client.connect(edge.token(8))
        said: dict[str, int] = {}

        async def read() -> None:
            while sum(said.values()) < 10_000:
                told: Any = await client.message()
                kind = "subscribed" if "subscribe" in told else str(told["error"]["code"])
                said[kind] = said.get(kind, 0) + 1

        reading = asyncio.create_task(read())
        for start in range(2, 10_002, 100):
            lines = [json.dumps({"id": n, "subscribe": {"channel": f"hostile:{n}"}}) for n in range(start, start + 100)]
            client.writer.write(frame("\n".join(lines).encode()))
            await client.writer.drain()
        await reading
        assert 0 < said["subscribed"] <= 256
        assert sum(said.values()) == 10_000
        assert set(said) <= {"subscribed", "106", "111"}


async def test_a_client_that_reads_nothing_costs_a_cursor(edge: Role) -> None:
    """Others hear all. It hears of its gap when it reads again."""
    async with honest(edge), stranger(edge.url) as slow, stranger(edge.url) as other:
        for client in (slow, other):
            await client.connect(edge.token(8))
            client.say({"id": 2, "subscribe": {"channel": PUBLISHED}})
            assert "subscribe" in await client.reply(2)
        text = json.dumps("x" * 20_000).encode()

        async with muster.connect(edge.instance.folder.path, gateways=[], timeout=PATIENT_S) as program:
            for _ in range(0, MESSAGES, BATCH):
                publishing = asyncio.gather(*(program.publish(PUBLISHED, text) for _ in range(BATCH)))
                heard = 0
                while heard < BATCH:  # a reader that is slower than the publisher would have gaps of its own
                    told = (await other.message()).get("push", {})
                    assert "unsubscribe" not in told
                    heard += "pub" in told
                await publishing
        while "unsubscribe" not in (told := (await slow.message()).get("push", {})):
            pass
        assert told["unsubscribe"]["code"] == 2500

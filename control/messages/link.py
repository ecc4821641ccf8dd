"""How a node, or the command, asks nodes of the system: HTTP/1.1 to their listeners, by the library httpx2.

Owns the choice among nodes, and what a failure means. It must not know what is asked.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from control.messages.refusal import LENGTH_BYTES, Refusal
from plane.messages.receiver import Unreachable
from plane.messages.schedule import NewChange, NewMessage, Reply

ASK_S: Final = 10.0
CONNECT_S: Final = 2.0
STREAM_S: Final = 15.0
"""A stream without a piece for so long is cut: its other end says something every 5 s."""
PIECE_BYTES_MAX: Final = 512 << 20
MERGED_MAX: Final = 4_000
LANES: Final = 2
"""Requests at once to the schedule, so that the next is on its way while one is made durable."""

Addresses = Callable[[], Sequence[tuple[str, int]]]
T = TypeVar("T")


class Link:
    """Asks the first node of a role that answers. `addresses` is looked up for each question."""

    def __init__(self, role: str, addresses: Addresses, token: bytes) -> None:
        self._role, self._addresses = role, addresses
        self._headers = {"authorization": f"Bearer {token.decode('latin-1')}"}
        self._client = httpx2.AsyncClient(
            headers=self._headers,
            timeout=httpx2.Timeout(ASK_S, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=30.0),
            trust_env=False,
            verify=False,  # the ports of fellows speak no TLS
        )
        self._encoder = msgspec.msgpack.Encoder()

    async def ask(self, question: str, asked: Any, kind: type[T], *, timeout_s: float = ASK_S) -> T:
        """Ask, and decode the answer. Raises `Refusal`, and `Unreachable` if nobody answered."""
        body = self._encoder.encode(asked)
        cause = f"no {self._role} is known"
        for host, port in self._addresses():
            try:
                answer = await self._client.post(_url(host, port, question), content=body, timeout=timeout_s)
            except httpx2.ConnectError as error:
                cause = f"{self._role} at {host}:{port}: {error}"
                continue  # nothing was asked
            except httpx2.HTTPError as error:
                raise Unreachable(f"{self._role} at {host}:{port}: {error or type(error).__name__}") from None
            return _decoded(answer.status_code, answer.content, kind, f"{self._role} at {host}:{port}")
        raise Unreachable(cause)

    @contextlib.asynccontextmanager
    async def stream(self, question: str, asked: Any, kind: type[T]) -> AsyncIterator[AsyncIterator[T]]:
        """The pieces of a stream. Raises as `ask`, also between pieces."""
        places = self._addresses()
        if not places:
            raise Unreachable(f"no {self._role} is known")
        host, port = places[0]
        timeout = httpx2.Timeout(STREAM_S, connect=CONNECT_S)
        try:
            async with self._client.stream(
                "POST", _url(host, port, question), content=self._encoder.encode(asked), timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    _decoded(answer.status_code, await answer.aread(), kind, f"{self._role} at {host}:{port}")
                yield _pieces(answer, kind)
        except httpx2.HTTPError as error:
            raise Unreachable(f"{self._role} at {host}:{port}: {error or type(error).__name__}") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class CenterLink:
    """A `plane.messages.receiver.Center`. What is asked at the same time goes in one request."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inserting = Merged(self._insert)

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `Center`."""
        return await self._inserting(messages)

    async def _insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        return await self._link.ask("insert", messages, list[Any])

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        """As `Center`."""
        return await self._link.ask("change", (topic, changes), list[Any])

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `Center`."""
        return await self._link.ask("get", ids, list[Any])


class Merged:
    """Merges what several callers ask at the same time; each gets its own part of the answer."""

    def __init__(self, ask: Callable[[Sequence[Any]], Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[Sequence[Any], asyncio.Future[list[Any]]]] = []
        self._lanes: set[asyncio.Task[None]] = set()

    async def __call__(self, entries: Sequence[Any]) -> list[Any]:
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if len(self._lanes) < LANES:
            lane = asyncio.create_task(self._run())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await done

    async def _run(self) -> None:
        while self._waiting:
            some: list[tuple[Sequence[Any], asyncio.Future[list[Any]]]] = []
            count = 0
            while self._waiting and (not some or count + len(self._waiting[0][0]) <= MERGED_MAX):
                some.append(self._waiting.pop(0))
                count += len(some[-1][0])
            try:
                answers = await self._ask([entry for entries, _ in some for entry in entries])
            except BaseException as error:
                for _, done in some:
                    if not done.done():
                        done.set_exception(error if isinstance(error, Exception) else Unreachable("it ended"))
                if not isinstance(error, Exception):
                    raise
                continue
            first = 0
            for entries, done in some:
                if not done.done():
                    done.set_result(answers[first : first + len(entries)])
                first += len(entries)


def _url(host: str, port: int, question: str) -> str:
    return f"http://[{host}]:{port}/{question}" if ":" in host else f"http://{host}:{port}/{question}"


def _decoded(status: int, body: bytes, kind: type[T], where: str) -> T:
    if status == 200:
        return msgspec.msgpack.decode(body, type=kind)
    try:
        code, detail = msgspec.msgpack.decode(body, type=tuple[str, str])
    except msgspec.MsgspecError:
        raise Refusal("unavailable", f"{where} answers {status}: it has another credential or version") from None
    raise Refusal(code, detail)


async def _pieces(answer: httpx2.Response, kind: type[T]) -> AsyncIterator[T]:
    decoder = msgspec.msgpack.Decoder(kind)
    buffer = bytearray()
    async for chunk in answer.aiter_raw():
        buffer += chunk
        while len(buffer) >= LENGTH_BYTES:
            length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
            if length > PIECE_BYTES_MAX:
                raise Unreachable("a piece is too long")
            if len(buffer) < LENGTH_BYTES + length:
                break
            piece = bytes(buffer[LENGTH_BYTES : LENGTH_BYTES + length])
            del buffer[: LENGTH_BYTES + length]
            yield decoder.decode(piece)

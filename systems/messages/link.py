"""Requests from a node, or the command, to nodes of the system: HTTP/1.1 to their listeners.

Owns the choice among nodes, connections that are kept for the next request, and the meaning of a failure. It must not
know the content of requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from muster_server.systems.messages.answers import LastAnswer
from muster_server.systems.messages.connection import Broken, Connection, connect
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import LENGTH_BYTES, Refusal
from muster_server.systems.messages.schedule import NewChange, NewMessage, Reply
from muster_server.systems.messages.shapes import Fire, Result

ASK_S: Final = 10.0
SCRUB_S: Final = 3_600.0
"""Limit of a scrub of the schedule, which reads all of it, in seconds: at 100 MB/s, 360 GB."""
CONNECT_S: Final = 2.0
STREAM_S: Final = 15.0
"""A stream without a piece for this many seconds is cut: its other end sends something every 5 s."""
PIECE_BYTES_MAX: Final = 512 << 20
CONNECTIONS_MAX: Final = 64
"""Limit of concurrent requests; further ones wait."""
LEASES_MAX: Final = 4_096
"""The same for requests that wait for messages to lease."""
IDLE_MAX: Final = 16
IDLE_S: Final = 30.0
"""A connection that was unused for this many seconds is not used again: its other end closes it after 60 s."""
MERGED_MAX: Final = 4_000
LANES: Final = 2
"""Concurrent requests to the schedule, so that the next is in transit while one is made durable."""

Addresses = Callable[[], Sequence[tuple[str, int]]]
T = TypeVar("T")


class Link:
    """Asks the first node of a role that answers. `addresses` is looked up for each request."""

    def __init__(
        self, role: str, addresses: Addresses, token: bytes, *, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self._role, self._addresses = role, addresses
        self._credential = token
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._places = asyncio.Semaphore(connections_max)
        self._streams: set[Connection] = set()
        self._encoder = msgspec.msgpack.Encoder()

    async def ask(self, question: str, asked: Any, kind: type[T], *, timeout_s: float = ASK_S) -> T:
        """Send a request, and decode the answer. Raises `Refusal`, and `Unreachable` if no node answered."""
        body = self._encoder.encode(asked)
        cause = f"no {self._role} is known"
        for address in self._addresses():
            where = f"{self._role} at {address[0]}:{address[1]}"
            async with self._places:
                try:
                    connection = await self._connection(address)
                except OSError as error:
                    cause = f"{where}: {str(error) or type(error).__name__}"
                    continue  # no request was sent
                try:
                    async with asyncio.timeout(timeout_s):
                        status = await connection.ask(self._head(address, question), body)
                        answer = await connection.body()
                except (Broken, TimeoutError) as error:
                    raise Unreachable(f"{where}: {str(error) or 'no answer in time'}") from None
                finally:
                    self._give_back(address, connection)
            return _decoded(status, answer, kind, where)
        raise Unreachable(cause)

    @contextlib.asynccontextmanager
    async def stream(self, question: str, asked: Any, kind: type[T]) -> AsyncIterator[AsyncIterator[T]]:
        """The pieces of a stream. Raises as `ask`, also between pieces."""
        places = self._addresses()
        if not places:
            raise Unreachable(f"no {self._role} is known")
        where = f"{self._role} at {places[0][0]}:{places[0][1]}"
        try:
            connection = await self._connection(places[0])
        except OSError as error:
            raise Unreachable(f"{where}: {str(error) or type(error).__name__}") from None
        self._streams.add(connection)
        try:
            async with asyncio.timeout(STREAM_S):
                status = await connection.ask(self._head(places[0], question), self._encoder.encode(asked))
                if status != 200:
                    _decoded(status, await connection.body(), kind, where)
            yield _pieces(connection, kind)
        except (Broken, TimeoutError) as error:
            raise Unreachable(f"{where}: {str(error) or 'no data in time'}") from None
        finally:
            self._streams.discard(connection)
            connection.abort()

    async def close(self) -> None:
        """Close all connections."""
        for connection in (*self._streams, *(each for idle in self._idle.values() for each in idle)):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes them

    async def _connection(self, address: tuple[str, int]) -> Connection:
        """An open connection. Raises `OSError`."""
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.open and asyncio.get_running_loop().time() - connection.used_at < IDLE_S:
                return connection
            connection.abort()
        async with asyncio.timeout(CONNECT_S):
            return await connect(*address)

    def _give_back(self, address: tuple[str, int], connection: Connection) -> None:
        """Keep the connection for the next request, unless a request is in progress."""
        idle = self._idle.setdefault(address, [])
        if connection.open and len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.abort()

    def _head(self, address: tuple[str, int], question: str) -> bytes:
        """The head of a request, without its length and its end."""
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return b"POST /%b HTTP/1.1\r\nhost: %b:%d\r\nauthorization: Bearer %b\r\n" % (
            question.encode(),
            host.encode(),
            address[1],
            self._credential,
        )


class CenterLink:
    """The `systems.messages.receiver.Center` over the network. Concurrent requests are merged into one."""

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

    async def answers(self, ids: Sequence[int]) -> dict[int, bytes]:
        """As `Center`."""
        return {each.number: each.answer for each in await self._link.ask("answers", ids, list[LastAnswer])}


class LeasesLink:
    """A `systems.messages.leasing.Center`. A request that waits has a connection of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def lease(self, topic: int, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        """As `Center`."""
        asked = (topic, most, wait_s, lease_s)
        return await self._link.ask("lease", asked, list[Fire], timeout_s=wait_s + ASK_S)

    async def end_leases(self, results: Sequence[Result]) -> bytes:
        """As `Center`."""
        return await self._link.ask("end-leases", results, bytes)

    async def extend_leases(self, asked: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
        """As `Center`."""
        return await self._link.ask("extend-leases", asked, list[tuple[str, int]])


class Merged:
    """Merges concurrent requests of several callers; each gets its own part of the answer."""

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


def _decoded(status: int, body: bytes, kind: type[T], where: str) -> T:
    if status == 200:
        return msgspec.msgpack.decode(body, type=kind)
    try:
        code, detail = msgspec.msgpack.decode(body, type=tuple[str, str])
    except msgspec.MsgspecError:
        raise Refusal(
            "unavailable", f"{where} answers with status {status}: it has another credential or version"
        ) from None
    raise Refusal(code, detail)


async def _pieces(connection: Connection, kind: type[T]) -> AsyncIterator[T]:
    decoder = msgspec.msgpack.Decoder(kind)
    buffer = bytearray()
    while True:
        async with asyncio.timeout(STREAM_S):
            part = await connection.part()
        if part is None:
            return
        buffer += part
        while len(buffer) >= LENGTH_BYTES:
            length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
            if length > PIECE_BYTES_MAX:
                raise Unreachable("a piece of the stream is too long")
            if len(buffer) < LENGTH_BYTES + length:
                break
            piece = bytes(buffer[LENGTH_BYTES : LENGTH_BYTES + length])
            del buffer[: LENGTH_BYTES + length]
            yield decoder.decode(piece)

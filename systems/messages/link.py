"""Requests from a node, or the command, to nodes of the system, by `plane.calls`.

Owns the choice among nodes, and the meaning of a failure. It must not know the content of requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from muster_server.plane.asking import Look
from muster_server.plane.calls import CallError, Peer, key_of
from muster_server.systems.messages.answers import LastAnswer
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Asked, Refusal
from muster_server.systems.messages.schedule import NewChange, NewMessage, Reply
from muster_server.systems.messages.shapes import Fire, Result

ASK_S: Final = 10.0
SCRUB_S: Final = 3_600.0
"""Limit of a scrub of the schedule, which reads all of it, in seconds: at 100 MB/s, 360 GB."""
STREAM_S: Final = 15.0
"""A stream without a piece for this many seconds is cut: its other end sends something every 5 s."""
REQUESTS_MAX: Final = 64
"""Limit of concurrent requests; further ones wait."""
LEASES_MAX: Final = 4_096
"""The same for requests that wait for messages to lease."""
MERGED_MAX: Final = 4_000
LANES: Final = 2
"""Concurrent requests to the schedule, so that the next is in transit while one is made durable."""
UNREACHABLE: Final = frozenset({"away", "late", "slow"})
CODES: Final = {"question": "bad_request", "reply": "unavailable"}
"""Codes of refusals for those of calls, where they differ."""

T = TypeVar("T")


class Link:
    """Asks the first node of a role that answers. `addresses` is looked up for each request."""

    def __init__(self, role: str, addresses: Look, token: bytes, *, requests_max: int = REQUESTS_MAX) -> None:
        self._role, self._addresses = role, addresses
        self._key = key_of(token)
        self._peers: dict[tuple[str, int], Peer] = {}
        self._places = asyncio.Semaphore(requests_max)
        self._encoder = msgspec.msgpack.Encoder()

    async def ask(self, question: str, asked: Any, kind: type[T], *, timeout_s: float = ASK_S) -> T:
        """Send a request, and decode the answer. Raises `Refusal`, and `Unreachable` if no node answered."""
        request = self._request(question, asked)
        failure = Unreachable(f"no {self._role} is known")
        for peer in self._nodes():
            async with self._places:
                try:
                    return await peer.ask(request, kind, timeout_s)
                except CallError as error:
                    if error.code != "away" or error.maybe_done:
                        raise self._failure(error) from None
                    failure = Unreachable(f"{self._role} at {error}")  # nothing was carried out: the next one is asked
        raise failure

    async def stream(self, question: str, asked: Any, kind: type[T]) -> AsyncGenerator[T]:
        """The pieces of a stream of the first node. Raises as `ask`."""
        for peer in self._nodes()[:1]:
            async with contextlib.aclosing(peer.stream(self._request(question, asked), kind, STREAM_S)) as pieces:
                try:
                    async for piece in pieces:
                        yield piece
                except CallError as error:
                    raise self._failure(error) from None
            return
        raise Unreachable(f"no {self._role} is known")

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    def _request(self, question: str, asked: Any) -> Asked:
        return Asked(question, msgspec.Raw(self._encoder.encode(asked)))

    def _nodes(self) -> list[Peer]:
        """The current nodes; a connection to another one ends with its last answer."""
        now = self._addresses()
        for gone in self._peers.keys() - set(now):
            self._peers.pop(gone).leave()
        return [self._peers.setdefault(each, Peer(each, self._key)) for each in now]

    def _failure(self, error: CallError) -> Exception:
        if error.code in UNREACHABLE:
            return Unreachable(f"{self._role} at {error}")
        return Refusal(CODES.get(error.code, error.code), str(error))


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
    """A `systems.messages.leasing.Center`. Its `link` is its own: requests wait there."""

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

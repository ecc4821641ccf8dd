"""Calls to the fleet's nodes from commands and the HTTP face: to the leading scheduler, or to any index node.

Owns the choice of the node. It must not know what users are shown. The nodes come from an instance's record, or from a
registry.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from muster_server.control.cluster.instance import Process
from muster_server.plane.calls import CallError, Peer
from muster_server.systems.fleet.owner import chosen
from muster_server.systems.fleet.questions import Ping, Pong
from muster_server.systems.fleet.selector import parse

INDEX: Final = "index"
SCHEDULER: Final = "scheduler"
PING_S: Final = 1.0
STILL_S: Final = 3.0
"""A leading scheduler that is silent for this many seconds counts as stalled."""
ANSWER_S: Final = 10.0
LEAD_S: Final = 6.0
"""Seconds for which a lead is looked for: a dead lead is replaced within 4 s."""
AGAIN_S: Final = 0.2
AWAY: Final = frozenset({"away", "late", "follows"})
A = TypeVar("A")

Look = Callable[[], Sequence[Process]]
"""Returns the current nodes."""
Renew = Callable[[], Awaitable[object]]
"""Reads again what `Look` returns, where that takes time."""


class Asking:
    """Asks until `close`. `nodes` are looked up for each request, and again while no scheduler leads."""

    def __init__(self, nodes: Look, key: bytes, renew: Renew | None = None) -> None:
        self._nodes, self._key, self._renew = nodes, key, renew
        self._peers: dict[tuple[str, int], Peer] = {}
        self._lead: Peer | None = None

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    async def lead(self, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask the leading scheduler. A request that may have been carried out is not repeated. Raises `CallError`."""
        return await (await self._leading()).ask(question, answer, ANSWER_S)

    async def follow(self, question: msgspec.Struct, answer: type[A]) -> AsyncGenerator[A]:
        """All answers of the leading scheduler. Raises `CallError`, `moved` if it does not lead any more."""
        peer = await self._leading()
        leads = asyncio.create_task(self._leads(peer))
        stream = peer.stream(question, answer)
        waiting: list[asyncio.Future[Any]] = [leads]
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                waiting[1:] = [coming]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise CallError("moved", "the leading scheduler has stalled; another one continues its runs")
                try:
                    yield coming.result()
                except StopAsyncIteration:
                    return
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await stream.aclose()

    async def _leads(self, peer: Peer) -> None:
        """Returns once the scheduler does not lead any more, or has stalled."""
        with contextlib.suppress(CallError):
            while True:
                await asyncio.sleep(PING_S)
                await peer.ask(Ping(), Pong, STILL_S)

    async def owner(self, selector: str, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask the index node that owns a selector's deck, else another one. Raises `CallError`."""
        deck = str(parse(selector))
        nodes = {each.node: each for each in await self._of(INDEX)}
        why = CallError("away", "no index node runs")
        while nodes:
            node = nodes.pop(chosen(deck, tuple(nodes)))
            try:
                return await self._peer(node).ask(question, answer, ANSWER_S)
            except CallError as error:
                if error.code not in AWAY:
                    raise
                why = error
        raise why

    async def all_index(self, question: msgspec.Struct, answer: type[A]) -> list[A]:
        """Ask every index node. Raises `CallError` if one does not answer."""
        nodes = await self._of(INDEX)
        if not nodes:
            raise CallError("away", "no index node runs")
        return list(await asyncio.gather(*(self._peer(node).ask(question, answer, ANSWER_S) for node in nodes)))

    async def _leading(self) -> Peer:
        """The leading scheduler. Raises `CallError` if none leads within `LEAD_S`."""
        until = asyncio.get_running_loop().time() + LEAD_S
        while True:
            peers = [self._peer(each) for each in await self._of(SCHEDULER)]
            if self._lead in peers:
                peers.sort(key=lambda peer: peer is not self._lead)
            why = CallError("away", "no scheduler runs")
            for peer in peers:
                try:
                    await peer.ask(Ping(), Pong, PING_S)
                except CallError as error:
                    why = error if error.code in AWAY else why
                    continue
                self._lead = peer
                return peer
            if asyncio.get_running_loop().time() >= until:
                raise why
            await asyncio.sleep(AGAIN_S)

    async def _of(self, role: str) -> list[Process]:
        if self._renew is not None:
            await self._renew()
        return [each for each in self._nodes() if each.role == role and each.bind and each.ready]

    def _peer(self, node: Process) -> Peer:
        address: Any = node.bind
        return self._peers.setdefault(address, Peer(address, self._key))


@contextlib.asynccontextmanager
async def asking(nodes: Look, key: bytes, renew: Renew | None = None) -> AsyncIterator[Asking]:
    """An `Asking` that is closed at the end of the context."""
    made = Asking(nodes, key, renew)
    try:
        yield made
    finally:
        await made.close()

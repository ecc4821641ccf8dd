"""A scheduler's connections to the index nodes: the running ones, the owner of each mark, and the notices to the
others.

Owns the connections and their liveness. It must not know runs' results, tasks or a store. One node owns each deck, by
rendezvous over those that answer; the others are told of each pick, so that the next owner continues the round.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from muster_server.plane.calls import CallError, Peer
from muster_server.systems.fleet.index_node import ROLE
from muster_server.systems.fleet.owner import chosen
from muster_server.systems.fleet.questions import Averages, Follow, Picked, PickOne, Ping, Pong, Release
from muster_server.systems.fleet.selector import parse

PING_S: Final = 0.5
ANSWER_S: Final = 1.5
"""A node that is silent for this many seconds is skipped until it answers a ping."""
ALONE_S: Final = 5.0
"""Seconds for which a draw waits while no node answers."""
LOOK_S: Final = 0.05
WHOLE: Final = 0.9
"""A node that knows less than this share of another node's clients has just started, and is not asked."""
A = TypeVar("A")


class IndexNodes:
    """Follows the map from `start` to `stop`. `nodes` are the running ones of the map."""

    def __init__(
        self, nodes: Callable[[], Sequence[Any]], key: bytes, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self.on_alive: Callable[[], None] = lambda: None
        """Called when a node answers again."""
        self._nodes, self._key, self._log = nodes, key, log
        self._peers: dict[int, Peer] = {}
        self._alive: dict[int, int] = {}
        """The nodes that answer, and the number of clients that each knows."""
        self._alone_since = time.monotonic()
        self._following: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._following = asyncio.create_task(self._follow(), name="follows index nodes")

    async def stop(self) -> None:
        tasks = [*self._telling, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    @property
    def alive(self) -> tuple[int, ...]:
        """The nodes that answer."""
        return tuple(sorted(self._alive))

    @property
    def online(self) -> int:
        """The number of clients online, by the nodes' last answers."""
        return max(self._alive.values(), default=0)

    async def pick(self, question: PickOne) -> Picked:
        """Ask the owner of the mark, else the next node. Raises `CallError`."""
        deck = str(parse(question.selector))
        while nodes := await self._whole():
            node = chosen(deck, nodes)
            try:
                picked = await self.ask(node, question, Picked)
            except CallError as error:
                if error.code not in {"away", "late"}:
                    raise
                continue  # it does not answer any more
            self._tell_others(node, question, picked)
            return picked
        raise CallError("away", "no index node answers")

    async def _whole(self) -> tuple[int, ...]:
        """The nodes that know all clients; none if none answered for `ALONE_S`."""
        while not self._alive and time.monotonic() - self._alone_since < ALONE_S:  # noqa: ASYNC110 - pings find one
            await asyncio.sleep(LOOK_S)
        return tuple(node for node, known in self._alive.items() if known >= WHOLE * self.online)

    def _tell_others(self, node: int, question: PickOne, picked: Picked) -> None:
        names, draw = [client for client, _ in picked.clients], picked.draw
        told = Follow(
            question.epoch,
            question.run,
            picked.deck,
            names,
            draw.of_round,
            draw.round,
            draw.punishment,
            question.hold_ms,
        )
        self.tell(told, without=node)

    def tell(self, question: Follow | Release | Averages, without: int = 0) -> None:
        """Tell all nodes that answer. A node that misses it learns from the next one, and frees clients by itself."""
        for node in self._alive.keys() - {without}:
            task = asyncio.create_task(self._tell(node, question))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, node: int, question: msgspec.Struct) -> None:
        try:
            await self.ask(node, question, Pong)
        except CallError as error:
            self._log.debug("an index node was not told", node=node, cause=str(error))

    async def ask(self, node: int, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask one node. Raises `CallError`."""
        peer = self._peers.get(node)
        if peer is None:
            raise CallError("away", f"index node {node} has ended")
        try:
            return await peer.ask(question, answer, ANSWER_S)
        except CallError as error:
            if error.code in {"away", "late"}:
                self._lose(node, error)
            raise

    async def any(self, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask one node that answers, the same one for the same question. Raises `CallError`."""
        for node in self.alive:
            try:
                return await self.ask(node, question, answer)
            except CallError as error:
                if error.code not in {"away", "late"}:
                    raise
        raise CallError("away", "no index node answers")

    async def _follow(self) -> None:
        while True:
            there = {node.node: node for node in self._nodes()}
            for gone in [number for number in self._peers if number not in there]:
                self._forget(gone)
                await self._peers.pop(gone).close()
            for number, node in there.items():
                known = self._peers.get(number)
                if known is None or known.address != tuple(node.client):
                    if known is not None:
                        await known.close()
                    self._peers[number] = Peer(node.client, self._key)
            await asyncio.gather(*(self._ping(number) for number in there))
            await asyncio.sleep(PING_S)

    async def _ping(self, number: int) -> None:
        try:
            pong = await self.ask(number, Ping(), Pong)
        except CallError:
            return
        new = number not in self._alive
        self._alive[number] = pong.online
        if new:
            self._log.info("an index node answers again", **self._peer(number), clients=pong.online)
            self.on_alive()

    def _lose(self, node: int, why: CallError) -> None:
        if self._forget(node):
            self._log.warning("an index node does not answer", **self._peer(node), cause=str(why))

    def _peer(self, number: int) -> dict[str, Any]:
        """Fields of an index node for the log."""
        name = next((each.name for each in self._nodes() if each.node == number), "")
        return {"peer": number} | ({"peer_name": name} if name else {})

    def _forget(self, node: int) -> bool:
        """Mark a node as not alive; returns whether it was."""
        if self._alive.pop(node, None) is None:
            return False
        if not self._alive:
            self._alone_since = time.monotonic()
        return True


def running(snapshot: Callable[[], Any]) -> Callable[[], Sequence[Any]]:
    """The running index nodes of the map."""

    def nodes() -> Sequence[Any]:
        return [each for each in snapshot().of(ROLE) if each.state == "running" and each.client]

    return nodes

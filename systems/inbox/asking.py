"""Calls to the nodes of inboxes from commands, the HTTP face and other roles.

Owns the choice of the node: the one that answered last goes first; one that does not answer is skipped for another.
It must not know what callers do with an answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from muster_server.plane.calls import CallError, Peer
from muster_server.systems.inbox.shapes import Changes, Watch

ANSWER_S: Final = 15.0
AWAY: Final = "no inbox runs here; to mend: enable the system inbox (systems.enabled, or muster up --with inbox)"
A = TypeVar("A")
Address = tuple[str, int]
Look = Callable[[], Sequence[Address]]
"""Returns the current addresses of the nodes."""


class Inboxes:
    """Asks nodes until `close`. `key`: `plane.calls.key_of` of the cluster's secret. All calls raise `CallError`."""

    def __init__(self, look: Look, key: bytes) -> None:
        self._look, self._key = look, key
        self._peers: dict[Address, Peer] = {}
        self._good: Address | None = None
        """The node that answered last."""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    async def ask(self, question: msgspec.Struct, answer: type[A], seconds: float = ANSWER_S) -> A:
        """Ask a node. A request whose answer was lost (`late`, `away`) may have been carried out."""
        why = CallError("away", AWAY)
        for address in sorted(await self.nodes(), key=lambda each: each != self._good):
            try:
                said = await self._peer(address).ask(question, answer, seconds)
            except CallError as error:
                if error.code != "away":
                    raise
                why = error
                continue
            self._good = address
            return said
        raise why

    async def watch(self, address: Address) -> AsyncGenerator[Changes]:
        """The changes that one node makes, without end; an empty one each second."""
        stream = self._peer(address).stream(Watch(), Changes)
        try:
            async for each in stream:
                yield each
        finally:
            await stream.aclose()

    async def nodes(self) -> list[Address]:
        """The current nodes; connections to others are closed."""
        now = list(self._look())
        for gone in self._peers.keys() - set(now):
            await self._peers.pop(gone).close()
        return now

    def _peer(self, address: Address) -> Peer:
        return self._peers.setdefault(address, Peer(address, self._key))

"""Calls to the nodes of one role, any of which can answer.

Owns the choice of the node: the one that answered last goes first; one that does not answer is skipped for another.
It must not know requests.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from muster_server.plane.calls import CallError, Peer

ANSWER_S: Final = 15.0
A = TypeVar("A")
Address = tuple[str, int]
Look = Callable[[], Sequence[Address]]
"""Returns the current addresses of the nodes."""


class Asking:
    """Asks nodes until `close`. `key`: `plane.calls.key_of` of the cluster's secret. `away`: the error without a node. All
    calls raise `CallError`."""

    def __init__(self, look: Look, key: bytes, away: str) -> None:
        self._look, self._key, self._away = look, key, away
        self._peers: dict[Address, Peer] = {}
        self._good: Address | None = None
        """The node that answered last."""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    async def ask(self, question: msgspec.Struct, answer: type[A], seconds: float = ANSWER_S) -> A:
        """Ask a node. A request whose answer was lost (`late`, `away`) may have been carried out."""
        why = CallError("away", self._away)
        for address in sorted(await self.nodes(), key=lambda each: each != self._good):
            try:
                said = await self.peer(address).ask(question, answer, seconds)
            except CallError as error:
                if error.code != "away":
                    raise
                why = error
                continue
            self._good = address
            return said
        raise why

    async def nodes(self) -> list[Address]:
        """The current nodes; connections to others are closed."""
        now = list(self._look())
        for gone in self._peers.keys() - set(now):
            await self._peers.pop(gone).close()
        return now

    def peer(self, address: Address) -> Peer:
        """The connection to one node."""
        return self._peers.setdefault(address, Peer(address, self._key))

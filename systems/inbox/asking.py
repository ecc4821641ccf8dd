"""Calls to the nodes of inboxes from commands, the HTTP face and other roles.

It must not know what callers do with an answer.
"""

from collections.abc import AsyncGenerator
from typing import Final

from muster_server.plane.asking import Address, Asking, Look
from muster_server.systems.inbox.shapes import Changes, Watch

__all__ = ["AWAY", "Address", "Inboxes"]

AWAY: Final = "no inbox runs here; to mend: enable the system inbox (systems.enabled, or muster up --with inbox)"


class Inboxes(Asking):
    """Asks nodes until `close`."""

    def __init__(self, look: Look, key: bytes) -> None:
        super().__init__(look, key, AWAY)

    async def watch(self, address: Address) -> AsyncGenerator[Changes]:
        """The changes that one node makes, without end; an empty one each second."""
        stream = self.peer(address).stream(Watch(), Changes)
        try:
            async for each in stream:
                yield each
        finally:
            await stream.aclose()

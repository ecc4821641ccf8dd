"""Calls to the archive from commands and the HTTP face.

It must not know what callers do with an answer.
"""

from typing import Final

from muster_server.plane.asking import Address, Asking, Look
from muster_server.systems.rooms.archive.shapes import Latest, Page, Read, ReadLatest

__all__ = ["AWAY", "Address", "Archive"]

AWAY: Final = "no archive runs here; to mend: set archive.rooms to the rooms that are kept"


class Archive(Asking):
    """Asks the archive until `close`."""

    def __init__(self, look: Look, key: bytes) -> None:
        super().__init__(look, key, AWAY)

    async def latest(self, asked: ReadLatest) -> Latest:
        """A page of the latest message of each key. Raises `CallError`."""
        return await self.ask(asked, Latest)

    async def read(self, asked: Read) -> Page:
        """A page. Raises `CallError`."""
        return await self.ask(asked, Page)

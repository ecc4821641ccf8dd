"""Live counts: the newest count of a changed item, as a message in the room `likes:ITEM`.

A client of the rooms' proxies, through the library. The cost of an item does not grow with its likes: the rate of
messages is limited. Counts that wait while rooms do not answer are sent later.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

import muster
from muster.inputs import check_name
from muster_server.plane.service import Figure
from muster_server.systems.likes.changes import Waiting

NAMESPACE: Final = "likes"
AGAIN_S: Final = 2.0
BUFFER_BYTES: Final = 1 << 20
Where = Callable[[], str | muster.Address]
"""Returns the folder of the instance, or the servers of the map. Raises `MusterError`."""


class Live:
    """Publishes while `run` runs. `rate`: limit of one item's counts per second; `rate_all`: limit over all items."""

    def __init__(self, where: Where, rate: int, rate_all: int, log: structlog.typing.FilteringBoundLogger) -> None:
        self.waiting = Waiting()
        self.published = self.unnamed = 0
        self.error = ""
        """Why nothing can be published now; empty: it can."""
        self._where, self._rate, self._rate_all, self._log = where, rate, rate_all, log
        self._client: muster.Client | None = None

    async def run(self) -> None:
        """Run until cancelled. Lost servers are found again."""
        try:
            while True:
                try:
                    self._client = await muster.connect(
                        self._where(), gateways=(), buffer_bytes=BUFFER_BYTES, receive_buffer_bytes=BUFFER_BYTES
                    )
                    self.error = ""
                    await self._publish(self._client)
                except muster.MusterError as error:
                    if not self.error:
                        self._log.warning("live counts wait: cannot reach the rooms", reason=str(error))
                    self.error = str(error)
                await asyncio.sleep(AGAIN_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None and not self._client.closed:
            try:
                await self._client.close(timeout=0.5)
            except muster.MusterError:  # it is closed, and the next change sends the count again
                return

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""
        if self._client is not None and not self._client.closed:
            self._client.redirect(address)

    async def _publish(self, client: muster.Client) -> None:
        """An item comes at most once in a turn, so not more often than turns run."""
        turn_s = 1 / self._rate
        most = max(1, self._rate_all // self._rate)
        while not client.closed:
            began = time.monotonic()
            for item, count in self.waiting.take(min(most, len(self.waiting))):
                await self._tell(client, item, count or 0)
            await asyncio.sleep(max(0.0, turn_s - (time.monotonic() - began)))

    async def _tell(self, client: muster.Client, item: bytes, count: int) -> None:
        try:
            room = f"{NAMESPACE}:{item.decode()}"
            check_name(room)
        except (UnicodeDecodeError, muster.BadRoomName):
            self.unnamed += 1
            return
        if not client.publish_nowait(room, str(count).encode()):
            self.waiting.back([(item, count)])
            await client.writable(room)
            return
        self.published += 1

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        return {"published": self.published, "waiting": len(self.waiting), "error": self.error}

    def counters(self) -> list[Figure]:
        """As `Service.counters`."""
        return [
            ("likes_counts_published", "Counts published to the rooms of items", self.published),
            ("likes_counts_unnamed", "Counts of items whose key is not a valid room name", self.unnamed),
        ]

    def gauges(self) -> list[Figure]:
        """As `Service.gauges`."""
        return [("likes_counts_waiting", "Items whose count waits to be published", len(self.waiting))]

"""Receives drops in a room, in place of the Redis: the room announces gaps, and end clients may listen.

Any message of the room proves to all members that it works. A member that receives none for a second publishes a
heartbeat.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from ..client import Client
from ..errors import MusterError, Unavailable
from ..items import Message
from .ending import ended
from .far import InRedis
from .hearing import AGAIN_S_MAX, BEAT_S, LOG, OnDrop

ROOM: Final = "cache:{}"
_BEAT: Final = b"beat"


class HearsRoom:
    """The same as `Hearing`, over the room of a cache."""

    def __init__(
        self, client: Client, name: str, far: InRedis, lease_s: float, on_drop: OnDrop, on_clear: Callable[[], None]
    ) -> None:
        self._client, self._room, self._far, self._lease_s = client, ROOM.format(name), far, lease_s
        self._on_drop, self._on_clear = on_drop, on_clear
        self.until = 0.0
        self.epoch = 0
        self.heard = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._run()),
                loop.create_task(self._beats()),
                loop.create_task(self._asks()),
            ]

    async def close(self) -> None:
        await ended(self._tasks)
        self._tasks.clear()
        self._deaf()

    async def tell(self, writer: str, keys: Sequence[str]) -> None:
        """Publish a drop. Raises `Unavailable` if the room's owner did not acknowledge it."""
        try:
            await self._client.publish(self._room, json.dumps([writer, *keys], ensure_ascii=False).encode())
        except MusterError as error:
            raise Unavailable(f"the room {self._room} does not accept a drop: {error}") from error

    def renew(self) -> None:
        """As `Hearing.renew`."""
        self.epoch += 1
        self._on_clear()

    def _deaf(self) -> None:
        self.until = 0.0
        self.heard.clear()
        self.renew()

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except MusterError as error:
                if self.until:
                    LOG.warning("the cache receives no drops, so its level 1 is empty: %s", error)
            self._deaf()
            await asyncio.sleep(AGAIN_S_MAX)

    async def _listen(self) -> None:
        async with self._client.join(self._room) as room:
            self.renew()
            async for item in room:
                if not isinstance(item, Message):  # a gap
                    self.renew()
                    continue
                self.until = monotonic() + self._lease_s
                self.heard.set()
                if item.data != _BEAT:
                    self._drop(item.data)

    def _drop(self, data: bytes) -> None:
        try:
            told = json.loads(data)
            writer, keys = told[0], told[1:]
            if not all(isinstance(each, str) for each in told):
                raise ValueError("expected a list of texts")
        except (ValueError, LookupError, TypeError):
            LOG.warning("malformed drop in %s, so level 1 was emptied", self._room)
            self.renew()
        else:
            self._on_drop(writer, keys, None)

    async def _beats(self) -> None:
        """Publish heartbeats. Each member waits a random time of a little more than a second, so mostly one of them
        publishes."""
        while True:
            silent_s = monotonic() - (self.until - self._lease_s)
            if silent_s >= BEAT_S:
                self._client.publish_nowait(self._room, _BEAT)
            await asyncio.sleep(BEAT_S * (0.2 + 0.6 * random.random()))

    async def _asks(self) -> None:
        """Ask the Redis for its life and its time."""
        while True:
            try:
                await self._far.beat("", 0)
            except Unavailable as error:
                LOG.debug("%s", error)
            await asyncio.sleep(BEAT_S)

"""Hands on the messages of users that no device has: beside a proxy or an edge, whose engine puts them into a queue.

A message keeps its id from its sender, so the topic or the inbox takes it once, whichever proxies it went by. Owns the tries
and their bound. Must not know how a topic calls, nor what an inbox is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

from muster_server.plane import ways
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.systems.presence import forms

AT_ONCE: Final = 64
"""Limit of messages that are being handed on; the queue holds further ones."""
LOOK_S: Final = 0.05
"""Time between looks into an empty queue."""
AGAIN_S: Final = (0.2, 5.0)
"""The first and the longest pause before a message that was not taken is tried again."""
GIVE_UP_S: Final = 60.0
END_S: Final = 2.0
"""A node that ends gives the messages under way this long."""
WARN_S: Final = 60.0
JSON: Final = "application/json"


class Queue(Protocol):
    """What an engine fills: `_engines.Undelivered`."""

    def take(self, most: int) -> list[tuple[int, int, int, str, bytes]]:
        """Some messages, the oldest first: sender, number, user, outcome, data."""


class HandingOn:
    """Takes from the queue while `run` runs."""

    def __init__(self, context: Context, way: ways.Way, where: str, queue: Queue) -> None:
        self._log, self._way, self._queue = context.log, way, queue
        self._kind, _, self._name = where.partition(":")
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = -WARN_S
        self.kept = self.lost = 0

    async def run(self) -> None:
        """Hand on until cancelled."""
        while True:
            free = AT_ONCE - len(self._tasks)
            found = self._queue.take(free) if free else []
            for message in found:
                task = asyncio.create_task(self._put(*message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if not found:
                await asyncio.sleep(LOOK_S)
            else:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Wait a moment for those under way, and close the way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._way.close()

    async def _put(self, sender: int, number: int, user: int, outcome: str, data: bytes) -> None:
        text, encoding = forms.encoded(data)
        if self._kind == "inbox":
            place, body = str(user), forms.entry(self._name, text, encoding, str(sender))
        else:
            place, body = self._name, forms.hook(str(user), None, text, encoding, outcome, str(sender))
        packed, id = msgspec.json.encode(body), f"{sender:x}-{number:x}-{user:x}"
        pause, most = AGAIN_S
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while True:
                    try:
                        await self._way.put(place, id, packed, JSON)
                    except ways.NotTaken as error:
                        if error.lasting:
                            self._lose(str(error))
                            return
                        self._warn(str(error))
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, most)
                    else:
                        self.kept += 1
                        return
        except TimeoutError:
            self._lose(f"not taken in {GIVE_UP_S:g} s")

    def _lose(self, cause: str) -> None:
        self.lost += 1
        self._log.warning("a message to a user who is not online is lost", to=f"{self._kind}:{self._name}", cause=cause)

    def _warn(self, cause: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned >= WARN_S:
            self._warned = now
            self._log.warning("messages to users who are not online wait", to=f"{self._kind}:{self._name}", cause=cause)


def hands_on(
    spec: Spec, folder: str, where: str, queue: Queue
) -> Callable[[Context], AbstractAsyncContextManager[object]]:
    """As `System.undelivered`."""

    @contextlib.asynccontextmanager
    async def opened(context: Context) -> AsyncIterator[None]:
        """Raises `SpecError`."""
        handing = HandingOn(context, ways.into(where.partition(":")[0], spec, context, folder), where, queue)
        running = asyncio.create_task(handing.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await handing.close()

    return opened

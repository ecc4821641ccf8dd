"""The client library in memory: clients of one process that share rooms. As `control.cluster.sdk` uses it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import muster
from muster.responder import Handler


@dataclass
class Message:
    room: str
    number: int
    sender: int
    data: bytes
    age: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def position(self) -> muster.Position:
        return muster.Position((1, 1, 1), self.number)


@dataclass
class Gap:
    stream: int
    first: int
    last: int | None
    reason: str
    room: str = "r"


class Room:
    """A member's queue."""

    history = muster.History(0, True)

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Message | Gap] = asyncio.Queue()

    async def batches(self) -> AsyncIterator[Sequence[Message | Gap]]:
        while True:
            batch = [await self.queue.get()]
            while not self.queue.empty():
                batch.append(self.queue.get_nowait())
            yield batch


class Client:
    """Publishes to everybody in the process. `credit` is what nowait may use in a row."""

    rooms: ClassVar[dict[str, list[Room]]] = {}
    count: ClassVar[int] = 0

    def __init__(self, credit: int = 256) -> None:
        self.credit = self.left = credit
        self.published: list[bytes] = []
        self.headers: list[Mapping[str, str] | None] = []
        self.waited = self.flushed = 0

    @asynccontextmanager
    async def join(self, room: str, *, history: int = 0, filter: muster.Filter | None = None) -> AsyncIterator[Room]:
        joined = Room()
        self.rooms.setdefault(room, []).append(joined)
        try:
            yield joined
        finally:
            self.rooms[room].remove(joined)

    async def publish(self, room: str, data: bytes) -> int:
        await asyncio.sleep(0)
        self.left = self.credit
        self.waited += 1
        return self._publish(room, data)

    async def writable(self, room: str) -> None:
        await asyncio.sleep(0)
        self.left = self.credit
        self.waited += 1

    def publish_nowait(self, room: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        self.headers.append(headers)
        self._publish(room, data)
        return True

    async def command(self, room: str, data: bytes, *, expires: float) -> muster.Outcome:
        return await asyncio.Future()  # nobody answers

    async def request(self, room: str, data: bytes, *, timeout: float) -> muster.Reply:
        return await asyncio.Future()

    def respond(self, room: str, handler: Handler, *, at_once: int) -> muster.Responder:
        raise NotImplementedError

    async def send(
        self, user: int, data: bytes, *, device: str | None, expires: float
    ) -> Sequence[muster.DeviceResult]:
        return await asyncio.Future()

    async def end_sessions(self, user: int, *, device: str | None, expires: float) -> Sequence[muster.DeviceResult]:
        return await asyncio.Future()

    async def end_member(self, room: str, user: int, *, expires: float) -> int:
        return await asyncio.Future()

    async def direct(self) -> AsyncIterator[muster.Direct]:
        yield await asyncio.Future()

    async def members(self, room: str, *, ids: bool, start: int, wait: float) -> muster.Members:
        return await asyncio.Future()

    async def flush(self) -> None:
        await asyncio.sleep(0)
        self.flushed = len(self.published)

    def stats(self) -> Mapping[str, int]:
        return {"repaired": 1}

    def _publish(self, room: str, data: bytes) -> int:
        self.published.append(data)
        type(self).count += 1
        for joined in self.rooms.get(room, []):
            joined.queue.put_nowait(Message(room, self.count, 1, data))
        return self.count


@asynccontextmanager
async def connect(*_place: Any, **_options: Any) -> AsyncIterator[Client]:
    """One more client of this process."""
    yield Client()

"""Direct messages of a user as event streams: the streams of one token share the token's session.

A message counts as delivered once the system of one reader has all its bytes. It must not know a route.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

import muster
from muster_server.systems.http.access import Caller
from muster_server.systems.http.connection import Connection
from muster_server.systems.http.streams import Stream, Streams
from muster_server.systems.rooms.http.feeds import encoded, event
from muster_server.systems.rooms.http.sessions import Session

WAITING_MAX: Final = 1_024
"""Messages that wait for one stream; a further one is no part of that stream, and expires unless another one takes it."""


class DirectFeed:
    """The messages to the user of one session, while it has readers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._client: muster.Client | None = None
        self.readers: set[Callable[[], None]] = set()
        self.streams: set[DirectStream] = set()
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self.ended: muster.MusterError | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once messages can come."""
        self._task = asyncio.create_task(self._run())

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._task.done() or self._task.cancelling() > 0

    def leave(self, stream: "DirectStream") -> None:
        """A stream has ended. With the last one nothing is taken any more, and senders are told so."""
        self.streams.discard(stream)
        if not self.streams:
            self._task.cancel()

    def confirm(self, messages: list[muster.Direct]) -> None:
        """A reader has these messages."""
        if self._client is not None and not self._client.closed:
            for message in messages:
                self._client.confirm(message)

    async def close(self) -> None:
        """Take no more messages."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        session = self._session
        session.users += 1
        try:
            self._client = await session.reader()
            self.opened.set_result(None)
            async with contextlib.aclosing(self._client.direct()) as messages:
                async for message in messages:
                    for stream in self.streams:
                        stream.put(message)
        except muster.MusterError as error:
            self.ended = error
            session.failed(error)
        finally:
            session.users -= 1
            if self._client is not None:
                await session.left(self._client)
            if not self.opened.done():
                self.opened.set_exception(self.ended or muster.Closed("the session was closed"))
                self.opened.exception()  # marks it as retrieved: perhaps nothing waits for it
            for reader in self.readers:
                reader()


class DirectStream(Stream):
    """A reader of a user's messages."""

    def __init__(self, streams: Streams, feed: DirectFeed, caller: Caller, heartbeat_s: float, stall_s: float) -> None:
        super().__init__(streams, caller, heartbeat_s, stall_s)
        self.feed = feed
        self._waiting: deque[muster.Direct] = deque()
        self._taken: list[muster.Direct] = []

    def begin(self) -> bytes:
        """Nothing; messages come to this stream from now on."""
        self.feed.streams.add(self)
        return b""

    def put(self, message: muster.Direct) -> None:
        """Add a message for the reader."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(message)
            self.wake()

    def take(self) -> bytes:
        """The events of all messages that wait."""
        self._taken = list(self._waiting)
        self._waiting.clear()
        return b"".join(map(_event, self._taken))

    def allowed(self) -> bool:
        """Whether the caller may still read: until its token ends, which is checked beside this."""
        return True

    def over(self) -> str:
        """Why the feed has ended."""
        if self.feed.over:
            return "unavailable" if self.feed.ended is None else self.feed.ended.code
        return ""

    async def stop(self) -> None:
        """Leave the feed."""
        self.feed.leave(self)

    async def written(self, connection: Connection | None) -> None:
        """Confirm the messages once the reader's system has them."""
        if connection is not None and await connection.received():
            self.feed.confirm(self._taken)
        self._taken = []


def _event(message: muster.Direct) -> bytes:
    """One message as an event. The id is the same wherever the message comes once more."""
    id = f"{message.sender}:{message.number}"
    head = f"id: {id}\n".encode()
    return head + event("", {"id": id, "sender": str(message.sender), **encoded(message.data)})

"""GETs of all callers over one connection, so no caller takes a connection from a pool; those of one loop turn leave
together.

redis-py connects and authenticates; from then on this file reads the connection's bytes. A cancelled caller leaves its
entry in the queue, and its answer is discarded.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import hiredis

from .ending import ended

WAITING_MAX: Final = 100_000
"""Limit of unanswered requests; further ones fail."""


class _Answers(asyncio.Protocol):
    """One connection."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._transport: asyncio.Transport = connection._writer.transport
        self._reader = hiredis.Reader()
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False
        self._transport.set_protocol(self)

    def ask(self, name: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(self._waiting) >= WAITING_MAX:
            future.set_exception(
                ConnectionError(f"too many requests wait for an answer of the Redis (limit {WAITING_MAX})")
            )
            return future
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look, self._answered)
        return future

    def _send(self) -> None:
        if not self.ended:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _look(self, answered: int) -> None:
        """End the connection if no answer came for a while though requests wait."""
        self._timer = None
        if self._waiting and self._answered == answered:
            self.end(TimeoutError(f"the Redis did not answer in {self._seconds} s"))
        elif self._waiting:
            self._timer = self._loop.call_later(self._seconds, self._look, self._answered)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                if type(answer) is hiredis.PushNotification:
                    continue
                self._answered += 1
                future = self._waiting.popleft()
                if future.done():
                    continue
                if isinstance(answer, hiredis.HiredisError):
                    future.set_exception(ConnectionError(str(answer)))
                else:
                    future.set_result(answer)
        except (hiredis.HiredisError, IndexError) as error:
            self.end(ConnectionError(f"malformed answer of the Redis: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.end(error or ConnectionError("the connection to the Redis ended"))

    def end(self, error: Exception) -> None:
        """Close the connection, and fail all waiting requests."""
        if self.ended:
            return
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        self._connection._close()  # so the close waits for no bytes
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # its caller may be gone
        self._waiting.clear()


class Gets:
    """The current connection, replaced when it has ended."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], seconds: float) -> None:
        self._connect, self._seconds = connect, seconds
        self._answers: _Answers | None = None
        self._connecting: asyncio.Task[_Answers] | None = None

    async def get(self, name: bytes) -> Any:
        """The content of a key, or None. Raises what connecting raises, and `OSError`."""
        answers = self._answers
        if answers is None or answers.ended:
            answers = await self._connected()
        return await answers.ask(name)

    async def _connected(self) -> _Answers:
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._made())
        return await asyncio.shield(self._connecting)

    async def _made(self) -> _Answers:
        self._answers = _Answers(await self._connect(), self._seconds)
        return self._answers

    async def close(self) -> None:
        """End the connection. A later request opens a new one."""
        if self._connecting is not None:
            await ended([self._connecting])
        if self._answers is not None:
            self._answers.end(ConnectionError("the connection to the Redis was closed"))

"""Sessions at an edge that `muster load edge` drives: one connection each, kept up from edge to edge.

Owns the connection, its commands and their answers. What a publication means is the business of its `Reader`.
"""

import asyncio
import itertools
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from muster_server.systems.edge import wire
from muster_server.systems.edge.wire import Encoding, Malformed, Message, Position, Publication, Subscribed

ANSWER_S: Final = 30.0
AGAIN_S: Final = (0.1, 5.0)
"""The first and the longest wait before a session connects again."""
HEAD_BYTES_MAX: Final = 16_384
STAYS_AWAY: Final = (range(3_500, 4_000), range(4_500, 5_000))
"""Codes of a close frame after which a client does not come back."""


class EndedError(Exception):
    """The connection or the subscription ended, or was refused."""


@dataclass(frozen=True, slots=True)
class Server:
    """An edge, as its URL names it."""

    host: str
    port: int
    secure: bool
    path: str

    @classmethod
    def of(cls, url: str) -> "Server":
        """Read `ws://HOST:PORT/PATH` or `wss://…`. Raises `ValueError`."""
        parts = urlsplit(url)
        if parts.scheme not in {"ws", "wss"} or not parts.hostname:
            raise ValueError(url)
        secure = parts.scheme == "wss"
        path = (parts.path or wire.PATH) + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, parts.port or (443 if secure else 80), secure, path)

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Reader(Protocol):
    """Takes the publications of one room."""

    @property
    def position(self) -> Position | None:
        """The place behind the last publication; None before the first subscription."""

    def known(self, body: bytes) -> bool:
        """Take a frame whose publications are known already; False: they are not."""

    def publications(self, found: Sequence[Publication], body: bytes | None) -> None:
        """Take publications in order. `body`: the frame that holds these and nothing else."""

    def subscribed(self, found: Subscribed) -> None:
        """A subscription begins, or begins again behind `position`; what was missed comes along."""


class Session(asyncio.Protocol):
    """One connection. `reader` takes what comes in its room."""

    def __init__(self, encoding: Encoding, ended: Callable[[], None], reader: Reader | None = None) -> None:
        self._encoding, self._ended, self._reader = encoding, ended, reader
        self._rest = b""
        self._upgrading: asyncio.Future[None] | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._pongs = False
        self.transport: asyncio.Transport | None = None
        self.open = False
        self.away = False
        """The edge said that this client is not to come back."""
        self.unsubscribed: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """No answer comes any more."""
        self.open = False
        error = EndedError("the edge closed the connection")
        if self._upgrading is not None and not self._upgrading.done():
            self._upgrading.set_exception(error)
        for each in self._asked.values():
            if not each.done():
                each.set_exception(error)
        self._asked.clear()
        self._ended()

    async def connect(self, server: Server, token: str) -> None:
        """Upgrade the connection, and open the session. Raises `EndedError`."""
        assert self.transport is not None
        self._upgrading = asyncio.get_running_loop().create_future()
        self.transport.write(wire.upgrade(server.authority, self._encoding, server.path))
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._upgrading
        except TimeoutError:
            raise EndedError("the edge does not answer") from None
        answer = await self.ask(lambda number: wire.connect(self._encoding, number, token))
        self._pongs = bool(answer.connect and answer.connect.pong)
        self.open = True

    async def subscribe(self, channel: str) -> None:
        """Subscribe behind the reader's position. Raises `EndedError`."""
        since = self._reader.position if self._reader is not None else None
        await self.ask(lambda number: wire.subscribe(self._encoding, number, channel, since=since))

    def send(self, channel: str, data: bytes) -> asyncio.Future[Message]:
        """Publish at once; the answer comes later."""
        assert self.transport is not None
        number = next(self._numbers)
        self.transport.write(wire.publish(self._encoding, number, channel, data))
        return self._wait(number)

    async def ask(self, command: Callable[[int], bytes]) -> Message:
        """Send a command, and return its answer. Raises `EndedError`, and for a refusal too."""
        assert self.transport is not None
        number = next(self._numbers)
        self.transport.write(command(number))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._wait(number)
        except TimeoutError:
            raise EndedError("the edge does not answer") from None
        if answer.error is not None:
            raise EndedError(f"{answer.error.message} ({answer.error.code})")
        return answer

    def _wait(self, number: int) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        return future

    def data_received(self, data: bytes) -> None:
        """Take the received bytes."""
        if self._rest:
            data = self._rest + data
        if self._upgrading is not None:
            self._rest = data = self._upgraded(data)
            if self._upgrading is not None:
                return
        try:
            found, self._rest = wire.frames(data)
            for kind, body in found:
                if kind in {wire.TEXT, wire.BINARY}:
                    if self._reader is None or not self._reader.known(body):
                        self._messages(body)
                elif kind == wire.CLOSE:
                    code = int.from_bytes(body[:2], "big")
                    self.away = any(code in codes for codes in STAYS_AWAY)
                    self.close()
                elif kind == wire.PING and self.transport is not None:
                    self.transport.write(wire.answer_ping(body))
        except Malformed:
            self._rest = b""
            self.close()

    def _upgraded(self, data: bytes) -> bytes:
        """The bytes behind the answer to the upgrade; what is there of it, while it is not whole."""
        assert self._upgrading is not None
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end and len(head) < HEAD_BYTES_MAX:
            return data
        waiting, self._upgrading = self._upgrading, None
        if head.startswith(b"HTTP/1.1 101"):
            waiting.set_result(None)
            return rest
        line = head.partition(b"\r\n")[0].decode(errors="replace")[:80]
        waiting.set_exception(EndedError(f"no WebSocket: {line}"))
        self.close()
        return b""

    def _messages(self, body: bytes) -> None:
        """Take the messages of a frame: publications together, as an edge sends them."""
        found = wire.messages(self._encoding, body)
        pushed = [each.push.pub for each in found if each.push is not None and each.push.pub is not None]
        if pushed and len(pushed) == len(found) and self._reader is not None:
            self._reader.publications(pushed, body)
            return
        for message in found:
            if message.id:
                self._answered(message)
            elif message.push is None:
                if self._pongs and self.transport is not None:
                    self.transport.write(wire.pong(self._encoding))
            elif self._reader is not None:
                if message.push.pub is not None:
                    self._reader.publications([message.push.pub], None)
                elif message.push.unsubscribe is not None:
                    self.unsubscribed()

    def _answered(self, message: Message) -> None:
        if message.subscribe is not None and self._reader is not None:
            self._reader.subscribed(message.subscribe)  # before what stands behind this answer in the same bytes
        waiting = self._asked.pop(message.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def close(self) -> None:
        """End the connection now."""
        if self.transport is not None:
            self.transport.abort()


class Keeper:
    """A session that comes back, to the next edge each time, until it is closed.

    `lost` counts connections that ended. `knocking` bounds how many connect at the same time.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        token: str,
        encoding: Encoding,
        *,
        index: int,
        knocking: asyncio.Semaphore,
        tls: ssl.SSLContext | None = None,
        channel: str = "",
        reader: Reader | None = None,
    ) -> None:
        self._servers, self._token, self._encoding, self._tls = servers, token, encoding, tls
        self._at, self._knocking, self._channel, self._reader = index, knocking, channel, reader
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.session: Session | None = None
        self.ready = asyncio.Event()
        self.lost = 0
        self.why = ""
        """The reason of the last connection that did not come up."""

    def start(self) -> None:
        """Connect, and stay connected."""
        self._task = asyncio.create_task(self._stay())

    async def close(self) -> None:
        """End the session."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.session is not None:
            self.session.close()

    async def _stay(self) -> None:
        wait, most = AGAIN_S
        while not self._closed:
            self._gone.clear()
            try:
                async with self._knocking:
                    self.session = session = await self._opened()
            except (OSError, EndedError) as error:
                self.why = str(error)
            else:
                wait = AGAIN_S[0]
                self.ready.set()
                await self._gone.wait()
                self.ready.clear()
                self.lost += 1
                if session.away:
                    self.why = "the edge ended the session for good"
                    return
            self._at += 1
            await asyncio.sleep(wait)
            wait = min(2 * wait, most)

    async def _opened(self) -> Session:
        """A session that has subscribed. Raises `OSError` or `EndedError`."""
        server = self._servers[self._at % len(self._servers)]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            _, session = await loop.create_connection(
                lambda: Session(self._encoding, self._gone.set, self._reader),
                server.host,
                server.port,
                ssl=self._tls if server.secure else None,
            )
        try:
            await session.connect(server, self._token)
            if self._channel:
                session.unsubscribed = lambda: self._again(session)
                await session.subscribe(self._channel)
        except BaseException:
            session.close()
            raise
        return session

    def _again(self, session: Session) -> None:
        """Subscribe once more: the edge ended the subscription at a gap."""

        async def subscribe() -> None:
            try:
                await session.subscribe(self._channel)
            except EndedError as error:
                self.why = str(error)
                session.close()

        self._subscribing = asyncio.create_task(subscribe())

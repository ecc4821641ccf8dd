"""A responder: answers requests to a room by a function of the program.

Owns its membership of the room's requests, the queue of requests and their tasks. The shapes are those of `requests.py`.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, final

from .errors import Invalid, MusterError, TooLong
from .items import Message, Request
from .requests import DETAIL_CHARS_MAX, ID_CHARS_MAX, REPLIES, REQUEST_S_MAX, SUFFIX, decode, encode, pack, unpack

if TYPE_CHECKING:
    from .client import Client
    from .room import Room

Handler = Callable[[Request], Awaitable[bytes]]

AT_ONCE: Final = 64
AT_ONCE_MAX: Final = 4_096
WAITING_MAX: Final = 1_024
"""Limit of requests that wait for a handler; further ones are answered with `busy`."""
ANSWERS_MAX: Final = 256
"""Limit of answers to questions and of refusals that are being sent; further ones are dropped, as clients ask again."""
CLIENTS_MAX: Final = 256
"""Limit of clients that are told when the responder ends."""
SEND_S: Final = 10.0
LINGER_S: Final = 0.2
"""A responder that ends takes requests for this time after it has told the clients."""
SHARED_USER: Final = 1
"""The user of the shared token."""
LOG: Final = logging.getLogger("muster.responder")


@final
class Responder:
    """Answers requests while its block lasts. Made by `Client.respond`."""

    def __init__(self, client: "Client", room: str, handler: Handler, at_once: int) -> None:
        if not isinstance(at_once, int) or not 1 <= at_once <= AT_ONCE_MAX:
            raise Invalid(f"invalid at_once {at_once!r:.40} (expected a number from 1 to {AT_ONCE_MAX})")
        self.room = room
        self.id = secrets.token_hex(8)
        """Its name in replies; random."""
        self._client, self._handler, self._at_once = client, handler, at_once
        self._mine = f'{{"to":"{self.id}",'.encode()
        self._member: Room | None = None
        self._reading: asyncio.Task[None] | None = None
        self._clients: OrderedDict[str, None] = OrderedDict()
        """The rooms for replies of clients that know this responder."""
        self._queue: deque[tuple[str, int, Request]] = deque()
        self._handling: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[bool]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False
        self._counts = dict.fromkeys(("requests", "replies", "failed", "busy", "unsent"), 0)

    async def __aenter__(self) -> "Responder":
        if self._reading is not None:
            raise Invalid(f"{self.room}: a responder is opened once; call client.respond again")
        self._member = await self._client.join(self.room + SUFFIX)
        self._reading = self._client.loop.create_task(self._read(self._member))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reading is not None
        try:
            if error is None and not self._client.closed:
                await self._finish()
        finally:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            if self._member is not None and not self._client.closed:
                self._member.leave()
            left: list[asyncio.Task[Any]] = [*self._handling, *self._answering]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def wait(self) -> None:
        """Return when the responder is over, and raise the error that ended it: the client was closed or refused."""
        if self._reading is None:
            raise Invalid(f"{self.room}: not open; use `async with client.respond(…)`")
        await asyncio.shield(self._reading)

    def stats(self) -> dict[str, int]:
        """Counts: `requests` taken, `replies`, of handlers that `failed`, refused as `busy`, and replies that went
        `unsent`."""
        return dict(self._counts)

    async def _finish(self) -> None:
        """Tell the clients, and answer what still comes."""
        self._ending = True
        gone = encode({"responder": self.id, "gone": True})
        sent = (self._client.publish(room, gone, timeout=LINGER_S) for room in self._clients)
        await asyncio.gather(*sent, return_exceptions=True)
        await asyncio.sleep(LINGER_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_S_MAX):  # no client waits longer
                await self._idle.wait()

    async def _read(self, room: "Room") -> None:
        async for batch in room.batches():
            for item in batch:
                if isinstance(item, Message) and (item.data.startswith(self._mine) or item.data[:5] != b'{"to"'):
                    self._take(item)

    def _take(self, message: Message) -> None:
        said = decode(message.data)
        reply, number = said.get("reply"), said.get("id")
        if not isinstance(reply, str) or not reply.startswith(REPLIES):
            return
        if isinstance(ask := said.get("ask"), int):
            if self._ending:
                return
            self._clients[reply] = None
            self._clients.move_to_end(reply)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
            self._answer(reply, {"id": ask, "responder": self.id})
            return
        if said.get("to") != self.id or not isinstance(number, int):
            return
        self._counts["requests"] += 1
        if len(self._queue) >= WAITING_MAX:
            self._counts["busy"] += 1
            self._answer(reply, self._error(number, "busy", "the responder has too many requests"))
            return
        try:
            request = Request(self.room, _sender(message, said), unpack(said))
        except ValueError:
            self._answer(reply, self._error(number, "malformed", "the request is malformed"))
            return
        self._queue.append((reply, number, request))
        self._begin()

    def _begin(self) -> None:
        while self._queue and len(self._handling) < self._at_once:
            self._idle.clear()
            task = self._client.loop.create_task(self._handle(*self._queue.popleft()))
            self._handling.add(task)
            task.add_done_callback(self._handled)

    def _handled(self, task: "asyncio.Task[None]") -> None:
        self._handling.discard(task)
        if not task.cancelled():
            self._begin()
        if not self._handling:
            self._idle.set()

    async def _handle(self, reply: str, number: int, request: Request) -> None:
        said: dict[str, object]
        try:
            said = {"id": number, "responder": self.id, **pack(await self._handler(request), "reply")}
        except (TooLong, Invalid) as error:
            self._counts["failed"] += 1
            LOG.exception("the handler of requests to %s gave no valid reply", self.room)
            said = self._error(number, error.code, str(error))
        except Exception:
            self._counts["failed"] += 1
            LOG.exception("the handler of requests to %s failed", self.room)
            said = self._error(number, "failed", "the responder's handler failed")
        if await self._send(reply, said):
            self._counts["replies"] += 1

    def _error(self, number: int, reason: str, detail: str) -> dict[str, object]:
        return {
            "id": number,
            "responder": self.id,
            "error": reason[:ID_CHARS_MAX],
            "detail": detail[:DETAIL_CHARS_MAX],
        }

    def _answer(self, reply: str, said: dict[str, object]) -> None:
        """Send without waiting for it."""
        if len(self._answering) >= ANSWERS_MAX:
            self._counts["unsent"] += 1
            return
        task = self._client.loop.create_task(self._send(reply, said))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _send(self, reply: str, said: dict[str, object]) -> bool:
        try:
            await self._client.publish(reply, encode(said), timeout=SEND_S)
        except MusterError as error:
            self._counts["unsent"] += 1
            if not self._client.closed:
                LOG.warning("a reply of %s was not sent: %s", self.room, error)
            return False
        return True


def _sender(message: Message, said: dict[str, Any]) -> int:
    """The user that asks. A server that asks for its own clients names them; from others the field counts for nothing."""
    named = said.get("sender")
    if message.sender == SHARED_USER and isinstance(named, str) and named.isascii() and named.isdigit():
        number = int(named[:20])
        return number if number < 1 << 64 else message.sender
    return message.sender

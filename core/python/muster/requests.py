"""Requests: a client asks, and one of the room's responders answers.

Requests to a room R go through the room `R/requests`, of which R's responders are members. Each client that asks has one
room for replies: `replies:` and 128 random bits. All are messages of rooms, in JSON:

    client → R/requests      {"ask": N, "reply": ROOM}                       which responders are there?
    responder → ROOM         {"id": N, "responder": ID}                      this one
    client → R/requests      {"to": ID, "id": N, "reply": ROOM, "data": …}   to one of them; the others drop it
    responder → ROOM         {"id": N, "responder": ID, "data": …}           or "error" and "detail" instead of "data"
    responder → ROOM         {"responder": ID, "gone": true}                 it takes no further requests

Owns these shapes, the client's known responders and its requests under way. `responder.py` is the other side.
"""

import asyncio
import base64
import math
import random
import secrets
from collections import OrderedDict
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from json import dumps, loads
from typing import TYPE_CHECKING, Any, Final

from .errors import Closed, Invalid, MusterError, NoResponders, Refused, ResponderFailed, TimedOut, TooLong
from .items import Message, Reply
from .sizes import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from .client import Client
    from .room import Room

COUNTS: Final = ("requests", "requests_no_responders", "requests_timed_out", "replies_late")
SUFFIX: Final = "/requests"
REPLIES: Final = "replies:"
"""Begin of the rooms for replies. A responder publishes in no other room, wherever a request wants its reply."""
REQUEST_S_MAX: Final = 60.0
UNDER_WAY_MAX: Final = 16_384
"""Limit of the requests of one client that have no reply yet."""
ROOMS_MAX: Final = 1_024
"""Limit of rooms whose responders a client remembers."""
RESPONDERS_MAX: Final = 64
"""Limit of responders of one room that a client knows; it does not use the others."""
ID_CHARS_MAX: Final = 64
DETAIL_CHARS_MAX: Final = 400
SILENCE_S: Final = 0.05
"""After this time without an answer of a responder, the gateways are asked whether there is one."""
ASK_AGAIN_S: Final = 1.0
REFRESH_S: Final = 2.0
"""While a room gets requests, its responders are asked so often whether they are there."""
KNOWN_S: Final = 10.0
"""Responders of which nothing was heard for this time are forgotten."""


@dataclass(slots=True)
class _Known:
    """A responder: its requests under way, and when it was last heard."""

    heard_at: float
    under_way: int = 0


@dataclass(slots=True, eq=False)
class _Asked:
    """A room that gets requests."""

    room: str
    number: int
    """Of its questions for responders."""
    responders: dict[str, _Known] = field(default_factory=dict)
    asked_at: float = -math.inf
    under_way: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    finding: "asyncio.Task[None] | None" = None
    finders: int = 0
    """Calls that wait for `finding`."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request under way."""

    reply: "asyncio.Future[Reply]"
    asked: _Asked
    responder: str
    begun_at: float


class Requests:
    """The requests of one client. Made with its first one, and over when the client closes."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._home = REPLIES + secrets.token_hex(16)
        self._rooms: OrderedDict[str, _Asked] = OrderedDict()
        """By room, the one used last at the end."""
        self._numbers: dict[int, _Asked] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._number = self._under_way = 0
        self._joining = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self.counts = dict.fromkeys(COUNTS, 0)

    async def request(self, room: str, data: bytes, timeout: float, user: int | None) -> Reply:
        """As `Client.request`."""
        if not 0 < timeout <= REQUEST_S_MAX:
            raise Invalid(
                f"invalid time-out of a request: {timeout!r} (expected more than 0 and at most {REQUEST_S_MAX:g} seconds)"
            )
        packed = pack(data)
        if self._under_way >= UNDER_WAY_MAX:
            raise Refused(f"request to {room}", "busy")
        self.counts["requests"] += 1
        asked = self._asked(room)
        asked.under_way += 1
        self._under_way += 1
        try:
            return await self._client.wait(self._exchange(asked, packed, user), timeout, f"request to {room}", 1)
        except NoResponders:
            self.counts["requests_no_responders"] += 1
            raise
        except TimedOut:
            self.counts["requests_timed_out"] += 1
            raise
        finally:
            asked.under_way -= 1
            self._under_way -= 1

    async def _exchange(self, asked: _Asked, packed: dict[str, str], user: int | None) -> Reply:
        await self._listen()
        responder = await self._responder(asked)
        now = self._client.loop.time()
        number = self._next()
        waiting = self._waiting[number] = _Waiting(self._client.loop.create_future(), asked, responder, now)
        known = asked.responders[responder]
        known.under_way += 1
        said: dict[str, object] = {"to": responder, "id": number, "reply": self._home, **packed}
        if user is not None:
            said["sender"] = str(user)
        try:
            await self._client.publish(asked.room + SUFFIX, encode(said), timeout=math.inf)
            return await waiting.reply
        except asyncio.CancelledError:
            if known.heard_at <= now and asked.responders.get(responder) is known:
                del asked.responders[responder]  # it may be dead; if not, it answers the next question
            raise
        finally:
            known.under_way -= 1
            del self._waiting[number]
            if waiting.reply.done():
                waiting.reply.exception()  # marks it as retrieved, as the call may have ended before

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _asked(self, room: str) -> _Asked:
        asked = self._rooms.get(room)
        if asked is not None:
            self._rooms.move_to_end(room)
            return asked
        if len(self._rooms) >= ROOMS_MAX:
            idle = next((each for each in self._rooms.values() if not each.under_way), None)
            if idle is None:
                raise Refused(f"request to {room}", "busy")
            del self._rooms[idle.room], self._numbers[idle.number]
        asked = self._rooms[room] = _Asked(room, self._next())
        self._numbers[asked.number] = asked
        return asked

    # --- which responders are there -----------------------------------------------------------------------------

    async def _responder(self, asked: _Asked) -> str:
        """A responder of the room. Raises `NoResponders`."""
        now = self._client.loop.time()
        if now - asked.asked_at > KNOWN_S:
            asked.responders.clear()
        elif asked.responders and now - asked.asked_at > REFRESH_S:
            for id in [id for id, known in asked.responders.items() if known.heard_at < asked.asked_at]:
                del asked.responders[id]
            if self._client.publish_nowait(asked.room + SUFFIX, self._question(asked)):
                asked.asked_at = now
        while not asked.responders:
            await self._find(asked)
        ids = list(asked.responders)
        some = random.sample(ids, 2) if len(ids) > 1 else ids
        return min(some, key=lambda id: asked.responders[id].under_way)

    async def _find(self, asked: _Asked) -> None:
        """Wait until a responder is known; calls for the same room wait for one search."""
        if asked.finding is None or asked.finding.done():
            asked.finding = self._client.loop.create_task(self._search(asked))
        finding = asked.finding
        asked.finders += 1
        try:
            await asyncio.shield(finding)
        finally:
            asked.finders -= 1
            if not asked.finders and not finding.done():
                asked.finding = None
                finding.cancel()

    async def _search(self, asked: _Asked) -> None:
        """Ask until a responder answers. Raises `NoResponders` once the gateways say that there is none."""
        name = asked.room + SUFFIX
        while True:
            asked.heard.clear()
            asked.asked_at = self._client.loop.time()
            await self._client.publish(name, self._question(asked), timeout=math.inf)
            if asked.responders or await self._hears(asked, SILENCE_S):
                return
            pause = ASK_AGAIN_S
            try:
                found = await self._client.members(name)
                if not found.count and not found.partial and not asked.responders:
                    raise NoResponders(f"request to {asked.room}: the room has no responder now")
            except TimedOut:
                pass
            except Refused as error:  # without the right `members` it is not told before the time is over
                pause = error.retry_after or ASK_AGAIN_S
            if asked.responders or await self._hears(asked, pause):
                return

    async def _hears(self, asked: _Asked, seconds: float) -> bool:
        """Whether a responder answers within this time."""
        try:
            async with asyncio.timeout(seconds):
                await asked.heard.wait()
        except TimeoutError:
            return False
        return True

    def _question(self, asked: _Asked) -> bytes:
        return encode({"ask": asked.number, "reply": self._home})

    # --- replies ------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Join the room for replies, unless it is joined."""
        if self._reading is not None and not self._reading.done():
            return
        async with self._joining:
            if self._reading is None or self._reading.done():
                room = await self._client.join(self._home)
                self._reading = self._client.loop.create_task(self._read(room))

    async def _read(self, room: "Room") -> None:
        error: MusterError = Closed("the client is closed")
        try:
            async for batch in room.batches():
                for item in batch:
                    if isinstance(item, Message):
                        self._take(item)
        except MusterError as found:  # the client is closed, or its session refused
            error = found
        finally:
            if not self._client.closed:
                room.leave()
            for waiting in self._waiting.values():
                if not waiting.reply.done():
                    waiting.reply.set_exception(copy(error))

    def _take(self, message: Message) -> None:
        said = decode(message.data)
        id, number = said.get("responder"), said.get("id")
        if not isinstance(id, str) or not 0 < len(id) <= ID_CHARS_MAX:
            return
        if said.get("gone") is True:
            for asked in self._rooms.values():
                asked.responders.pop(id, None)
            return
        if not isinstance(number, int):
            return
        now = self._client.loop.time()
        asked_again = self._numbers.get(number)
        if asked_again is not None:
            self._heard(asked_again, id, now)
            return
        waiting = self._waiting.get(number)
        if waiting is None or waiting.reply.done():
            self.counts["replies_late"] += 1
            return
        if waiting.responder != id:
            return
        if (known := waiting.asked.responders.get(id)) is not None:  # one that has said it is gone stays so
            known.heard_at = now
        room = waiting.asked.room
        if "error" in said:
            reason, detail = str(said["error"])[:ID_CHARS_MAX], str(said.get("detail", ""))[:DETAIL_CHARS_MAX]
            waiting.reply.set_exception(ResponderFailed(f"request to {room}: {detail or reason}", reason))
            return
        try:
            data = unpack(said)
        except ValueError:
            waiting.reply.set_exception(ResponderFailed(f"request to {room}: the reply is malformed", "malformed"))
        else:
            waiting.reply.set_result(Reply(room, id, message.sender, data))

    def _heard(self, asked: _Asked, id: str, now: float) -> None:
        known = asked.responders.get(id)
        if known is not None:
            known.heard_at = now
        elif len(asked.responders) < RESPONDERS_MAX:
            asked.responders[id] = _Known(now)
        asked.heard.set()


# --- the shapes, for both sides -----------------------------------------------------------------------------------


def encode(said: dict[str, object]) -> bytes:
    """A message of requests, as JSON in UTF-8 with the fields in this order."""
    return dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes) -> dict[str, Any]:
    """The object in a message; empty for any other content."""
    with suppress(ValueError, RecursionError):
        said = loads(data)
        if isinstance(said, dict):
            return said
    return {}


def pack(data: bytes, what: str = "request") -> dict[str, str]:
    """The fields `data`, and `encoding` unless it is UTF-8. Raises `TooLong` and `Invalid`."""
    if not isinstance(data, bytes):
        raise Invalid(f"invalid {what} of type {type(data).__name__} (expected bytes)")
    if len(data) > REQUEST_BYTES_MAX:
        raise TooLong(f"the {what} is too long: {len(data)} bytes (limit {REQUEST_BYTES_MAX}); nothing was sent")
    with suppress(UnicodeDecodeError):
        text = data.decode()
        written = len(dumps(text, ensure_ascii=False).encode())
        if written <= 2 + (len(data) + 2) // 3 * 4:  # escapes may be longer than base64
            return {"data": text}
    return {"data": base64.b64encode(data).decode(), "encoding": "base64"}


def unpack(said: dict[str, Any]) -> bytes:
    """The bytes of the fields `data` and `encoding`; `data` that is not text is passed on as JSON. Raises `ValueError`."""
    data, encoding = said.get("data"), said.get("encoding", "utf-8")
    if not isinstance(data, str):
        return dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    if encoding == "utf-8":
        return data.encode()
    if encoding == "base64":
        return base64.b64decode(data, validate=True)
    raise ValueError(encoding)

"""The service behind the rooms' routes: rooms that are read, clients that publish, streams, and errors as problems.

Owns their life in one process. Knows no path and no body.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import muster
from muster.instance import Endpoint
from muster_server.plane.calls import CallError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.face import Base
from muster_server.systems.http.idempotency import Nothing
from muster_server.systems.http.lookout import Lookout
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.archive.asking import Address, Archive
from muster_server.systems.rooms.archive.shapes import ROLE, Latest, ReadLatest
from muster_server.systems.rooms.cli.listing import Listing
from muster_server.systems.rooms.history import Asked, Found, Untimed, found
from muster_server.systems.rooms.http.bodies import Content
from muster_server.systems.rooms.http.direct import DirectFeed, DirectStream
from muster_server.systems.rooms.http.feeds import Feed
from muster_server.systems.rooms.http.sessions import SWEEP_S, Session, Sessions, TooManySessions
from muster_server.systems.rooms.http.streams import RoomStream

PUBLISH_S: Final = 10.0
OWN_AGAIN_S: Final = 1.0
CODES: Final[Mapping[str, str]] = {
    "bad_room_name": "bad_room_name",
    "name_collision": "name_collision",
    "not_allowed": "not_allowed",
    "rate_limited": "rate_limited",
    "too_much_history": "too_much_history",
    "too_long": "too_long",
    "invalid": "bad_request",
    "timeout": "timeout",
    "busy": "busy",
    "too_many_rooms": "busy",
    "no_responders": "no_responders",
    "responder_failed": "responder_failed",
}
"""Problem codes by the code of the library's error; all others are `unavailable`."""
REQUEST_OUTCOMES: Final = ("replied", "no_responders", "timeout", "responder_failed", "failed")
ARCHIVE_CODES: Final = {"question": "bad_request", "late": "timeout"}
ENDS: Final = ("left", "stalled", "draining", "revoked", "expired", "unavailable", "cancelled", "defect")
"""Reasons of a stream's end, besides the codes of errors."""


class Service:
    """The rooms in one process."""

    def __init__(self, base: Base) -> None:
        self.base, self._counts = base, base.counts
        self._sessions = Sessions(base.where, self.options.sessions_max, self.options.session_idle_s)
        self._feeds: dict[tuple[bytes | None, str], Feed] = {}
        self._directs: dict[bytes, DirectFeed] = {}
        """By token, while a stream reads them."""
        self._streams: set[RoomStream | DirectStream] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.listing = Listing(base.nodes)
        self._lookout = Lookout(base)
        self._archived: Archive | None = None
        self.ready = self.draining = False
        gauge = base.counts.gauge
        gauge("http_streams", "Open event streams", lambda: len(self._streams))
        gauge("http_rooms", "Rooms that have readers", lambda: len(self._feeds))
        gauge("http_room_bytes", "Memory of the rings of rooms that have readers", self._ring_bytes)
        gauge("http_sessions", "Users with sessions", lambda: len(self._sessions))
        self.sent(0)
        for reason in ENDS:
            self._ended(reason, 0)
        for outcome in ("published", "failed"):
            self._published(outcome, 0)
        for outcome in REQUEST_OUTCOMES:
            self._requested(outcome, 0)

    @property
    def options(self) -> HttpOptions:
        """The current options."""
        return self.base.options

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As `Face.start`."""
        self._tasks = [asyncio.create_task(self._open_own()), asyncio.create_task(self._sweep())]

    def redirect(self, address: muster.Address) -> None:
        """As `Face.redirect`."""
        self._sessions.redirect(address)

    def access_changed(self) -> None:
        """As `Face.access_changed`."""
        for stream in self._streams:
            stream.wake()

    def drain(self) -> None:
        """As `Face.drain`."""
        self.draining = True
        self.access_changed()

    async def stop(self) -> None:
        """As `Face.stop`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        await asyncio.gather(*(direct.close() for direct in self._directs.values()))
        await self._sessions.close()
        await self.listing.close()
        if self._archived is not None:
            await self._archived.close()

    def status(self) -> dict[str, Any]:
        """As `Face.status`."""
        return {"streams": len(self._streams), "rooms": len(self._feeds), "sessions": len(self._sessions)}

    def _ring_bytes(self) -> float:
        return sum(feed.ring.bytes for feed in self._feeds.values())

    async def _open_own(self) -> None:
        """Connect the process's own client, however long it takes."""
        while not self.ready:
            try:
                await self._sessions.own.publisher()
                self.ready = True
            except muster.MusterError as error:
                self.base.log.warning("waiting for the servers", why=str(error))
                await asyncio.sleep(OWN_AGAIN_S)

    async def _sweep(self) -> None:
        """Leave rooms without readers, and close idle sessions."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for place, feed in list(self._feeds.items()):
                idle = feed.idle_since is not None and now - feed.idle_since > self.options.room_idle_s
                if feed.over or idle:
                    del self._feeds[place]
                    await feed.close()
            for token, direct in list(self._directs.items()):
                idle = direct.idle_since is not None and now - direct.idle_since > self.options.room_idle_s
                if direct.over or idle:
                    del self._directs[token]
                    await direct.close()
            self._sessions.sweep()

    def proxies(self) -> Sequence[Endpoint]:
        """The proxies that are known. Raises `Problem`."""
        try:
            return self._sessions.own.proxies()
        except muster.MusterError as error:
            raise Problem("unavailable", str(error)) from None

    # --- for routes --------------------------------------------------------------------------------------------

    def session(self, caller: Caller) -> Session:
        """The caller's session. Raises `Problem`."""
        try:
            return self._sessions.of(caller.token)
        except TooManySessions:
            raise Problem("busy", "too many users at once") from None

    async def feed(self, caller: Caller, room: str) -> Feed:
        """The joined room for this caller. Raises `Problem`."""
        name = room if ":" in room else f"default:{room}"
        feed = self._feeds.get((caller.token, name))
        if feed is None or feed.over:
            if len(self._feeds) >= self.options.rooms_max and not await self._leave_one():
                raise Problem("busy", "too many rooms have readers at once")
            options = self.options
            feed = Feed(name, self.session(caller), options.history_max, options.room_bytes_max)
            self._feeds[caller.token, name] = feed
        feed.idle_since = asyncio.get_running_loop().time()
        try:
            await asyncio.shield(feed.joined)
        except muster.MusterError as error:
            raise problem(error, caller) from None
        return feed

    async def page(self, feed: Feed, asked: Asked) -> Found[bytes]:
        """A page of a joined room. Raises `Problem`."""
        ring = feed.ring
        if not asked.limit:
            return Found([], None, True)
        is_last = asked.at is None and asked.since_ms is None
        recent = ring.messages(ring.newest(asked.limit + 1) if is_last else ring.begin)
        archive = await self._archive()
        read = None if archive is None else archive.read
        try:
            return await found(asked, recent, ring.whole, read)
        except Untimed:
            raise Problem(
                "bad_request",
                f"since: messages of {feed.room} have no time, as no archive keeps the room (archive.rooms)",
            ) from None
        except CallError as error:
            if is_last:  # what is in memory is true without the archive
                return await found(asked, recent, False, None)
            raise Problem(ARCHIVE_CODES.get(error.code, "unavailable"), str(error)[:400]) from None

    async def latest(self, caller: Caller, asked: ReadLatest) -> Latest:
        """A page of the latest message of each key of a room. Raises `Problem`."""
        if not (await self.feed(caller, asked.room)).history:
            raise Problem("not_allowed", f"{caller.name} may not read the history of {asked.room}"[:400])
        archive = await self._archive()
        try:
            page = Latest() if archive is None else await archive.latest(asked)
        except CallError as error:
            raise Problem(ARCHIVE_CODES.get(error.code, "unavailable"), str(error)[:400]) from None
        if not page.kept:
            raise Problem("not_found", f"no archive keeps {asked.room} (archive.rooms)"[:400])
        return page

    async def _archive(self) -> Archive | None:
        """The archive; None: none runs."""
        with contextlib.suppress(Problem):
            await self._lookout.look()
            if self._archive_nodes():
                if self._archived is None:
                    self._archived = Archive(self._archive_nodes, self._lookout.key())
                return self._archived
        return None

    def _archive_nodes(self) -> list[Address]:
        return [each.bind for each in self._lookout.nodes if each.role == ROLE and each.bind and each.ready]

    async def direct(self, caller: Caller, token: bytes) -> DirectStream:
        """A stream of the messages to this caller's user. Raises `Problem`."""
        feed = self._directs.get(token)
        if feed is None or feed.over:
            feed = self._directs[token] = DirectFeed(self.session(caller))
        try:
            await asyncio.shield(feed.opened)
        except muster.MusterError as error:
            raise problem(error, caller) from None
        return DirectStream(self, feed, caller, self.options.heartbeat_s, self.options.stall_s)

    async def _leave_one(self) -> bool:
        """Leave a room without a reader."""
        for place, feed in list(self._feeds.items()):
            if not feed.readers and feed.joined.done():
                del self._feeds[place]
                await feed.close()
                return True
        return False

    def open(self, stream: RoomStream | DirectStream) -> None:
        """Add a stream. Raises `Problem`."""
        if self.draining:
            raise Problem("draining")
        if len(self._streams) >= self.options.streams_max:
            raise Problem("busy", "too many event streams at once")
        self._streams.add(stream)
        stream.feed.readers.add(stream.wake)
        stream.feed.idle_since = None

    def close(self, stream: RoomStream | DirectStream, reason: str) -> None:
        """Remove a stream that has ended."""
        self._streams.discard(stream)
        feed = stream.feed
        feed.readers.discard(stream.wake)
        if not feed.readers:
            feed.idle_since = asyncio.get_running_loop().time()
        self._ended(reason, 1)

    def sent(self, length: int) -> None:
        """Count the bytes sent to a stream."""
        self._counts.add("http_stream_bytes", "Bytes of events sent to streams", length)

    def _ended(self, reason: str, count: int) -> None:
        self._counts.add("http_streams_ended", "Event streams that ended, by reason", count, reason=reason)

    def _published(self, outcome: str, count: int) -> None:
        self._counts.add("http_messages", "Messages published over HTTP, by outcome", count, outcome=outcome)

    def _requested(self, outcome: str, count: int) -> None:
        self._counts.add("http_room_requests", "Requests to responders of rooms, by outcome", count, outcome=outcome)

    async def publish(
        self, caller: Caller, room: str, contents: Sequence[Content | Problem]
    ) -> list[muster.Position | Problem]:
        """Publish in this order, and return each message's position, or the reason why it has none."""
        session = self.session(caller)
        session.users += 1
        try:
            try:
                client = await session.publisher()
            except muster.MusterError as error:
                raise Nothing(problem(error, caller)) from None
            tasks = [_failed(each) if isinstance(each, Problem) else _publish(client, room, each) for each in contents]
            said = [await tasks[0]] if len(tasks) == 1 else await asyncio.gather(*tasks)
        finally:
            session.users -= 1
        found: list[muster.Position | Problem] = []
        for each in said:
            if isinstance(each, muster.MusterError):
                if each.code == "bad_credential":
                    session.forget(client)
                found.append(problem(each, caller))
            else:
                found.append(each)
        failed = sum(isinstance(each, Problem) for each in found)
        self._published("published", len(found) - failed)
        self._published("failed", failed)
        return found

    async def request(self, caller: Caller, room: str, data: bytes, timeout: float) -> muster.Reply:
        """Ask a room's responders. Raises `Problem`, or `Nothing` if no responder has the request."""
        outcome = "failed"
        try:
            reply: muster.Reply = await self.ask(
                caller, lambda client: client.request(room, data, timeout=timeout), reads=True
            )
            outcome = "replied"
            return reply
        except (Nothing, Problem) as error:
            code = error.problem.code if isinstance(error, Nothing) else error.code
            outcome = code if code in REQUEST_OUTCOMES else outcome
            raise
        finally:
            self._requested(outcome, 1)

    async def ask(self, caller: Caller, ask: Callable[[muster.Client], Awaitable[Any]], *, reads: bool = False) -> Any:
        """Call a function with the caller's client. `reads`: with one that has a gateway too. Raises `Problem`, or
        `Nothing` if nothing was done."""
        session = self.session(caller)
        session.users += 1
        try:
            client = await (session.requester() if reads else session.publisher())
            return await ask(client)
        except (muster.TimedOut, muster.ResponderFailed) as error:
            raise problem(error, caller) from None
        except muster.MusterError as error:
            raise Nothing(problem(error, caller)) from None
        finally:
            session.users -= 1


def problem(error: muster.MusterError, caller: Caller) -> Problem:
    """Convert an error of rooms to a problem."""
    code = CODES.get(error.code, "unavailable")
    if isinstance(error, muster.ResponderFailed) and error.retry:
        code = "busy"
    if error.code == "bad_credential" and caller.token is not None:
        code = "bad_credential"
    return Problem(code, str(error), retry_after=getattr(error, "retry_after", None))


async def _failed(problem: Problem) -> Problem:
    return problem


async def _publish(client: muster.Client, room: str, content: Content) -> muster.Position | muster.MusterError:
    try:
        return await client.publish(room, content.data, headers=content.headers, timeout=PUBLISH_S)
    except muster.MusterError as error:
        return error

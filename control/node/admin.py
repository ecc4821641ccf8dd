"""Administration over HTTP, one port per process, on loopback, in the role's own loop.

`/healthz` the process lives, `/readyz` the role serves, `/metrics` for Prometheus, `/api/v1/status`, `/api/v1/rooms`,
`/api/v1/rooms/{name}`, `/api/v1/interest`, and with a registry `/api/v1/placement`. It has no login and so never leaves the
machine (`admin.host`).

Rooms and interest come in pages, each of which costs what its `limit` says, however much there is: in the order in which a
node keeps them, which stays while it lives. A page may be short; `next` is what `after` has to be for the one that follows,
or null. What comes or goes meanwhile may or may not be in one of them; what stays is in one.
"""

import asyncio
import contextlib
import itertools
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from control.node import metrics
from control.node.links import Links
from plane.server import Server

if TYPE_CHECKING:  # loaded only where there is a database, or a registry
    from control.node.enrolment import Enrolment
    from control.rooms.database.keeper import Keeper

PAGE: Final = 100
PAGE_MAX: Final = 1000
CONNECTIONS_MAX: Final = 64
"""Beyond that who has waited longest goes, so that who comes is answered."""
WAIT_S: Final = 10.0
"""A connection without a request, or whose answer is not read, for so long is one of nobody."""
NODE_MAX: Final = (1 << 32) - 1
_LIMIT: Final = re.compile(r"[1-9][0-9]{0,3}")
_ROOMS_AFTER: Final = re.compile(r"[0-9]{1,18}")
_INTEREST_AFTER: Final = re.compile(r"(0|[1-9][0-9]{0,9})-([0-9a-f]{16})")

_TURNS: Final = itertools.count()
"""Who began to wait before whom: the clock of a loop stands still while that takes in several."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes]


class App:
    """An ASGI application without login, which only answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, kind, body = self._answered(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answered(self, scope: Scope) -> Answer:
        if scope["method"] not in {"GET", "HEAD"}:
            return json_answer(405, {"error": "only GET"})
        if scope["path"] == "/healthz":
            return json_answer(200, {"status": "ok"})
        return self.answer(scope["path"], scope.get("query_string", b"").decode("latin-1"))

    def answer(self, path: str, query: str) -> Answer:
        """What is at a path."""
        raise NotImplementedError


class Admin(App):
    """The application of a role. `about` is what the process says of itself; its engine and its enrolment say the rest."""

    def __init__(
        self,
        server: Server,
        about: Mapping[str, Any],
        enrolment: "Enrolment | None" = None,
        keeper: "Keeper | None" = None,
    ) -> None:
        self._server, self._enrolment, self._keeper = server, enrolment, keeper
        self._about = dict(about)
        more: list[metrics.Counted] = [each for each in (enrolment, keeper) if each is not None]
        labels = str(about["role"]), int(about["node"])

        def counted() -> list[metrics.Counted]:
            return [Links(server.engine.status(), None if enrolment is None else enrolment.nodes()), *more]

        self._metrics = metrics.registry(server, *labels, str(about["version"]), counted)

    def answer(self, path: str, query: str) -> Answer:
        """All that its engine and its enrolment say."""
        if path == "/readyz":
            serves = self._server.ready and not self._server.draining and not self._server.closed
            return json_answer(200 if serves else 503, {"ready": serves})
        if self._server.closed:
            return json_answer(503, {"error": "the role has ended, its process is about to"})
        if path == "/metrics":
            return 200, metrics.CONTENT_TYPE, metrics.text(self._metrics)
        if path == "/api/v1/status":
            registry = {} if self._enrolment is None else {"registry": self._enrolment.status()}
            database = {} if self._keeper is None else {"database": self._keeper.status()}
            return json_answer(200, {**self._about, **self._server.status(), **registry, **database})
        if path == "/api/v1/placement" and self._enrolment is not None:
            return json_answer(200, self._enrolment.placement())
        if path == "/api/v1/rooms":
            return self._page(parse_qs(query), self._rooms)
        if path == "/api/v1/interest":
            return self._page(parse_qs(query), self._interest)
        if path.startswith("/api/v1/rooms/"):
            name = path.removeprefix("/api/v1/rooms/")
            room = self._server.engine.room(name)
            return json_answer(404, {"error": f"no room {name!r} here"}) if room is None else json_answer(200, room)
        return nothing(path)

    def _page(self, query: Mapping[str, list[str]], page: Callable[[str, int], dict[str, Any] | None]) -> Answer:
        after, limit = query.get("after", [""])[0], query.get("limit", [str(PAGE)])[0]
        if not _LIMIT.fullmatch(limit) or int(limit) > PAGE_MAX:
            return json_answer(400, {"error": f"limit is a number from 1 to {PAGE_MAX}"})
        found = page(after, int(limit))
        if found is None:
            return json_answer(400, {"error": "after is what the page before says as next"})
        return json_answer(200, found)

    def _rooms(self, after: str, limit: int) -> dict[str, Any] | None:
        if after and not _ROOMS_AFTER.fullmatch(after):
            return None
        rooms, following = self._server.engine.rooms(int(after or 0), limit)
        return {"rooms": rooms, "next": None if following is None else str(following)}

    def _interest(self, after: str, limit: int) -> dict[str, Any] | None:
        start = (0, 0)
        if after:
            said = _INTEREST_AFTER.fullmatch(after)
            if said is None or int(said[1]) > NODE_MAX:
                return None
            start = int(said[1]), int(said[2], 16)
        interest, following = self._server.engine.interest(start, limit)
        # Ids in hex: they use all 64 bits, and a number of JSON has 53.
        wanted = [[gateway, f"{room:016x}"] for gateway, room in interest]
        return {"interest": wanted, "next": None if following is None else f"{following[0]}-{following[1]:016x}"}


def nothing(path: str) -> Answer:
    """There is none such."""
    return json_answer(404, {"error": f"nothing at {path}"})


def json_answer(status: int, body: Any) -> Answer:
    """As JSON, a line."""
    return status, "application/json", msgspec.json.encode(body) + b"\n"


class Connection(H11Protocol):
    """Of one client; keeps its descriptor for none that asks nothing, nor for one that does not read what it asked for."""

    since = unread = 0
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it."""
        super().connection_made(transport)
        self._wait()
        kept = [each for each in self.connections if isinstance(each, Connection) and each.waits]
        if len(kept) > CONNECTIONS_MAX:
            min(kept, key=lambda each: each.since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for it no more."""
        self._leave()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """From now on the answer is to be read, and the next request to come."""
        if self.waits:
            self._wait()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether it is not given up."""
        return self._due is not None

    def drop(self) -> None:
        """Give it up, with what it did not read."""
        self._leave()
        self.transport.abort()

    def _wait(self) -> None:
        self._leave()
        self.since, self.unread = next(_TURNS), self.transport.get_write_buffer_size()
        self._due = self.loop.call_later(WAIT_S, self._overdue)

    def _leave(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _overdue(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self.unread:  # it reads, if slowly
            self._wait()
        else:
            self.drop()


class HttpServer(uvicorn.Server):
    """Leaves the signals to whoever owns the process, and wakes up for requests only, not ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Have `serve` finish what it answers and return."""
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for `end`."""
        await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """At once where nobody is connected; the one of uvicorn looks first after a tenth of a second."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
            await server.wait_closed()
        for listener in sockets or []:
            listener.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(address: tuple[str, int]) -> socket.socket:
    """Bind the port. Raises `OSError` when it is taken."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=64)


def http(app: App) -> HttpServer:
    """A server to be run with `serve(sockets=[…])` in the running loop."""
    return HttpServer(
        uvicorn.Config(
            app,
            loop="none",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what anybody may send is not worth a line: two for each `Upgrade`
            access_log=False,
            interface="asgi3",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
    )

"""Administration over HTTP, one port per process, in the role's own loop.

`/healthz` the process lives, `/readyz` the role serves, `/metrics` for Prometheus, `/api/v1/status`, with a registry
`/api/v1/placement`, of a door `/api/v1/users`, and the pages of the role (`RoleKind.pages`). A token opens all but the
first two, and TLS hides it; without these it never leaves the machine (`AdminAccess`). However much it is asked, the
loop's other work has nearly all of the time (`pace.py`).
"""

import asyncio
import contextlib
import hmac
import itertools
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from muster_server.control.node import metrics
from muster_server.control.node.hosts import is_ours
from muster_server.control.node.links import Links
from muster_server.control.node.pace import Pace
from muster_server.plane.kind import named
from muster_server.plane.kinds import kind
from muster_server.plane.server import Server
from muster_server.plane.service import Figure, Service
from muster_server.plane.spec import AdminAccess, SpecError
from muster_server.plane.users import Texts

if TYPE_CHECKING:  # loaded only where there is a registry
    from muster_server.control.node.enrolment import Enrolment

OPEN: Final = AdminAccess()
CONNECTIONS_MAX: Final = 64
"""Most connections. Beyond, the one that has waited longest is closed, so that a new one is served."""
WAIT_S: Final = 10.0
"""A connection without a request, or with an unread answer, is closed after this time."""
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROBE_RATE: Final = 200.0
PAGE_RATE: Final = 100.0
"""Requests a second; each costs the loop about 0.2 ms beside its answer."""
RENDERS_S: Final = 1.0
"""`/metrics` is rendered at most this often, in the mean: whoever asks more gets the last page again."""
RENDERS_SAVED: Final = 10
"""Pages that a pause saves up, so that few who ask get what is true now."""
USERS: Final = r"[0-9]{1,20}(,[0-9]{1,20}){0,99}"
_TURNS: Final = itertools.count()
"""Order of waiting: the loop's clock stands still while it accepts several."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes | Awaitable[bytes]]
"""Status, type, and the body, or what makes it beside the loop's other work."""


class App:
    """An ASGI application that only answers. `token`: opens all pages but those of probes; empty: none is needed."""

    def __init__(self, token: bytes = b"") -> None:
        self._probe_pace, self._page_pace = Pace(PROBE_RATE), Pace(PAGE_RATE)
        self._bearer = b"Bearer " + token if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, when its turn has come."""
        if scope["type"] != "http":
            return
        # Probes have a turn of their own: a supervisor must not take a much asked node for a dead one.
        pace = self._probe_pace if scope["path"] in PROBES else self._page_pace
        async with pace.turn():
            status, kind, body = self._answered(scope)
        if not isinstance(body, bytes):
            body = await body
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answered(self, scope: Scope) -> Answer:
        said: dict[bytes, bytes] = dict(scope.get("headers", ()))
        if not is_ours(said.get(b"host", b"").decode("latin-1")):
            return json_answer(421, {"error": "the header Host names another server; use the node's address"})
        if scope["path"] not in PROBES and not self._may_enter(said.get(b"authorization", b"")):
            return json_answer(401, {"error": "Authorization: Bearer TOKEN is missing or wrong; see admin.token_file"})
        if scope["method"] not in {"GET", "HEAD"}:
            return json_answer(405, {"error": "only GET"})
        if scope["path"] == "/healthz":
            return json_answer(200, {"status": "ok"})
        return self.answer(scope["path"], scope.get("query_string", b"").decode("latin-1"))

    def _may_enter(self, said: bytes) -> bool:
        return not self._bearer or hmac.compare_digest(said, self._bearer)

    def answer(self, path: str, query: str) -> Answer:
        """The answer at a path."""
        raise NotImplementedError


class Companion(Protocol):
    """A companion of a machine's engine: it has counters and a state."""

    @property
    def name(self) -> str:
        """Its key in the status."""

    def counters(self) -> list[tuple[str, str, float]]:
        """As those of a service."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """As those of a service."""

    def status(self) -> dict[str, Any]:
        """Its state for operators, ready for JSON."""


class Standing:
    """Whether a service is ready, as a metric."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def counters(self) -> list[Figure]:
        """None."""
        return []

    def gauges(self) -> list[Figure]:
        """Now."""
        return [("ready", "1 while the role serves", float(self._service.ready))]


class Admin(App):
    """The application of a node. `about`: the process's own fields; its service and its enrolment add the rest."""

    def __init__(
        self,
        service: Service,
        about: Mapping[str, Any],
        enrolment: "Enrolment | None" = None,
        companion: Companion | None = None,
        token: bytes = b"",
    ) -> None:
        super().__init__(token)
        self._service, self._enrolment, self._companion = service, enrolment, companion
        self._about, self._kind = dict(about), kind(str(about["role"]))
        self._pages = named(self._kind.pages) if self._kind.pages else None
        more: list[metrics.Counted] = [each for each in (enrolment, companion) if each is not None]
        own = {label: str(about[label]) for label in ("role", "node", "name")}

        def counted() -> list[metrics.Counted]:
            if not isinstance(service, Server):
                return [Standing(service), *more]
            return [
                Standing(service),
                Links(service.engine.status(), None if enrolment is None else enrolment.nodes(), service.name_of),
                *more,
            ]

        self._metrics = metrics.registry(service, own, str(about["version"]), counted)
        self._page: asyncio.Task[bytes] | None = None
        self._renders_at = 0.0

    def answer(self, path: str, query: str) -> Answer:
        """All fields of its service and its enrolment."""
        service = self._service
        if path == "/readyz":
            serves = service.ready and not service.draining and not service.closed
            return json_answer(200 if serves else 503, {"ready": serves})
        if service.closed:
            return json_answer(503, {"error": "the role has ended, its process is about to"})
        if path == "/metrics":
            return 200, metrics.CONTENT_TYPE, asyncio.shield(self._rendered())
        if path == "/api/v1/status":
            registry = {} if self._enrolment is None else {"registry": self._enrolment.status()}
            beside = {} if self._companion is None else {self._companion.name: self._companion.status()}
            return json_answer(200, {**self._about, **service.status(), **registry, **beside})
        if path == "/api/v1/placement" and self._enrolment is not None:
            return json_answer(200, self._enrolment.placement())
        if path == "/api/v1/users" and isinstance(service, Server) and service.texts is not None:
            return _users(service.texts, query)
        found = None
        if self._pages is not None:
            found = self._pages(service.engine if isinstance(service, Server) else service, path, query)
        return nothing(path) if found is None else json_answer(*found)

    def _rendered(self) -> asyncio.Task[bytes]:
        """The page of metrics as they are now, or were a second ago at most."""
        now = asyncio.get_running_loop().time()
        self._renders_at = max(self._renders_at, now - RENDERS_S * (RENDERS_SAVED - 1))
        if self._page is None or now >= self._renders_at:
            self._renders_at += RENDERS_S
            self._page = asyncio.create_task(metrics.text(metrics.read(self._metrics)))
        return self._page


def _users(texts: Texts, query: str) -> Answer:
    """The texts of these users, as far as they are known, by number in decimal: a number of JSON has 53 bits."""
    said = parse_qs(query).get("ids", [""])[0]
    if not re.fullmatch(USERS, said):
        return json_answer(400, {"error": "ids is one to 100 numbers with commas between"})
    found = texts.of(int(each) for each in said.split(","))
    return json_answer(200, {"users": {str(user): text for user, text in found.items()}})


class Early(App):
    """The application of a node that waits at its start: it names the reason. Later it answers as the node's own does."""

    def __init__(self, about: Mapping[str, Any], token: bytes = b"") -> None:
        super().__init__(token)
        self.waits = ""
        """The reason why it waits."""
        self._about = dict(about)
        self._own: App | None = None

    def become(self, own: App) -> None:
        """Answer as this one from now on."""
        self._own = own

    def answer(self, path: str, query: str) -> Answer:
        """The state and its reason, as long as the node waits."""
        if self._own is not None:
            return self._own.answer(path, query)
        if path == "/api/v1/status":
            return json_answer(200, {**self._about, "state": "waiting", "waits": self.waits})
        return json_answer(503, {"ready": False, "waits": self.waits})


class Port:
    """The admin port of a node. It has read its files before it is opened. Raises `SpecError` if they are wrong."""

    def __init__(self, app: App, access: AdminAccess = OPEN) -> None:
        self.app = app
        self._http = http(app, access)
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._serving is not None

    def open(self, address: tuple[str, int]) -> None:
        """Answer here until `close`. Raises `OSError` when the address is taken."""
        self._serving = asyncio.create_task(self._http.serve(sockets=[listen(address)]))

    async def close(self) -> None:
        """Finish the answers under way. A second call does nothing, nor does one before it is open."""
        if self._serving is not None:
            self._http.end()
            await self._serving


def nothing(path: str) -> Answer:
    """There is no such page."""
    return json_answer(404, {"error": f"nothing at {path}"})


def json_answer(status: int, body: Any) -> Answer:
    """As one line of JSON."""
    return status, "application/json", msgspec.json.encode(body) + b"\n"


class Connection(H11Protocol):
    """The connection of one client. It is closed if it asks nothing, or does not read its answer."""

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
        """Stop waiting for it."""
        self._leave()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the answer to be read, and for the next request."""
        if self.waits:
            self._wait()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether it is still open."""
        return self._due is not None

    def drop(self) -> None:
        """Close it, with its unread answer."""
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
    """Leaves the signals to the process's owner, and wakes up for requests only, not ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Make `serve` finish its answers and return."""
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for `end`."""
        await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """At once if nobody is connected; uvicorn's own check comes only after a tenth of a second."""
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


def http(app: App, access: AdminAccess = OPEN) -> HttpServer:
    """A server to be run with `serve(sockets=[…])` in the running loop. Raises `SpecError`."""
    try:
        return _server(app, access)
    except OSError as error:  # also what is no certificate
        raise SpecError(
            f"{access.cert_file}: cannot be used with {access.key_file}: {error.strerror or error}"
        ) from None


def _server(app: App, access: AdminAccess) -> HttpServer:
    config = uvicorn.Config(
        app,
        ssl_certfile=access.cert_file or None,
        ssl_keyfile=access.key_file or None,
        loop="none",
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # anybody could fill the log: two lines for each `Upgrade`
        access_log=False,
        interface="asgi3",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
    )
    config.load()  # reads the certificate
    return HttpServer(config)

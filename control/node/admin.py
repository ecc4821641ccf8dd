"""Administration over HTTP, one port per process, in the role's own loop.

`/healthz`: the process lives; `/readyz`: the role serves; `/metrics` for Prometheus; `/api/v1/status`; with a registry
`/api/v1/placement`; for a door `/api/v1/users`; and the pages of the role (`RoleKind.pages`). A token protects all but
the first two, and TLS hides it; without both, the port stays on loopback (`AdminAccess`). Whatever the request rate,
the loop's other work gets nearly all of the time (`pace.py`).
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

if TYPE_CHECKING:  # imported only with a registry
    from muster_server.control.node.enrolment import Enrolment

OPEN: Final = AdminAccess()
CONNECTIONS_MAX: Final = 64
"""Limit of connections. Beyond it, the longest idle one is closed, so that a new one is served."""
WAIT_S: Final = 10.0
"""A connection without a request, or with an unread answer, is closed after this many seconds."""
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROBE_RATE: Final = 200.0
PAGE_RATE: Final = 100.0
"""Limit of requests per second; each costs the loop about 0.2 ms besides its answer."""
RENDERS_S: Final = 1.0
"""`/metrics` is rendered at most once per this many seconds on average; further requests get the last page again."""
RENDERS_SAVED: Final = 10
"""Renders that accumulate during a pause, so that occasional readers get current values."""
USERS: Final = r"[0-9]{1,20}(,[0-9]{1,20}){0,99}"
_TURNS: Final = itertools.count()
"""Order of waiting, because the loop's clock stands still while it accepts several connections."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes | Awaitable[bytes]]
"""Status, type, and the body, or an awaitable that makes it without blocking the loop."""


class App:
    """An ASGI application without side effects. `token`: required for all pages but those of probes; empty: none is
    required."""

    def __init__(self, token: bytes = b"") -> None:
        self._probe_pace, self._page_pace = Pace(PROBE_RATE), Pace(PAGE_RATE)
        self._bearer = b"Bearer " + token if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, in its turn."""
        if scope["type"] != "http":
            return
        # Probes have a pace of their own: a supervisor must not take a busy node for a dead one.
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
            return json_answer(401, {"error": "missing or wrong Authorization: Bearer TOKEN; see admin.token_file"})
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
    """A companion of a machine's engine, as administration uses it: it has counters and a state."""

    @property
    def name(self) -> str:
        """Its key in the status."""

    def counters(self) -> list[tuple[str, str, float]]:
        """As `Service.counters`."""

    def gauges(self) -> list[tuple[str, str, float]]:
        """As `Service.gauges`."""

    def status(self) -> dict[str, Any]:
        """Its state for operators, ready for JSON. `notes`: lines for `muster status`."""


class Standing:
    """The readiness of a service, as a metric."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def counters(self) -> list[Figure]:
        """It has none."""
        return []

    def gauges(self) -> list[Figure]:
        """The present readiness."""
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
            return json_answer(503, {"error": "the role has ended, and its process is ending"})
        if path == "/metrics":
            return 200, metrics.CONTENT_TYPE, asyncio.shield(self._rendered())
        if path == "/api/v1/status":
            registry = {} if self._enrolment is None else {"registry": self._enrolment.status()}
            beside: dict[str, Any] = {}
            if self._companion is not None:
                said = self._companion.status()
                beside = {"notes": said.pop("notes", []), self._companion.name: said}
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
        """The page of metrics, at most a second old."""
        now = asyncio.get_running_loop().time()
        self._renders_at = max(self._renders_at, now - RENDERS_S * (RENDERS_SAVED - 1))
        if self._page is None or now >= self._renders_at:
            self._renders_at += RENDERS_S
            self._page = asyncio.create_task(metrics.text(metrics.read(self._metrics)))
        return self._page


def _users(texts: Texts, query: str) -> Answer:
    """The names of these users that are text, as far as they are known. The keys are decimal texts, because a number in
    JSON has 53 bits."""
    said = parse_qs(query).get("ids", [""])[0]
    if not re.fullmatch(USERS, said):
        return json_answer(400, {"error": "invalid ids (expected 1 to 100 numbers separated by commas)"})
    found = texts.of(int(each) for each in said.split(","))
    return json_answer(200, {"users": {str(user): text for user, text in found.items()}})


class Early(App):
    """The application of a node that waits at its start: it shows the reason. Later it answers as the node's own does."""

    def __init__(self, about: Mapping[str, Any], token: bytes = b"") -> None:
        super().__init__(token)
        self.waits = ""
        """The reason why the node waits."""
        self._about = dict(about)
        self._own: App | None = None

    def become(self, own: App) -> None:
        """Answer as `own` from now on."""
        self._own = own

    def answer(self, path: str, query: str) -> Answer:
        """The state and its reason while the node waits."""
        if self._own is not None:
            return self._own.answer(path, query)
        if path == "/api/v1/status":
            return json_answer(200, {**self._about, "state": "waiting", "waits": self.waits})
        return json_answer(503, {"ready": False, "waits": self.waits})


class Port:
    """The admin port of a node. It reads its files before it opens. Raises `SpecError` if they are wrong."""

    def __init__(self, app: App, access: AdminAccess = OPEN) -> None:
        self.app = app
        self._http = http(app, access)
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._serving is not None

    def open(self, address: tuple[str, int]) -> None:
        """Answer at this address until `close`. Raises `OSError` if the address is in use."""
        self._serving = asyncio.create_task(self._http.serve(sockets=[listen(address)]))

    async def close(self) -> None:
        """Finish the answers in progress. A second call does nothing, nor does a call before `open`."""
        if self._serving is not None:
            self._http.end()
            await self._serving


def nothing(path: str) -> Answer:
    """The answer for an unknown page."""
    return json_answer(404, {"error": f"nothing at {path}"})


def json_answer(status: int, body: Any) -> Answer:
    """Answer with one line of JSON."""
    return status, "application/json", msgspec.json.encode(body) + b"\n"


class Connection(H11Protocol):
    """The connection of one client. It is closed if it sends no request, or does not read its answer."""

    since = unread = 0
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; close another one if the limit is reached."""
        super().connection_made(transport)
        self._wait()
        kept = [each for each in self.connections if isinstance(each, Connection) and each.waits]
        if len(kept) > CONNECTIONS_MAX:
            min(kept, key=lambda each: each.since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._leave()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the time limit for reading the answer, and for the next request."""
        if self.waits:
            self._wait()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether the connection is idle and open."""
        return self._due is not None

    def drop(self) -> None:
        """Close the connection and discard its unread answer."""
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
        if 0 < self.transport.get_write_buffer_size() < self.unread:  # the client reads, though slowly
            self._wait()
        else:
            self.drop()


class HttpServer(uvicorn.Server):
    """Leaves the signals to the process's owner, and wakes up only for requests, not ten times a second."""

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
        """End at once if no client is connected; uvicorn's own check comes only after 0.1 s."""
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
    """Bind the port. Raises `OSError` if it is in use."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=64)


def http(app: App, access: AdminAccess = OPEN) -> HttpServer:
    """A server to be run with `serve(sockets=[…])` in the running loop. Raises `SpecError`."""
    try:
        return _server(app, access)
    except OSError as error:  # raised too for an invalid certificate
        raise SpecError(f"cannot use {access.cert_file} with {access.key_file}: {error.strerror or error}") from None


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
        log_level="error",  # otherwise any client could fill the log: two lines for each `Upgrade`
        access_log=False,
        interface="asgi3",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
    )
    config.load()  # reads the certificate
    return HttpServer(config)

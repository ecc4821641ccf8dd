"""The HTTP face of one process: its port, its routes, its life. Runs in the process's own loop, without a thread.

Combines the other files here. Knows systems by their modules (`face.py`).
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvicorn
from litestar import Litestar, Request, Response, get
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

import muster
from muster_server.control.errors import UserError
from muster_server.control.node.admin import HttpServer
from muster_server.plane.systems import actions
from muster_server.plane.trust import Trust
from muster_server.plane.ways import Way
from muster_server.systems.http import deprecated, docs, uri
from muster_server.systems.http.access import Access, Caller
from muster_server.systems.http.bodies import no_body
from muster_server.systems.http.connection import connection
from muster_server.systems.http.counts import Counts
from muster_server.systems.http.description import described, operation_id
from muster_server.systems.http.descriptors import connections_possible
from muster_server.systems.http.entry import MakeEntry
from muster_server.systems.http.face import AnyRequest, Base, Face, Nodes, Where, modules
from muster_server.systems.http.front import Application, Front, ongoing
from muster_server.systems.http.idempotency import Idempotency
from muster_server.systems.http.keys import Keyring
from muster_server.systems.http.options import RELOADS, HttpOptions
from muster_server.systems.http.problems import CONTENT_TYPE, Problem

LOOK_S: Final = 1.0
"""Seconds between checks of the file of keys."""
BACKLOG: Final = 1_024
CORS_HEADERS: Final = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-API-Key", "X-Request-Id")
CORS_SHOWN: Final = ("Retry-After", "X-Request-Id", "Idempotency-Replayed", "Deprecation", "Sunset")
CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods whose body is refused where a route describes none."""
MISSING: Final = re.compile(r"Missing required \w+ parameter '([^']+)'")
"""How the framework says that a parameter is missing."""
CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_long", 415: "unsupported_media_type"}


@dataclass(frozen=True, slots=True)
class Serving:
    """The resolved settings of one process."""

    options: HttpOptions
    bind: tuple[str, int]
    keys_file: Path
    trust: Trust
    """The secrets and keys that verify users' tokens."""
    where: Where
    """The folder of the instance, or the addresses of its servers with the token that programs share."""
    nodes: Nodes
    """Returns the running nodes, for requests to their admin ports."""
    version: str
    cluster_secret_file: str = ""
    """The secret that nodes share."""
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """For each system, the settings of its routes."""
    names: Callable[[], Mapping[str, str]] = dict
    """Returns the names of the running gateways and proxies by their public keys in hex."""
    way: Callable[[str], Way] | None = None
    """As `Base.way`."""


class HttpFace:
    """Call `start`, then `drain` and `stop`. `ready` tells whether requests can be served."""

    def __init__(
        self, settings: Serving, log: structlog.typing.FilteringBoundLogger, entry: MakeEntry | None = None
    ) -> None:
        """`entry`: makes what a server with another kind of caller has before the routes."""
        options = settings.options
        self._settings, self._log = settings, log
        self._options = options
        """The current options: a reload replaces them."""
        self.counts = Counts()
        self._keyring = Keyring(settings.keys_file, log)
        self._keys_seen = 0
        self._access = Access(
            self._keyring,
            settings.trust,
            actions(),
            requests_rate=options.requests_rate,
            messages_rate=options.messages_rate,
            look=self._look,
        )
        idempotency = Idempotency(options.idempotency_s, options.idempotency_max)
        base = Base(
            options,
            settings.where,
            settings.nodes,
            self.counts,
            idempotency,
            log,
            settings.cluster_secret_file,
            settings.told,
            settings.names,
            settings.way,
        )
        self._base = base
        self._faces: list[Face] = [module.face(base) for module in modules()]
        self._entry = None if entry is None else entry(base, self._access, self._keyring)
        if self._entry is not None:
            self._faces.append(self._entry)
        application = self._application()
        self._routes = self._entered(application)
        for route in application.routes:
            if isinstance(route, HTTPRoute):
                for method in sorted(route.methods - {"OPTIONS"}):
                    self.counts.expect(route.path_format, method)
        self._front = Front(self._routes, self.counts, log, hosts=self._hosts(), request_s_max=options.request_s_max)
        self._address = settings.bind
        self._server: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        gauge = self.counts.gauge
        gauge("http_connections", "Open connections", self._connections)
        gauge("http_requests_running", "Running requests and streams", lambda: self._front.running)
        gauge("http_keys", "Current API keys", lambda: len(self._keyring))
        gauge("http_idempotency_keys", "Stored answers to requests with an Idempotency-Key", lambda: len(idempotency))

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and serve. Raises `UserError` if the port is in use."""
        options, (host, port) = self._settings.options, self._settings.bind
        self._keyring.look()
        self._keys_seen = self._keyring.changes
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(f"http.bind: {host}:{port}: {error.strerror}; set another address") from None
        self._address = host, int(listening.getsockname()[1])
        for face in self._faces:
            await face.start()
        self._server = HttpServer(
            uvicorn.Config(
                self._front,
                loop="none",
                http=connection(
                    self.counts,
                    head_bytes_max=options.head_bytes_max,
                    head_s_max=options.head_s_max,
                    connections_max=connections_possible(options.connections_max, options.sessions_max, self._log),
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                interface="asgi3",
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(options.head_s_max) + 1,
                timeout_graceful_shutdown=int(options.drain_s) + 1,
            )
        )
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listening])),
            asyncio.create_task(self._follow_keys()),
        ]
        self._log.info("listens", url=self.url, keys=len(self._keyring))

    def drain(self) -> None:
        """Accept nothing new, let streams say goodbye and running requests finish. `stop` waits for them."""
        if self._front.draining:
            return
        self._front.draining = True
        for face in self._faces:
            face.drain()
        if self._server is not None:
            self._server.end()

    async def stop(self) -> None:
        """Wait until running requests have finished, for at most `drain_s`, and close everything."""
        self.drain()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._keyring.save_uses, at_once=True)
        for face in self._faces:
            await face.stop()
        if self._server is not None:
            for each in list(self._server.server_state.connections):
                each.transport.abort()

    def reload(self, trust: Trust) -> None:
        """Use these secrets, keys and revocations for users' tokens from now on, and check the file of keys. Raises
        `SpecError`."""
        self._access.take_trust(trust)
        self._look()

    def take(self, options: HttpOptions) -> None:
        """Use the `RELOADS` of these options for new requests."""
        before = self._options
        now = msgspec.structs.replace(before, **{name: getattr(options, name) for name in RELOADS})
        self._options = self._base.options = now
        self._access.set_rates(now.requests_rate, now.messages_rate)
        if (before.cors_origins, before.body_bytes_max) != (now.cors_origins, now.body_bytes_max):
            self._routes = self._entered(self._application())
        self._front.take(self._routes, self._hosts(), now.request_s_max)

    def redirect(self, address: muster.Address) -> None:
        """Use these servers of the registry from now on."""
        for face in self._faces:
            face.redirect(address)

    def description(self) -> dict[str, Any]:
        """The description of the API (OpenAPI)."""
        return described(self._application())

    # --- status ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return self._server is not None and not self._front.draining and all(face.ready for face in self._faces)

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens on, once it has started."""
        return self._address

    @property
    def url(self) -> str:
        """The address as a URL."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status` of the process."""
        said: dict[str, Any] = {"ready": self.ready, "draining": self._front.draining, "url": self.url}
        said |= {"connections": self._connections(), "running": self._front.running, "keys": len(self._keyring)}
        said |= self.counts.totals()
        for face in self._faces:
            said |= face.status()
        return said

    # --- internal -------------------------------------------------------------------------------------------------

    def _connections(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.connections)

    def _hosts(self) -> tuple[str, ...]:
        return (*self._options.hosts, socket.gethostname().lower())

    async def _follow_keys(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            if self._keyring.uses_due:
                await asyncio.to_thread(self._keyring.save_uses)

    def _look(self) -> None:
        self._keyring.look()
        if self._keys_seen != self._keyring.changes:
            self._keys_seen = self._keyring.changes
            self._log.info("the keys changed", keys=len(self._keyring))
            for face in self._faces:
                face.access_changed()

    def _entered(self, routes: Litestar) -> Application:
        return routes if self._entry is None else self._entry.around(routes)

    def _application(self) -> Litestar:
        options, entry = self._options, self._entry

        async def caller(request: AnyRequest) -> Caller:
            if entry is not None:
                found = entry.caller(request)
            else:
                found = self._access.caller(request.headers.get("authorization"), request.headers.get("x-api-key"))
            ongoing(request.scope).caller = found.name
            if (request.scope["path_template"], request.scope["method"]) in self._bodiless:
                no_body(await request.body())
            return found

        @get("/healthz", include_in_schema=False, sync_to_thread=False)
        def healthz() -> dict[str, str]:
            return {"status": "ok"}

        @get("/readyz", include_in_schema=False, sync_to_thread=False)
        def readyz() -> Response[dict[str, bool]]:
            return Response({"ready": self.ready}, status_code=200 if self.ready else 503)

        handlers: list[ControllerRouterHandler] = [healthz, readyz]
        handlers += [route for face in self._faces for route in face.routes()]
        if options.docs:
            handlers += docs.HANDLERS
        made = Litestar(
            handlers,
            dependencies={"caller": Provide(caller)},
            before_request=self._decode,
            exception_handlers={Problem: self._problem, HTTPException: self._http, Exception: self._defect},
            request_max_body_size=options.body_bytes_max,
            cors_config=_cors(options),
            openapi_config=OpenAPIConfig(
                title="Muster HTTP API",
                version=self._settings.version,
                description="Rooms for every language that has an HTTP client. Errors are problem details (RFC 9457).",
                path="/openapi",
                render_plugins=[JsonRenderPlugin()],
                use_handler_docstrings=True,
                operation_id_creator=operation_id,
                components=Components(
                    security_schemes={
                        "key": SecurityScheme(type="apiKey", name="X-API-Key", security_scheme_in="header"),
                        "token": SecurityScheme(type="http", scheme="bearer", bearer_format="JWT"),
                    }
                ),
                security=[{"key": []}, {"token": []}],
            )
            if options.docs
            else None,
            logging_config=None,
            debug=False,
        )
        self._queries, self._deprecated, self._bodiless = _queries(made), _deprecated(made), _bodiless(made)
        self._methods = _methods(made)
        return made

    async def _decode(self, request: AnyRequest) -> Response[bytes] | None:
        """Decode the names in the path, each once, and check the query. Answers OPTIONS. Raises `Problem`."""
        names: dict[str, str] = request.scope["path_params"]
        decoded: dict[str, str] = {}
        for name, encoded in names.items():
            try:
                decoded[name] = uri.part(encoded)
            except uri.BadUri as error:
                raise Problem("bad_room_name" if name == "room" else "bad_request", str(error)) from None
        request.scope["path_params"] = decoded
        query, method = request.scope["query_string"], request.scope["method"]
        if method == "OPTIONS":  # the framework names the methods of one handler, not those of the path
            return Response(b"", status_code=204, headers={"allow": self._methods[request.scope["path_template"]]})
        if query and request.scope["path"].startswith("/api/"):
            try:
                uri.check_query(query, self._queries[request.scope["path_template"], method])
            except uri.BadUri as error:
                raise Problem("bad_request", str(error)) from None
            if marks := self._deprecated.get((request.scope["path_template"], method)):
                used = [mark for word, mark in marks.items() if word in request.query_params]
                ongoing(request.scope).headers += deprecated.headers(used)
        return None

    def _problem(self, request: AnyRequest, problem: Problem) -> Response[bytes]:
        self.counts.rejected(problem.code)
        return Response(
            problem.body(ongoing(request.scope).id),
            status_code=problem.kind.status,
            headers=problem.headers,
            media_type=CONTENT_TYPE,
        )

    def _http(self, request: AnyRequest, error: HTTPException) -> Response[bytes]:
        """The answer to a request that the framework refuses."""
        code = CODES.get(error.status_code, "bad_request" if error.status_code < 500 else "internal")
        extra = error.extra if isinstance(error.extra, list) else []
        wrong = [f"{each['key']}: {each['message']}" for each in extra if isinstance(each, dict) and "key" in each]
        if missing := MISSING.match(error.detail):
            wrong = [f"{missing[1]}: missing"]
        detail = "; ".join(wrong) if wrong else f"too long (limit {self._options.body_bytes_max} bytes)"
        response = self._problem(request, Problem(code, detail if wrong or code == "too_long" else ""))
        if error.status_code == 405:
            response.headers["allow"] = _allow(
                {each.strip() for each in (error.headers or {}).get("allow", "").split(",")}
            )
        return response

    def _defect(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        self._log.error("a request failed", request_id=ongoing(request.scope).id, exc_info=error)
        return self._problem(request, Problem("internal"))


def _allow(methods: Set[str]) -> str:
    """The header `Allow` of a path whose handlers take `methods`."""
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _methods(app: Litestar) -> dict[str, str]:
    """The header `Allow` of each path."""
    routes = (route for route in app.routes if isinstance(route, HTTPRoute))
    return {route.path_format: _allow(route.methods) for route in routes}


def _queries(app: Litestar) -> dict[tuple[str, str], uri.Query]:
    """The query parameters of each route, by path and method: its own, and those of `opt["query"]`."""
    found: dict[tuple[str, str], uri.Query] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, model) in route.route_handler_map.items():
                words = {each.field_alias for each in model.expected_query_params}
                lists = {each.field_alias for each in model.expected_query_params if each.is_sequence}
                found[route.path_format, method] = uri.Query(words | set(handler.opt.get("query", ())), lists)
    return found


def _bodiless(app: Litestar) -> set[tuple[str, str]]:
    """The path and method of each route that changes something and describes no body."""
    return {
        (route.path_format, method)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if method in CHANGES and "body" not in handler.opt
    }


def _deprecated(app: Litestar) -> dict[tuple[str, str], deprecated.Marks]:
    """The deprecated parameters of the routes that have any, by path and method."""
    return {
        (route.path_format, method): handler.opt["deprecated"]
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if "deprecated" in handler.opt
    }


def _cors(options: HttpOptions) -> CORSConfig | None:
    if not options.cors_origins:
        return None
    return CORSConfig(
        allow_origins=list(options.cors_origins),
        allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=list(CORS_HEADERS),
        expose_headers=list(CORS_SHOWN),
    )


async def serve(settings: Serving, log: structlog.typing.FilteringBoundLogger, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain. Raises `UserError` if the port is in use."""
    face = HttpFace(settings, log)
    await face.start()
    try:
        await stop.wait()
    finally:
        await face.stop()

"""The first stage of every request: its id, the Host check, the deadline, counts and the log. Knows no route.

An ASGI application around that of the routes.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

import structlog

from muster_server.systems.http import uri
from muster_server.systems.http.connection import Connection
from muster_server.systems.http.counts import NO_ROUTE, Counts
from muster_server.systems.http.problems import CONTENT_TYPE, Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
STATE: Final = "request"
HOSTS_KEPT: Final = 256
PROBES: Final = frozenset({"/healthz", "/readyz"})


class Ongoing:
    """One request as routes see it. In `scope["state"]["request"]`."""

    def __init__(self, scope: Scope, deadline: asyncio.Timeout) -> None:
        headers = dict(scope["headers"])
        said = headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = said if REQUEST_ID.fullmatch(said) else secrets.token_hex(8)
        self.host = headers.get(b"host", b"").decode("latin-1")
        self.caller = ""
        self.connection: Connection | None = scope["state"].get("connection")
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers of the answer, besides those of its route."""
        self.streams = False
        self.whole = not ({b"content-length", b"transfer-encoding"} & headers.keys())
        """True once the body has arrived."""
        self._deadline = deadline

    def extend(self, seconds: float) -> None:
        """Extend its deadline by this many seconds."""
        when = self._deadline.when()
        if when is not None:
            self._deadline.reschedule(when + seconds)

    def stream(self) -> None:
        """Remove its deadline."""
        self.streams = True
        self._deadline.reschedule(None)


def ongoing(scope: Any) -> Ongoing:
    """The request of this scope."""
    found: Ongoing = scope["state"][STATE]
    return found


class Front:
    """`routes` is the application behind. While `draining`, new requests are refused."""

    def __init__(
        self,
        routes: Application,
        counts: Counts,
        log: structlog.typing.FilteringBoundLogger,
        *,
        hosts: tuple[str, ...],
        request_s_max: float,
    ) -> None:
        self._counts, self._log = counts, log
        self.take(routes, hosts, request_s_max)
        self.draining = False
        self.running = 0

    def take(self, routes: Application, hosts: tuple[str, ...], request_s_max: float) -> None:
        """Use these for new requests; running ones keep the former ones."""
        self._routes, self._seconds = routes, request_s_max
        self._hosts = tuple(host.lower() for host in hosts)
        self._host_known = lru_cache(HOSTS_KEPT)(self.host_known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        self.running += 1
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                request = scope["state"][STATE] = Ongoing(scope, deadline)
                await self._serve(request, scope, receive, send)
        except TimeoutError:
            if not deadline.expired():
                raise
            await self._late(request, send)
        finally:
            self.running -= 1
            route, seconds = scope.get("path_template") or NO_ROUTE, time.perf_counter() - began
            self._counts.request(route, scope["method"], request.status, seconds, timed=not request.streams)
            say = self._log.warning if request.status >= 500 else self._log.debug
            say(
                "request",
                request_id=request.id,
                method=scope["method"],
                route=route,
                status=request.status,
                caller=request.caller,
                ms=round(seconds * 1e3, 1),
            )

    async def _serve(self, request: Ongoing, scope: Scope, receive: Receive, send: Send) -> None:
        marked = (b"x-request-id", request.id.encode())

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = [*message["headers"], marked, *request.headers]
            await send(message)

        async def hear() -> Any:
            message = await receive()
            request.whole = request.whole or not message.get("more_body", False)
            return message

        if not self._host_known(request.host):
            await self._refuse(Problem("unknown_host", f"{request.host!r:.80} is not in http.hosts"), request, send)
            return
        if self.draining and scope["path"] not in PROBES:  # probes report it in their own way
            await self._refuse(Problem("draining"), request, send)
            return
        try:
            scope["path"] = uri.path(scope["raw_path"])
        except uri.BadUri as error:
            await self._refuse(Problem("not_found", str(error)), request, send)
            return
        if scope["method"] == "HEAD":
            await self._head(scope, hear, say)
        else:
            await self._routes(scope, hear, say)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as for GET, up to the end of the head, even for a stream."""
        begun = asyncio.Event()

        async def say(message: Message) -> None:
            if not begun.is_set():
                await send(message)
                begun.set()

        asked = {**scope, "method": "GET"}
        answering = asyncio.ensure_future(self._routes(asked, receive, say))
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait((answering, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not begun.is_set():
                await answering
        finally:
            for task in (answering, waiting):
                task.cancel()
            await asyncio.gather(answering, waiting, return_exceptions=True)
            scope["path_template"] = asked.get("path_template")
        await send({"type": "http.response.body", "body": b""})

    async def _late(self, request: Ongoing, send: Send) -> None:
        if request.status:  # the answer has begun, but is not read
            self._counts.rejected("unread")
            if request.connection is not None:
                request.connection.abort()
            return
        await self._refuse(Problem("timeout" if request.whole else "request_timeout"), request, send)

    async def _refuse(self, problem: Problem, request: Ongoing, send: Send) -> None:
        self._counts.rejected(problem.code)
        body = problem.body(request.id)
        headers = {"content-type": CONTENT_TYPE, "content-length": str(len(body)), "x-request-id": request.id}
        encoded = [(name.encode(), value.encode()) for name, value in (headers | problem.headers).items()]
        request.status = problem.kind.status
        await send({"type": "http.response.start", "status": problem.kind.status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    def host_known(self, host: str) -> bool:
        """Whether a Host header is accepted. An address is always accepted: a stranger cannot point it here."""
        match = HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            pass
        else:
            return True
        if name == "localhost" or name in self._hosts:
            return True
        return any(known.startswith("*.") and name.endswith(known[1:]) for known in self._hosts)

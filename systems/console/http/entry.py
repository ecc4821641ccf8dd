"""The entry of all requests of a console: who asks, whether the request is the user's own, and the audit log.

Routes of systems come behind it and know nothing of it: a session's caller is a `Caller` whose rights are its role's.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

import muster
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder, Process, Record
from muster_server.control.config.options import Links
from muster_server.control.errors import NotRunning
from muster_server.plane.systems import actions
from muster_server.systems.console import audit, logins
from muster_server.systems.console.attempts import Attempts
from muster_server.systems.console.audit import Audit
from muster_server.systems.console.examiner import Examiner
from muster_server.systems.console.growths import Growths
from muster_server.systems.console.http.pages import HEADERS, OPEN
from muster_server.systems.console.http.streams import PageStream
from muster_server.systems.console.options import RELOADS, ConsoleOptions
from muster_server.systems.console.sampler import Sampler
from muster_server.systems.console.sessions import Means, Session, Sessions
from muster_server.systems.console.system import ConsoleSettings
from muster_server.systems.console.users import Role, User, matches, users
from muster_server.systems.http.access import Access, Caller
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.front import Application, Message, Ongoing, Receive, Scope, Send, ongoing
from muster_server.systems.http.keys import Key, Keyring
from muster_server.systems.http.problems import CONTENT_TYPE, Problem

SESSION: Final = "/api/v1/console/session"
API: Final = "/api/"
SAFE: Final = frozenset({"GET", "HEAD"})
TOKEN: Final = b"x-csrf-token"
HASHES_MAX: Final = 2
"""Passwords that are checked at once, each in a thread and with 19 MiB."""
WAITING_MAX: Final = 32
"""Limit of logins that wait for such a check."""
STATE: Final = "session"


MakeRoutes = Callable[["ConsoleEntry"], Sequence[ControllerRouterHandler]]
"""Makes the console's own routes."""


class Standing(Access):
    """The rights of one session: what the entry has let pass is allowed while the session lasts. The rates are those of
    the face, per user."""

    def __init__(self, access: Access, session: Session) -> None:
        self._shared, self._session = access, session

    def allows(self, caller: Caller, action: str, room: str, *, whole: bool = False) -> bool:
        """As `Caller.may`."""
        return not self._session.over

    def spend(self, caller: Caller, messages: int) -> None:
        """As `Caller.spend`."""
        self._shared.spend(caller, messages)

    def regain(self, caller: Caller, messages: int) -> None:
        """As `Caller.regain`."""
        self._shared.regain(caller, messages)

    def user_of(self, text: str) -> int:
        """As `Access.user_of`."""
        return self._shared.user_of(text)

    @property
    def bucket(self) -> int:
        """As `Access.bucket`."""
        return self._shared.bucket


class ConsoleEntry:
    """The `systems.http.entry.Entry` of a console."""

    ready: Final = True

    def __init__(
        self, settings: ConsoleSettings, base: Base, access: Access, keyring: Keyring, port: int, routes: MakeRoutes
    ) -> None:
        self._routes = routes
        self.settings, self.base, self.keyring = settings, base, keyring
        self.options: ConsoleOptions = settings.options
        self.folder = Path(settings.http.folder)
        self.keys_file = Path(settings.http.keys_file)
        self.audit = Audit(self.folder, self.options.audit_bytes_max)
        self.sampler = Sampler(self.record, self.options.sample_s, msgspec.convert(settings.links, Links), base.log)
        self.examiner = Examiner(self.folder)
        self.growths = Growths(self.folder)
        self.sessions = Sessions(self.options.session_s, self.options.idle_s)
        self.cookie = f"muster_console_{port}" if port else "muster_console"
        """Browsers do not tell ports of one host apart: each console has a cookie of its own."""
        self.draining = False
        self.clock: Callable[[], float] = time.monotonic
        self._access = access
        self._users = users(self.options.users)
        self._attempts = Attempts()
        self._hashing = asyncio.Semaphore(HASHES_MAX)
        self._waiting = 0
        self._pages: set[PageStream] = set()
        self._reads: frozenset[tuple[str, str]] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        counts = base.counts
        counts.gauge("console_pages", "Open pages of the console", lambda: len(self._pages))
        counts.gauge("console_sessions", "Sessions of the console", lambda: len(self.sessions))
        for outcome in ("accepted", "refused"):
            self._login(outcome, 0)
        counts.add("console_actions", "Actions that reached the audit log", 0)

    # --- as a face ------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""
        return self._routes(self)

    async def start(self) -> None:
        """As `Face.start`."""
        self._tasks = [asyncio.create_task(self.sampler.run())]

    def redirect(self, address: muster.Address) -> None:
        """As `Face.redirect`."""

    def access_changed(self) -> None:
        """As `Face.access_changed`: sessions of revoked keys end."""
        self._judge_all()

    def drain(self) -> None:
        """As `Face.drain`."""
        self.draining = True
        for page in tuple(self._pages):
            page.wake()

    async def stop(self) -> None:
        """As `Face.stop`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.growths.stop()

    def status(self) -> dict[str, Any]:
        """As `Face.status`."""
        return {"pages": len(self._pages), "logins": len(self.sessions)}

    def take(self, options: ConsoleOptions) -> None:
        """Use the `RELOADS` of these options from now on. Sessions of users who are gone end."""
        self.options = msgspec.structs.replace(self.options, **{name: getattr(options, name) for name in RELOADS})
        self._users = users(self.options.users)
        self.sessions.session_s, self.sessions.idle_s = self.options.session_s, self.options.idle_s
        self._judge_all()

    # --- event streams of pages -----------------------------------------------------------------------------------

    def open(self, page: PageStream) -> None:
        """As `Streams.open`."""
        if self.draining:
            raise Problem("draining")
        if len(self._pages) >= self.options.pages_max:
            raise Problem("busy", "too many open pages; close some, or raise console.pages_max")
        self._pages.add(page)
        self.sampler.on_sample.add(page.wake)
        page.session.on_end.add(page.wake)

    def close(self, page: PageStream, reason: str) -> None:
        """As `Streams.close`."""
        self._pages.discard(page)
        self.sampler.on_sample.discard(page.wake)
        page.session.on_end.discard(page.wake)
        page.session.used = time.time()

    def sent(self, length: int) -> None:
        """As `Streams.sent`."""
        self.base.counts.add("http_stream_bytes", "Bytes of events sent to streams", length)

    # --- callers --------------------------------------------------------------------------------------------------

    def caller(self, request: AnyRequest) -> Caller:
        """As `Entry.caller`. Raises `Problem`."""
        session = request.scope["state"].get(STATE)
        if session is None:
            raise Problem("no_credential", "log in first")
        # A made key, which names all actions: the entry has judged the role, and `Standing` the session.
        scopes = tuple(f"{action}:*" for action in actions())
        key = Key(id="0" * 12, name=session.user, sha256="0" * 64, scopes=scopes, created=0)
        return Caller(f"console {session.user}", None, None, key, frozenset(), Standing(self._access, session))

    def session(self, scope: Scope) -> Session | None:
        """The session of a request, if it still holds."""
        headers = dict(scope["headers"])
        found = self.sessions.find(_cookie(headers.get(b"cookie", b""), self.cookie), time.time())
        if found is not None and not self._holds(found, scope):
            self.sessions.end(found)
            return None
        return found

    def proxied(self, scope: Scope) -> Session | None:
        """A new session for the user whom a trusted proxy names; None: it names nobody."""
        name = self._named(scope)
        if not name:
            return None
        user = self._users.get(name)
        role: Any = user.role if user is not None else self.options.proxy_role
        return self._begin(name, role, "proxy", "", scope) if role else None

    async def login(self, scope: Scope, name: str, password: str) -> Session:
        """A new session for a user with a password. Raises `Problem`."""
        whos = (f"name {name[:100]}", f"address {_network(_address(scope))}")
        self._may_try(whos)
        if self._waiting >= WAITING_MAX:
            raise Problem("busy", "too many logins at once")
        self._waiting += 1
        try:
            async with self._hashing:
                self._may_try(whos)  # others may have failed meanwhile
                user = self._users.get(name)
                right = await asyncio.to_thread(matches, user, password)
                if not right or user is None:
                    self._refuse(whos)
        finally:
            self._waiting -= 1
        self._attempts.succeeded(whos[0])
        return self._begin(user.name, user.role, "password", user.phc, scope)

    def login_by_key(self, scope: Scope, credential: str) -> Session:
        """A new session for an API key with the scope `console`. Raises `Problem`."""
        whos = (f"address {_network(_address(scope))}",)
        self._may_try(whos)
        key = self.keyring.find(credential)
        role = None if key is None else _role_of(key)
        if key is None or role is None:
            self._refuse(whos)
        return self._begin(f"key {key.name}", role, "key", key.id, scope)

    def login_by_link(self, scope: Scope, code: str) -> Session:
        """A new session for a one-time login. Raises `Problem`."""
        whos = (f"address {_network(_address(scope))}",)
        self._may_try(whos)
        role = logins.use(self.folder, code)
        if role is None:
            self._refuse(whos, "the one-time login is used or too old; muster console login makes another one")
        return self._begin(f"one-time {role}", role, "link", "", scope)

    def logout(self, session: Session, scope: Scope) -> None:
        """End a session."""
        self.sessions.end(session)
        self._note("logout", session, scope)

    def _begin(self, user: str, role: Role, means: Means, proof: str, scope: Scope) -> Session:
        former = self.session(scope) if means != "proxy" else None
        if former is not None:  # an id that existed before the login never becomes that of the login
            self.sessions.end(former)
        session = self.sessions.begin(user, role, means, proof, time.time())
        try:
            self._note("login", session, scope)
        except Problem:
            self.sessions.end(session)
            raise
        self._login("accepted", 1)
        return session

    def _may_try(self, whos: Sequence[str]) -> None:
        wait = max(self._attempts.wait(who, self.clock()) for who in whos)
        if wait:
            self._login("refused", 1)
            raise Problem("rate_limited", f"too many failed logins; try again in {wait:.0f} s", retry_after=wait)

    def _refuse(
        self, whos: Sequence[str], why: str = "wrong name or password, or the key has no scope console"
    ) -> NoReturn:
        for who in whos:
            self._attempts.failed(who, self.clock())
        self._login("refused", 1)
        raise Problem("bad_credential", why)

    def _login(self, outcome: str, count: int) -> None:
        self.base.counts.add("console_logins", "Logins to the console, by outcome", count, outcome=outcome)

    def _holds(self, session: Session, scope: Scope) -> bool:
        if session.means == "proxy" and self._named(scope) != session.user:
            return False
        return self._proved(session)

    def _proved(self, session: Session) -> bool:
        """Whether what the user showed at the login is still valid; the role follows a change of it."""
        role: Any = session.role
        if session.means == "key":
            key = self.keyring.current(session.proof)
            role = None if key is None else _role_of(key)
        elif session.means == "password":
            user = self._users.get(session.user)
            role = user.role if user is not None and user.phc == session.proof else None
        elif session.means == "proxy":
            known: User | None = self._users.get(session.user)
            role = known.role if known is not None else self.options.proxy_role
        if not role or not self.sessions_hold(session):
            return False
        session.role = role
        return True

    def sessions_hold(self, session: Session) -> bool:
        """Whether the session is neither over nor too old."""
        return not session.over and not self.sessions.is_late(session, time.time())

    def _judge_all(self) -> None:
        for session in self.sessions.all():
            if not self._proved(session):
                self.sessions.end(session)

    def _named(self, scope: Scope) -> str:
        if not self.options.proxy_header or _address(scope) not in self.options.proxy_addresses:
            return ""
        said = [value for name, value in scope["headers"] if name == self.options.proxy_header.lower().encode()]
        name = said[0].decode("latin-1").strip() if len(said) == 1 else ""
        return name if name.isprintable() and len(name) <= 200 else ""

    # --- the entry ------------------------------------------------------------------------------------------------

    def around(self, routes: Litestar) -> Application:
        """As `Entry.around`."""
        self._reads = frozenset(
            (method, route.path_format)
            for route in routes.routes
            if isinstance(route, HTTPRoute)
            for handler in route.route_handlers
            if handler.opt.get("reads")
            for method in handler.http_methods
        )

        async def enter(scope: Scope, receive: Receive, send: Send) -> None:
            async def say(message: Message) -> None:
                if message["type"] == "http.response.start":
                    known = {name.lower() for name, _ in message["headers"]}
                    message["headers"] = [*message["headers"], *(each for each in HEADERS if each[0] not in known)]
                await send(message)

            try:
                await self._enter(routes, scope, receive, say)
            except Problem as problem:
                self.base.counts.rejected(problem.code)
                body = problem.body(ongoing(scope).id)
                headers = {"content-type": CONTENT_TYPE, "content-length": str(len(body))} | problem.headers
                encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
                await say({"type": "http.response.start", "status": problem.kind.status, "headers": encoded})
                await say({"type": "http.response.body", "body": body})

        return enter

    async def _enter(self, routes: Litestar, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method not in SAFE:
            self._check_origin(scope)
        if path in OPEN or not path.startswith(API) or (path == SESSION and method in {*SAFE, "POST"}):
            await routes(scope, receive, send)  # type: ignore[arg-type]
            return
        session = self.session(scope)
        if session is None:
            raise Problem("no_credential", "log in first")
        scope["state"][STATE] = session
        request: Ongoing = ongoing(scope)
        request.caller = f"console {session.user}"
        if method in SAFE:
            await routes(scope, receive, send)  # type: ignore[arg-type]
            return
        if not session.is_proved(dict(scope["headers"]).get(TOKEN, b"").decode("latin-1")):
            raise Problem("not_allowed", "the request lacks the token of this session; reload the page")
        if (method, path) in self._reads or path == SESSION:
            await routes(scope, receive, send)  # type: ignore[arg-type]
            return
        if session.role != "operator":
            raise Problem("not_allowed", f"{session.user} is a viewer, and only an operator may do this")
        await self._act(routes, session, scope, receive, send)

    async def _act(self, routes: Litestar, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Do an action between two lines of the audit log."""
        line = audit.Entry(
            id=secrets.token_hex(8),
            at=time.time(),
            what="begins",
            user=session.user,
            role=session.role,
            address=_address(scope),
            action=f"{scope['method']} {scope['path']}",
        )
        await self._written(line)
        self.base.counts.add("console_actions", "Actions that reached the audit log")
        status = 0

        async def say(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await self._ended(line, status, scope)  # the answer leaves after the log has it
            await send(message)

        try:
            await routes(scope, receive, say)  # type: ignore[arg-type]
        finally:
            if not status:
                await self._ended(line, 504, scope)

    async def _ended(self, line: audit.Entry, status: int, scope: Scope) -> None:
        ended = audit.Entry(
            id=line.id,
            at=time.time(),
            what="ends",
            user=line.user,
            status=status,
            detail=str(scope["state"].get("note", "")),
        )
        with contextlib.suppress(Problem):  # it has happened: the log keeps its begin
            await self._written(ended)

    async def _written(self, entry: audit.Entry) -> None:
        try:
            await asyncio.to_thread(self.audit.write, entry)
        except OSError as error:
            self.base.log.error("cannot write the audit log", file=str(self.audit.file), why=error.strerror)
            raise Problem("unavailable", "the audit log cannot be written, so nothing was done; see the log") from None

    def _note(self, what: Any, session: Session, scope: Scope) -> None:
        entry = audit.Entry(
            id=secrets.token_hex(8),
            at=time.time(),
            what=what,
            user=session.user,
            role=session.role,
            address=_address(scope),
            means=session.means,
        )
        try:
            self.audit.write(entry)
        except OSError as error:
            self.base.log.error("cannot write the audit log", file=str(self.audit.file), why=error.strerror)
            raise Problem("unavailable", "the audit log cannot be written; see the log") from None

    def _check_origin(self, scope: Scope) -> None:
        """Refuse a request that a page of another site sent. Raises `Problem`."""
        headers = dict(scope["headers"])
        site = headers.get(b"sec-fetch-site", b"same-origin")
        origin = headers.get(b"origin")
        host = headers.get(b"host", b"")
        if site not in {b"same-origin", b"none"} or (origin is not None and origin.partition(b"://")[2] != host):
            raise Problem("not_allowed", "another site sent this request")

    # --- the nodes ------------------------------------------------------------------------------------------------

    async def record(self) -> Record:
        """The running instance with all nodes of its registry; or a record of the registry's nodes. Raises `UserError`."""
        nodes: Sequence[Process] = await self.base.nodes()
        try:
            found = instance.find(Folder(self.folder))
        except NotRunning:
            return Record(
                name="muster",
                version=muster.__version__,
                pid=0,
                started=0,
                token_file="",
                processes=list(nodes),
                faults=False,
            )
        known = {process.node for process in found.processes}
        return msgspec.structs.replace(
            found, processes=[*found.processes, *(each for each in nodes if each.node not in known)]
        )


def _role_of(key: Key) -> Role | None:
    if key.allows("console", "operator"):
        return "operator"
    return "viewer" if key.allows("console", "viewer") else None


def _cookie(header: bytes, name: str) -> str:
    for each in header.decode("latin-1").split(";"):
        known, _, value = each.strip().partition("=")
        if known == name:
            return value
    return ""


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _network(address: str) -> str:
    """The address, of IPv6 its /64: a guesser has all of it."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else parsed.exploded[:19]

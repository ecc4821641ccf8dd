"""The tree in ZooKeeper, through kazoo, which only this file uses.

kazoo's threads hand over to the loop and do nothing else; no call is made from one of its listeners. kazoo reports a
lost session only when a server has reported it. So after a whole session without a server this file reports it itself
and begins with a new client. The new client has seen nothing, while a server with older data refuses clients that have
seen newer data.
"""

import asyncio
import contextlib
import functools
import logging
import select
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, TransactionRequest
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from muster_server.control.config.zookeeper import Servers, check_path
from muster_server.control.registry import tree
from muster_server.control.registry.read_cache import ReadCache
from muster_server.control.registry.signals import Signals
from muster_server.control.registry.tree import (
    CALL_S,
    BadVersion,
    Check,
    Create,
    Delete,
    Denied,
    Entry,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Refused,
    Result,
    Session,
    Set,
    Tree,
    TreeError,
    Unavailable,
    covers,
    parent,
)

CLOSE_S: Final = 2.0
REQUESTS_MAX: Final = 128
"""Limit of concurrent requests; others wait their turn.

Each wakes kazoo's thread by a byte on a socket pair that holds 278 of them (208 KiB, 768 B each). While that thread
looks for a server it reads none, and one more would block the loop until it has found one."""
HOSTS_MIN: Final = 4
"""Lowest number of hosts for kazoo. It waits for a server's first answer for a session divided by the number of hosts.
A starting server may accept a connection and never read it, which would cost the session if there is no other one: so
kazoo gets each host several times."""
MOVING_MAX: Final = 8
"""Limit of tries if a node is created and deleted between two reads."""
T = TypeVar("T")

_ERRORS: Final[tuple[tuple[type[Exception], type[TreeError]], ...]] = (
    (kazoo_errors.NoNodeError, NoNode),
    (kazoo_errors.NodeExistsError, NodeExists),
    (kazoo_errors.BadVersionError, BadVersion),
    (kazoo_errors.NotEmptyError, NotEmpty),
    (kazoo_errors.NoAuthError, Denied),
    (kazoo_errors.AuthFailedError, Denied),
    (kazoo_errors.InvalidACLError, Denied),
    (kazoo_errors.NoChildrenForEphemeralsError, Refused),
    (kazoo_errors.QuotaExceededError, Refused),
)
_NOT_THE_CAUSE: Final = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class ZooKeeperTree(Tree):
    """A view of the tree below `chroot`."""

    def __init__(self, where: Servers) -> None:
        """Raises `OSError` for certificates that cannot be used."""
        self._where, self._tls = where, _tls(where) if where.ca else None
        self._acl = CREATOR_ALL_ACL if where.digest or where.sasl else OPEN_ACL_UNSAFE
        self._signals, self._kept = Signals(), ReadCache()
        self._watched: dict[object, str] = {}
        self._client: KazooClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._under_way = asyncio.Semaphore(REQUESTS_MAX)
        self._asked = 0

    @property
    def session(self) -> Session:
        return self._signals.session

    def on_session(self, callback: Callable[[Session], None]) -> None:
        self._signals.on_session(callback)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        key, end = object(), self._signals.watch(path, callback)
        self._watched[key] = path

        def ended() -> None:
            self._watched.pop(key, None)
            end()

        return ended

    def know(self, hosts: str) -> None:
        """Try these servers from the next connection on."""
        self._where = replace(self._where, hosts=hosts)
        if self._client is not None:
            self._client.set_hosts(_often(hosts))

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    async def close(self) -> None:
        client, self._client = self._client, None
        if self._expiry is not None:
            self._expiry.cancel()
        if client is not None:
            ended = asyncio.Event()
            self._retire(client, functools.partial(self._hand_over, ended.set))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await ended.wait()
        self._become("expired")

    # --- reading and writing ------------------------------------------------------------------------------------------

    @property
    def requests(self) -> int:
        return self._asked

    async def get(self, path: str) -> Entry | None:
        check_path(path)
        for _ in range(MOVING_MAX):
            if (entry := await self._read(path)) is not None:
                return entry
            if await self._absent(path):
                return None
        raise Unavailable(f"{path}: created and deleted repeatedly while it was read; try again")

    async def peek(self, path: str) -> Entry | None:
        check_path(path)
        with contextlib.suppress(NoNode):
            return await self._read(path, watched=False)
        return None

    async def entry(self, path: str) -> Entry | None:
        check_path(path)
        found = await self._known("node", path, self._read)
        return await self.get(path) if found is None else found

    async def names(self, path: str) -> Collection[str]:
        check_path(path)
        return await self._known("names", path, self._names) or []

    async def children(self, path: str) -> dict[str, Entry]:
        below = {name: f"{path.rstrip('/')}/{name}" for name in await self.names(path)}
        found = {name: self._kept.known("node", each) for name, each in below.items()}
        lacking = [name for name, entry in found.items() if entry is None]  # few: the others need no task
        read = await asyncio.gather(*(self._known("node", below[name], self._read) for name in lacking))
        found.update(zip(lacking, read, strict=True))
        return {name: entry for name, entry in found.items() if isinstance(entry, Entry)}

    def forget(self) -> None:
        self._kept.forget()

    async def _known(self, what: str, path: str, ask: Callable[[str], Awaitable[T | None]]) -> T | None:
        """Return the stored answer of a watched path, else the server's."""
        if self._watcher(path) is None:
            return await ask(path)
        return await self._kept.read(what, path, functools.partial(ask, path))

    async def _read(self, path: str, *, watched: bool = True) -> Entry | None:
        place, watcher = self._place(path), self._watcher(path) if watched else None
        with contextlib.suppress(NoNode):
            data, stat = await self._ask(path, lambda client: client.get_async(place, watcher))
            return Entry(data, stat.version)
        return None

    async def _names(self, path: str) -> list[str]:
        """The names below a path; none below a missing one, whose making is reported too."""
        place, watcher = self._place(path), self._watcher(path)
        for _ in range(MOVING_MAX):
            with contextlib.suppress(NoNode):
                names: list[str] = await self._ask(path, lambda client: client.get_children_async(place, watcher))
                return sorted(names)
            if await self._absent(path):
                return []
        raise Unavailable(f"{path}: created and deleted repeatedly while it was read; try again")

    async def _absent(self, path: str) -> bool:
        """Check again, so that a watch exists for a missing node."""
        place, watcher = self._place(path), self._watcher(path)
        return await self._ask(path, lambda client: client.exists_async(place, watcher)) is None

    def _place(self, path: str) -> str:
        return (self._where.chroot + path).rstrip("/") or "/"

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        tree.check(operations)
        try:
            done = await self._done(operations)
        except TreeError:
            self._kept.forget()  # it may depend on outdated data, or succeed after all
            raise
        # A read after this client's write must see it.
        self._kept.written({*(each.path for each in operations), *(each for each in done if isinstance(each, str))})
        return done

    async def _done(self, operations: Sequence[Operation]) -> list[Result]:
        failed, error = await self._commit(operations)
        if isinstance(error, NoNode) and isinstance(operations[failed], Create):
            for each in operations:
                if isinstance(each, Create):
                    await self._make_above(each.path)
            failed, error = await self._commit(operations)
            self._kept.forget()  # earlier lists of the parent lack the new node
        if isinstance(error, TreeError):
            raise error
        return error

    async def _commit(self, operations: Sequence[Operation]) -> tuple[int, TreeError | list[Result]]:
        """Commit; returns the index and the error of the failed operation, or 0 and the results."""
        answers = await self._ask(operations[0].path, functools.partial(self._request, operations))
        for place, answer in enumerate(answers):
            if isinstance(answer, Exception) and not isinstance(answer, _NOT_THE_CAUSE):
                return place, _translated(answer, operations[place].path)
        if len(answers) != len(operations) or any(isinstance(answer, Exception) for answer in answers):
            return 0, Unavailable("a transaction had no definite answer")
        return 0, [self._result(*pair) for pair in zip(operations, answers, strict=True)]

    def _request(self, operations: Sequence[Operation], client: KazooClient) -> Any:
        request = TransactionRequest(client)
        for each in operations:
            path = self._where.chroot + each.path
            match each:
                case Create():
                    request.create(path, each.data, self._acl, each.ephemeral, each.sequence)
                case Set():
                    request.set_data(path, each.data, each.version)
                case Delete():
                    request.delete(path, each.version)
                case Check():
                    request.check(path, each.version)
        return request.commit_async()

    def _result(self, operation: Operation, answer: Any) -> Result:
        match operation:
            case Create():
                return str(answer).removeprefix(self._where.chroot)
            case Set():
                return int(answer.version)
            case _:
                return None

    async def _make_above(self, path: str) -> None:
        """Create the missing parents, below existing nodes only: ZooKeeper refuses to create an existing node for a
        user that may not create siblings."""
        place, missing = self._place(parent(path)), list[str]()
        while place != "/" and await self._ask(path, functools.partial(self._find, place)) is None:
            missing.append(place)
            place = parent(place)
        for each in reversed(missing):
            with contextlib.suppress(NodeExists):
                await self._ask(path, functools.partial(self._make, each))

    def _find(self, place: str, client: KazooClient) -> Any:
        return client.exists_async(place)

    def _make(self, place: str, client: KazooClient) -> Any:
        return client.create_async(place, b"", self._acl)

    # --- across the threads -------------------------------------------------------------------------------------------

    async def _ask(self, path: str, request: Callable[[KazooClient], Any]) -> Any:
        self._asked += 1
        async with self._under_way:
            return await self._send(path, request)

    async def _send(self, path: str, request: Callable[[KazooClient], Any]) -> Any:
        client = self._client
        if client is None or self.session != "connected":
            raise Unavailable("no session with ZooKeeper")
        future = asyncio.get_running_loop().create_future()
        try:
            request(client).rawlink(lambda result: self._hand_over(_settle, future, result))
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            raise Unavailable(f"no answer within {CALL_S:.0f} s") from None
        except kazoo_errors.KazooException as error:
            raise _translated(error, path) from error

    def _hand_over(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Hand over from one of kazoo's threads to the loop, if that still runs."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _watcher(self, path: str) -> Callable[[WatchedEvent], None] | None:
        return self._fired if any(covers(above, path) for above in self._watched.values()) else None

    def _fired(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # otherwise it is the session's end, which the listener reports
            path = str(event.path).removeprefix(self._where.chroot) or "/"
            self._hand_over(self._on_change, path)

    def _on_change(self, path: str) -> None:
        self._kept.changed(path)
        self._signals.changed([path])

    # --- the session --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        where = self._where
        client = KazooClient(
            hosts=_often(where.hosts),
            timeout=where.session_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.5, max_delay=1.0),
            auth_data=[("digest", where.digest)] if where.digest else None,
            sasl_options=dict(where.sasl) or None,
            handler=_Direct() if self._tls is None else _ByTls(self._tls),
            logger=_SILENT,
        )
        client.add_listener(lambda state: self._hand_over(self._on_state, client, state))
        self._client = client
        self._arm()
        client.start_async()

    def _on_state(self, client: KazooClient, state: KazooState) -> None:
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
            self._become("connected")
        else:
            self._become("suspended" if state == KazooState.SUSPENDED else "expired")
            if self._expiry is None:
                self._arm()

    def _become(self, session: Session) -> None:
        self._kept.forget()  # watches end with the connection
        self._signals.become(session)

    def _arm(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(self._where.session_s, self._expire)

    def _expire(self) -> None:
        client = self._client
        self._become("expired")
        self._begin()
        if client is not None:
            self._retire(client)

    @staticmethod
    def _retire(client: KazooClient, ended: Callable[[], None] = lambda: None) -> None:
        """Close the client in a thread of its own, since it may take as long as a connect."""

        def retire() -> None:
            with contextlib.suppress(Exception):
                client.stop()
            with contextlib.suppress(Exception):
                client.close()
            ended()

        threading.Thread(target=retire, name="zookeeper end", daemon=True).start()


def _often(hosts: str) -> str:
    """Repeat the hosts so that there are at least `HOSTS_MIN`."""
    return ",".join([hosts] * -(-HOSTS_MIN // (hosts.count(",") + 1)))


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    try:
        future.set_result(result.get(block=False))
    except Exception as error:
        future.set_exception(error)


def _translated(error: Exception, path: str) -> TreeError:
    for kind, ours in _ERRORS:
        if isinstance(error, kind):
            return ours(f"{path}: {kind.__name__}" if issubclass(ours, Refused) else path)
    return Unavailable(f"{path}: {type(error).__name__}")


class _AtOnce:
    """In place of a queue with a thread that works it off."""

    @staticmethod
    def put(call: Callable[[], None]) -> None:
        """Call it in the caller's thread."""
        call()


class _Direct(SequentialThreadingHandler):  # type: ignore[misc] # the library has no types
    """Calls back in the thread of the connection, in the order of what comes from the server: the tree's callbacks only
    hand over to the loop. kazoo's own handler has two more threads for that, and a new selector for each read."""

    def start(self) -> None:
        """Begin, without workers."""
        self.completion_queue = self.callback_queue = _AtOnce
        self._running = True

    def stop(self) -> None:
        """End."""
        self._running = False

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until one can be read or written, for up to `timeout` seconds."""
        polling, asked = select.poll(), {each.fileno(): each for each in (*readers, *writers)}
        for each in readers:
            polling.register(each, select.POLLIN)
        for each in writers:
            polling.register(each, select.POLLOUT)
        ready = [asked[descriptor] for descriptor, _ in polling.poll(None if timeout is None else timeout * 1_000)]
        return [each for each in ready if each in readers], [each for each in ready if each in writers], []


class _ByTls(_Direct):
    """Connects with TLS to servers whose names the authority has certified. kazoo itself also trusts this host's
    authorities, and leaks a refused socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """Return a connected socket. Raises `OSError`."""
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


def _tls(where: Servers) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(where.ca)
    if where.certificate:
        context.load_cert_chain(where.certificate, where.key)
    return context


_SILENT: Final = logging.getLogger("muster_server.control.registry.zookeeper.kazoo")
"""Drops kazoo's logs, since the tree reports its session's state."""
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

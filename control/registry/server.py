"""The embedded registry: the tree on a Unix socket in the instance's folder, for the processes of this user.

Answers a write once it is in the file (I-6). Sessions survive a connection, and this server, until their time-out.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec
import structlog

from muster_server.control.config.zookeeper import check_path
from muster_server.control.errors import UserError
from muster_server.control.registry import questions
from muster_server.control.registry.store import Store
from muster_server.control.registry.tree import NODES_MAX, Entry, Result, TreeError, Unavailable, check
from muster_server.plane.calls import LOCAL, CallError, Server
from muster_server.plane.files import write_atomically

SOCKET: Final = "registry.sock"
STATE: Final = "registry.state"
FORMAT: Final = 1
SESSIONS_MAX: Final = 4_096
TIMEOUT_MS_MIN: Final = 500
TIMEOUT_MS_MAX: Final = 60_000
UNSENT_MAX: Final = NODES_MAX
"""Limit of changed paths that a client has not read; beyond it its watch ends, and it reads everything again."""
SWEEP_S: Final = 0.1


class _SavedSession(msgspec.Struct, array_like=True):
    id: int
    secret: bytes
    timeout_ms: int


class _Saved(msgspec.Struct, array_like=True):
    format: int
    sessions: list[_SavedSession]
    store: bytes


@dataclass(slots=True)
class _Session:
    id: int
    secret: bytes
    timeout_ms: int
    deadline: float = 0.0
    watch: "_Watch | None" = None

    def heard(self) -> "_Session":
        """It is alive now."""
        self.deadline = time.monotonic() + self.timeout_ms / 1000
        return self


@dataclass(slots=True, eq=False)
class _Watch:
    """Paths that changed since its client has heard of any."""

    paths: set[str] = field(default_factory=set[str])
    some: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    def changed(self, paths: Iterable[str]) -> None:
        """Tell the client."""
        self.paths.update(paths)
        self.over |= len(self.paths) > UNSENT_MAX
        self.some.set()

    def end(self) -> None:
        """Tell the client nothing more."""
        self.over = True
        self.some.set()


class RegistryServer:
    """Serves while the context is open. One per folder: the instance's lock ensures that."""

    def __init__(self, folder: Path, log: structlog.typing.FilteringBoundLogger, *, sessions: bool = True) -> None:
        """Without `sessions`, the sessions of the file end at once: their owners have ended."""
        self._folder, self._log, self._keeps_sessions = folder, log, sessions
        self._store = Store()
        self._sessions: dict[int, _Session] = {}
        self._saves: list[asyncio.Future[None]] = []
        """Done once the file has what the store had when they were made."""
        self._unsaved = asyncio.Event()
        self._broken = ""
        self._open = contextlib.AsyncExitStack()
        self._calls = Server(
            LOCAL,
            {
                questions.Begin: self._begin,
                questions.Watch: self._watch,
                questions.Ping: self._ping,
                questions.Get: self._get,
                questions.Children: self._children,
                questions.Transact: self._transact,
                questions.Bye: self._bye,
            },
        )

    async def __aenter__(self) -> Self:
        try:
            self._load()
            self._store.on_change = self._on_change
            await self._calls.start_at(self._folder / SOCKET)
        except OSError as error:
            raise UserError(f"cannot serve {self._folder / SOCKET}: {error.strerror}") from None
        tasks = [asyncio.create_task(self._save_always()), asyncio.create_task(self._sweep_always())]
        self._open.push_async_callback(_end, tasks)
        self._open.push_async_callback(self._calls.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _begin(self, asked: questions.Begin) -> questions.Welcome:
        session = self._sessions.get(asked.session)
        if session is None or not secrets.compare_digest(session.secret, asked.secret):
            if len(self._sessions) >= SESSIONS_MAX:
                raise CallError("busy", f"too many sessions (limit {SESSIONS_MAX})")
            timeout_ms = min(max(asked.timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
            session = _Session(secrets.randbits(62) + 1, secrets.token_bytes(16), timeout_ms)
            self._sessions[session.id] = session
        session.heard()
        with contextlib.suppress(CallError):  # a session is valid without the file
            await self._saved()
        return questions.Welcome(session.id, session.secret, session.timeout_ms)

    async def _watch(self, asked: questions.Watch) -> AsyncIterator[list[str]]:
        session = self._of(asked)
        if session.watch is not None:
            session.watch.end()
        watch = session.watch = _Watch()
        try:
            yield []
            while await watch.some.wait() and not watch.over:
                watch.some.clear()
                paths, watch.paths = list(watch.paths), set()
                yield paths
        finally:
            if session.watch is watch:
                session.watch = None

    async def _ping(self, asked: questions.Ping) -> None:
        self._of(asked)

    async def _get(self, asked: questions.Get) -> questions.Found:
        self._of(asked)
        with _answered():
            check_path(asked.path)
            return questions.Found(self._store.get(asked.path))

    async def _children(self, asked: questions.Children) -> dict[str, Entry]:
        self._of(asked)
        with _answered():
            check_path(asked.path)
            return self._store.children(asked.path)

    async def _transact(self, asked: questions.Transact) -> list[Result]:
        session = self._of(asked)
        with _answered():
            check(asked.operations)
            results = self._store.apply(session.id, asked.operations)
        await self._saved()
        return results

    async def _bye(self, asked: questions.Bye) -> None:
        self._forget(self._of(asked))
        await self._saved()

    def _of(self, asked: questions.Question) -> _Session:
        """The session of a question, which keeps it alive. Raises `CallError`."""
        session = self._sessions.get(asked.session)
        if session is None:
            raise CallError(Unavailable.__name__, "the session has ended")
        return session.heard()

    # --- sessions and changes -----------------------------------------------------------------------------------------

    def _on_change(self, paths: Sequence[str]) -> None:
        self._unsaved.set()
        for session in self._sessions.values():
            if session.watch is not None:
                session.watch.changed(paths)

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.id]
        self._unsaved.set()
        self._store.end(session.id)
        if session.watch is not None:
            session.watch.end()

    async def _sweep_always(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            stood = now - before - SWEEP_S
            before = now
            for session in list(self._sessions.values()):
                session.deadline += stood if stood > SWEEP_S else 0.0  # the client could not be read, so it is not late
                if session.deadline <= now:
                    self._forget(session)

    # --- the file -----------------------------------------------------------------------------------------------------

    async def _saved(self) -> None:
        """Wait until the file has what the store has now. Raises `CallError`."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saves.append(saved)
        self._unsaved.set()
        await saved

    async def _save_always(self) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            saves, self._saves = self._saves, []
            failed = None
            try:
                await asyncio.to_thread(write_atomically, self._folder / STATE, self._dump())
                self._broken = ""
            except OSError as error:
                self._complain(error)
                failed = CallError(Unavailable.__name__, "the registry cannot write its file")
            for each in saves:
                if each.done():  # its asking end is gone
                    continue
                if failed is None:
                    each.set_result(None)
                else:
                    each.set_exception(failed)

    def _dump(self) -> bytes:
        sessions = [_SavedSession(each.id, each.secret, each.timeout_ms) for each in self._sessions.values()]
        return msgspec.msgpack.encode(_Saved(FORMAT, sessions, self._store.dump()))

    def _load(self) -> None:
        file = self._folder / STATE
        try:
            saved = msgspec.msgpack.decode(file.read_bytes(), type=_Saved)
            if saved.format != FORMAT:
                raise msgspec.ValidationError(f"format {saved.format}")
            self._store.load(saved.store)
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            raise UserError(
                f"{file}: written by another version of muster: {error}; muster repair starts from scratch"
            ) from None
        now = time.monotonic()
        for each in saved.sessions:
            if not self._keeps_sessions:
                self._store.end(each.id)
                continue
            session = _Session(each.id, each.secret, each.timeout_ms, now + each.timeout_ms / 1000)
            self._sessions[each.id] = session

    def _complain(self, error: OSError) -> None:
        if str(error) != self._broken:
            self._log.warning("registry: cannot be written", file=str(self._folder / STATE), error=error.strerror)
        self._broken = str(error)


def checked(file: Path) -> int:
    """The number of nodes of the tree in a state file. Raises `UserError` where it is damaged."""
    try:
        saved = msgspec.msgpack.decode(file.read_bytes(), type=_Saved)
        if saved.format != FORMAT:
            raise msgspec.ValidationError(f"format {saved.format}")
        Store().load(saved.store)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise UserError(f"{file}: not what this version of muster wrote: {error}") from None
    return len(saved.sessions)


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Answer what the tree refuses by the name of its error."""
    try:
        yield
    except TreeError as error:
        raise CallError(type(error).__name__, str(error)) from None
    except ValueError as error:
        raise CallError("question", str(error)) from None


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

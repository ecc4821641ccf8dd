"""The embedded registry: the tree on a Unix socket in the instance's folder, for the processes of this user.

Answers a write once it is in the file (I-6). Sessions survive a connection, and this server, until their time-out.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import structlog

from muster_server.control.config.zookeeper import check_path
from muster_server.control.errors import UserError
from muster_server.control.host.sockets import listen
from muster_server.control.registry import frames
from muster_server.control.registry.frames import Frame
from muster_server.control.registry.store import Store
from muster_server.control.registry.tree import Operation, Result, TreeError, check
from muster_server.plane.files import write_atomically

SOCKET: Final = "registry.sock"
STATE: Final = "registry.state"
FORMAT: Final = 1
SESSIONS_MAX: Final = 4_096
TIMEOUT_MS_MIN: Final = 500
TIMEOUT_MS_MAX: Final = 60_000
UNSENT_MAX: Final = 2 * frames.ANSWER_MAX
"""A client with more unread bytes than this is disconnected, and must connect again."""
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
    connection: "_Connection | None" = None


@dataclass(slots=True, eq=False)
class _Connection:
    writer: asyncio.StreamWriter
    session: _Session | None = None

    def send(self, frame: Frame) -> None:
        """Queue it; a client that does not read is disconnected."""
        transport = self.writer.transport
        if transport.get_write_buffer_size() > UNSENT_MAX:
            transport.abort()
        elif not transport.is_closing():
            self.writer.write(frames.pack(frame))


class RegistryServer:
    """Serves while the context is open. One per folder: the instance's lock ensures that."""

    def __init__(self, folder: Path, log: structlog.typing.FilteringBoundLogger, *, sessions: bool = True) -> None:
        """Without `sessions`, the sessions of the file end at once: their owners have ended."""
        self._folder, self._log, self._keeps_sessions = folder, log, sessions
        self._store = Store()
        self._sessions: dict[int, _Session] = {}
        self._connections: set[_Connection] = set()
        self._answers: list[tuple[_Connection, Frame]] = []
        self._unsaved = asyncio.Event()
        self._broken = ""
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self._load()
            self._store.on_change = self._on_change
            listening = self._open.enter_context(listen(self._folder, SOCKET))
        except OSError as error:
            raise UserError(f"cannot serve {self._folder / SOCKET}: {error.strerror}") from None
        server = await asyncio.start_unix_server(self._serve, sock=listening)
        tasks = [asyncio.create_task(self._save_always()), asyncio.create_task(self._sweep_always())]
        self._open.push_async_callback(_end, tasks)
        self._open.callback(self._cut)
        self._open.callback(server.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def _cut(self) -> None:
        for connection in self._connections:
            connection.writer.transport.abort()

    # --- one connection -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            while True:
                asked = frames.REQUEST.decode(await frames.read(reader, frames.REQUEST_MAX))
                self._take(connection, asked)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (ValueError, msgspec.MsgspecError) as error:
            self._log.warning("registry: disconnected a client", cause=str(error))
        finally:
            self._connections.discard(connection)
            if connection.session is not None and connection.session.connection is connection:
                connection.session.connection = None
            writer.transport.abort()

    def _take(self, connection: _Connection, asked: frames.Request) -> None:
        if isinstance(asked, frames.Hello):
            self._greet(connection, asked)
            return
        session = connection.session
        if session is None:
            raise ValueError("message before hello")
        session.deadline = time.monotonic() + session.timeout_ms / 1000
        match asked:
            case frames.Ping():
                connection.send(asked)
            case frames.Get(call, path):
                connection.send(self._attempt(call, lambda: frames.Found(call, self._store.get(_checked(path)))))
            case frames.Children(call, path):
                connection.send(self._attempt(call, lambda: frames.Listed(call, self._store.children(_checked(path)))))
            case frames.Transact(call, operations):
                done = self._attempt(call, lambda: frames.Done(call, self._apply(session, operations)))
                if isinstance(done, frames.Done):
                    self._answer_saved(connection, done)
                else:
                    connection.send(done)
            case frames.Bye(call):
                self._forget(session)
                self._answer_saved(connection, frames.Done(call, []))

    def _greet(self, connection: _Connection, hello: frames.Hello) -> None:
        if connection.session is not None:
            raise ValueError("a second hello")
        session = self._sessions.get(hello.session)
        if session is None or not secrets.compare_digest(session.secret, hello.secret):
            if len(self._sessions) >= SESSIONS_MAX:
                raise ValueError(f"too many sessions (limit {SESSIONS_MAX})")
            timeout_ms = min(max(hello.timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
            session = _Session(secrets.randbits(62) + 1, secrets.token_bytes(16), timeout_ms)
            self._sessions[session.id] = session
        elif session.connection is not None:
            session.connection.writer.transport.abort()
        connection.session, session.connection = session, connection
        session.deadline = time.monotonic() + session.timeout_ms / 1000
        self._answer_saved(connection, frames.Welcome(session.id, session.secret, session.timeout_ms))

    @staticmethod
    def _attempt(call: int, work: Callable[[], Frame]) -> Frame:
        try:
            return work()
        except TreeError as error:
            return frames.Failed(call, type(error).__name__, str(error))

    def _apply(self, session: _Session, operations: Sequence[Operation]) -> list[Result]:
        check(operations)
        return self._store.apply(session.id, operations)

    # --- sessions and changes -----------------------------------------------------------------------------------------

    def _on_change(self, paths: Sequence[str]) -> None:
        self._unsaved.set()
        changed = frames.Changed(list(paths))
        for connection in list(self._connections):
            if connection.session is not None:
                connection.send(changed)

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.id]
        self._unsaved.set()
        self._store.end(session.id)
        if session.connection is not None:
            session.connection.session = None

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
                    connection = session.connection
                    self._forget(session)
                    if connection is not None:
                        connection.writer.transport.abort()

    # --- the file -----------------------------------------------------------------------------------------------------

    def _answer_saved(self, connection: _Connection, frame: Frame) -> None:
        self._answers.append((connection, frame))
        self._unsaved.set()

    async def _save_always(self) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            answers, self._answers = self._answers, []
            try:
                await asyncio.to_thread(write_atomically, self._folder / STATE, self._dump())
                self._broken = ""
            except OSError as error:
                self._complain(error)
                answers = [(connection, _unsaved(frame)) for connection, frame in answers]
            for connection, frame in answers:
                connection.send(frame)

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


def _unsaved(frame: Frame) -> Frame:
    """The answer after a failed save. A session is valid without the file; a write is not certain."""
    if isinstance(frame, frames.Done):
        return frames.Failed(frame.call, "Unavailable", "the registry cannot write its file")
    return frame


def _checked(path: str) -> str:
    check_path(path)
    return path


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

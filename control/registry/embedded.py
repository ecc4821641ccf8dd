"""The tree of the embedded server, as one of its clients uses it."""

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.config.zookeeper import check_path
from muster_server.control.host.sockets import address
from muster_server.control.registry import frames, tree
from muster_server.control.registry.read_cache import ReadCache
from muster_server.control.registry.server import SOCKET
from muster_server.control.registry.signals import Signals
from muster_server.control.registry.tree import CALL_S, Entry, Operation, Result, Session, Tree, TreeError, Unavailable

SESSION_S: Final = 5.0
CONNECT_S: Final = 2.0
AGAIN_S: Final = (0.02, 0.2)
PENDING_MAX: Final = 4_096
ERRORS: Final = {kind.__name__: kind for kind in TreeError.__subclasses__()}


class EmbeddedTree(Tree):
    """`folder` is the instance's."""

    def __init__(self, folder: Path, *, session_s: float = SESSION_S) -> None:
        self._folder, self._session_s = folder, session_s
        self._signals, self._kept = Signals(), ReadCache()
        self._known = frames.Hello(0, b"", int(session_s * 1000))
        self._writer: asyncio.StreamWriter | None = None
        self._calls = itertools.count(1)
        self._asked = 0
        self._pending: dict[int, asyncio.Future[frames.Answer]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def session(self) -> Session:
        return self._signals.session

    def on_session(self, callback: Callable[[Session], None]) -> None:
        self._signals.on_session(callback)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._signals.watch(path, callback)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="registry connection")

    async def close(self) -> None:
        with contextlib.suppress(TreeError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._call(frames.Bye)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._expiry is not None:
            self._expiry.cancel()
        self._become("expired")

    @property
    def requests(self) -> int:
        return self._asked

    async def get(self, path: str) -> Entry | None:
        check_path(path)
        answer = await self._call(frames.Get, path)
        assert isinstance(answer, frames.Found)
        return answer.entry

    async def peek(self, path: str) -> Entry | None:
        return await self.get(path)

    async def entry(self, path: str) -> Entry | None:
        return await self._kept.read("node", path, functools.partial(self.get, path))

    async def names(self, path: str) -> Collection[str]:
        return await self.children(path)

    async def children(self, path: str) -> dict[str, Entry]:
        check_path(path)
        return await self._kept.read("below", path, functools.partial(self._below, path)) or {}

    async def _below(self, path: str) -> dict[str, Entry]:
        answer = await self._call(frames.Children, path)
        assert isinstance(answer, frames.Listed)
        return answer.entries

    def forget(self) -> None:
        self._kept.forget()

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        tree.check(operations)
        answer = await self._call(frames.Transact, list(operations))
        assert isinstance(answer, frames.Done)
        return answer.results

    async def _call(self, kind: Callable[..., frames.Frame], *arguments: object) -> frames.Answer:
        writer = self._writer
        if writer is None or writer.is_closing() or self.session != "connected" or len(self._pending) >= PENDING_MAX:
            raise Unavailable("no connection to the registry")
        self._asked += 1
        call, future = next(self._calls), asyncio.get_running_loop().create_future()
        self._pending[call] = future
        try:
            writer.write(frames.pack(kind(call, *arguments)))
            async with asyncio.timeout(CALL_S):
                answer: frames.Answer = await future
        except TimeoutError:
            raise Unavailable(f"no answer within {CALL_S:.0f} s") from None
        finally:
            self._pending.pop(call, None)
        if isinstance(answer, frames.Failed):
            raise ERRORS.get(answer.error, TreeError)(answer.text)
        return answer

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError):
                await self._converse()
            self._lost()
            await asyncio.sleep(random.uniform(*AGAIN_S))

    async def _converse(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            with address(self._folder, SOCKET) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        pinging = None
        try:
            if writer.is_closing():
                raise ConnectionResetError
            writer.write(frames.pack(self._known))
            async with asyncio.timeout(CONNECT_S):
                welcome = frames.ANSWER.decode(await frames.read(reader, frames.ANSWER_MAX))
            if not isinstance(welcome, frames.Welcome):
                raise ValueError("the registry sent no welcome")
            self._writer = writer
            self._welcomed(welcome)
            pinging = asyncio.create_task(self._ping(writer))
            while True:
                async with asyncio.timeout(self._session_s * 2 / 3):
                    data = await frames.read(reader, frames.ANSWER_MAX)
                self._take(frames.ANSWER.decode(data))
        finally:
            self._writer = None
            if pinging is not None:
                pinging.cancel()
            writer.transport.abort()

    def _welcomed(self, welcome: frames.Welcome) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        if self._known.session not in {0, welcome.session}:
            self._become("expired")
        self._known = frames.Hello(welcome.session, welcome.secret, welcome.timeout_ms)
        self._session_s = welcome.timeout_ms / 1000
        self._become("connected")

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(self._session_s / 3)
            if writer.is_closing():
                return
            writer.write(frames.pack(frames.Ping()))

    def _become(self, session: Session) -> None:
        self._kept.forget()  # without a connection no change is reported
        self._signals.become(session)

    def _take(self, answer: frames.Answer) -> None:
        match answer:
            case frames.Changed(paths):
                self._kept.written(paths)
                self._signals.changed(paths)
            case frames.Found(call) | frames.Listed(call) | frames.Done(call) | frames.Failed(call):
                future = self._pending.get(call)
                if future is not None and not future.done():
                    future.set_result(answer)
            case _:
                pass

    def _lost(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Unavailable("the connection to the registry was lost"))
        if self.session == "connected":
            self._become("suspended")
            self._expiry = asyncio.get_running_loop().call_later(self._session_s, self._expire)

    def _expire(self) -> None:
        """No answer came for a whole session: whatever the server answers later, it is a new session."""
        self._known = frames.Hello(0, b"", int(self._session_s * 1000))
        self._become("expired")

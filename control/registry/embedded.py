"""The tree of the embedded server, as one of its clients uses it."""

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, TypeVar

from muster_server.control.config.zookeeper import check_path
from muster_server.control.registry import questions, tree
from muster_server.control.registry.read_cache import ReadCache
from muster_server.control.registry.server import SOCKET
from muster_server.control.registry.signals import Signals
from muster_server.control.registry.tree import CALL_S, Entry, Operation, Result, Session, Tree, TreeError, Unavailable
from muster_server.plane.calls import LOCAL, CallError, Peer

SESSION_S: Final = 5.0
CONNECT_S: Final = 2.0
AGAIN_S: Final = (0.02, 0.2)
ERRORS: Final = {kind.__name__: kind for kind in TreeError.__subclasses__()}
A = TypeVar("A")


class EmbeddedTree(Tree):
    """`folder` is the instance's."""

    def __init__(self, folder: Path, *, session_s: float = SESSION_S) -> None:
        self._folder, self._session_s = folder, session_s
        self._signals, self._kept = Signals(), ReadCache()
        self._known = questions.Begin(0, b"", int(session_s * 1000))
        self._peer: Peer | None = None
        self._asked = 0
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
                await self._call(questions.Bye(self._known.session), type(None))
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
        return (await self._call(questions.Get(self._known.session, path), questions.Found)).entry

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
        return await self._call(questions.Children(self._known.session, path), dict[str, Entry])

    def forget(self) -> None:
        self._kept.forget()

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        tree.check(operations)
        return await self._call(questions.Transact(self._known.session, list(operations)), list[Result])

    async def _call(self, question: questions.Question, answer: type[A]) -> A:
        if self._peer is None or self.session != "connected":
            raise Unavailable("no connection to the registry")
        self._asked += 1
        try:
            return await self._peer.ask(question, answer, CALL_S)
        except CallError as error:
            raise ERRORS.get(error.code, Unavailable)(str(error)) from None

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(CallError):
                await self._converse()
            self._lost()
            await asyncio.sleep(random.uniform(*AGAIN_S))

    async def _converse(self) -> None:
        peer, pinging = Peer(self._folder / SOCKET, LOCAL), None
        try:
            welcome = await peer.ask(self._known, questions.Welcome, CONNECT_S)
            pinging = asyncio.create_task(self._ping(peer, welcome))
            async with contextlib.aclosing(peer.stream(questions.Watch(welcome.session), list[str])) as changes:
                async for paths in changes:
                    if self._peer is None:  # from now on each change is reported
                        self._peer = peer
                        self._welcomed(welcome)
                    self._kept.written(paths)
                    self._signals.changed(paths)
        finally:
            self._peer = None
            if pinging is not None:
                pinging.cancel()
            await peer.close()

    def _welcomed(self, welcome: questions.Welcome) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        if self._known.session not in {0, welcome.session}:
            self._become("expired")
        self._known = questions.Begin(welcome.session, welcome.secret, welcome.timeout_ms)
        self._session_s = welcome.timeout_ms / 1000
        self._become("connected")

    @staticmethod
    async def _ping(peer: Peer, welcome: questions.Welcome) -> None:
        """Keep the session alive; close the connection of a server that does not answer."""
        every_s = welcome.timeout_ms / 3_000
        with contextlib.suppress(CallError):
            while True:
                await asyncio.sleep(every_s)
                await peer.ask(questions.Ping(welcome.session), type(None), every_s)
        await peer.close()

    def _become(self, session: Session) -> None:
        self._kept.forget()  # without a connection no change is reported
        self._signals.become(session)

    def _lost(self) -> None:
        if self.session == "connected":
            self._become("suspended")
            self._expiry = asyncio.get_running_loop().call_later(self._session_s, self._expire)

    def _expire(self) -> None:
        """No answer came for a whole session: whatever the server answers later, it is a new session."""
        self._known = questions.Begin(0, b"", int(self._session_s * 1000))
        self._become("expired")

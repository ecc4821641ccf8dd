"""The registries that one suite runs against: each can be stopped, started, wiped, and made to end a session."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import structlog

from muster_server.control.registry.embedded import EmbeddedTree
from muster_server.control.registry.server import STATE, RegistryServer
from muster_server.control.registry.tree import Session, Tree
from tests.fakes.memory import Memory, MemoryTree
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
SESSION_S = 2.0
NOTICED_S = 2.0


class Service(Protocol):
    """A registry that a test owns."""

    async def start(self) -> None:
        """Serve, with the earlier content."""

    async def stop(self) -> None:
        """Serve nobody, as after kill -9."""

    async def wipe(self) -> None:
        """Lose everything, and serve again."""

    def tree(self, session_s: float = SESSION_S) -> Tree:
        """A new client, not yet started."""

    async def expire(self, tree: Tree) -> None:
        """End the session of a client. Returns when the client knows that."""


class InMemory:
    """All in one process. Nothing lasts longer than the sessions, so a stop never ends one."""

    def __init__(self) -> None:
        self._memory = Memory()

    async def start(self) -> None:
        self._memory.start()

    async def stop(self) -> None:
        self._memory.stop()

    async def wipe(self) -> None:
        self._memory.wipe()

    def tree(self, session_s: float = SESSION_S) -> Tree:
        return self._memory.tree()

    async def expire(self, tree: Tree) -> None:
        assert isinstance(tree, MemoryTree)
        assert tree.session == "connected"
        tree.expire()


class Embedded:
    """The server in the test's loop, its file in a folder whose path no socket could have."""

    def __init__(self, path: Path) -> None:
        self.folder = path / ("long" * 40)
        self.folder.mkdir()
        self._server: RegistryServer | None = None

    async def start(self) -> None:
        self._server = await RegistryServer(self.folder, LOG).__aenter__()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.__aexit__()
            self._server = None

    async def wipe(self) -> None:
        await self.stop()
        (self.folder / STATE).unlink()
        await self.start()

    def tree(self, session_s: float = SESSION_S) -> EmbeddedTree:
        return EmbeddedTree(self.folder, session_s=session_s)

    async def expire(self, tree: Tree) -> None:
        assert isinstance(tree, EmbeddedTree)

        async def steal() -> None:
            thief = EmbeddedTree(self.folder)
            thief._known = tree._known
            await connected(thief)
            await thief.close()

        await until_expired(tree, steal)


async def connected(*trees: Tree) -> None:
    """Start these and wait until they have a session."""
    for tree in trees:
        await tree.start()
    for tree in trees:
        await until_session(tree, "connected")


async def until_expired(tree: Tree, steal: Callable[[], Awaitable[None]]) -> None:
    """Steal the session of a client until the client reports its end.

    A client may take it back before its end. Between two connections it has no session that could be stolen.
    """
    said = list[Session]()
    tree.on_session(said.append)
    async with asyncio.timeout(PATIENT_S):
        while "expired" not in said:
            await until_session(tree, "connected")
            await steal()
            with contextlib.suppress(TimeoutError):
                await until(lambda: "expired" in said, NOTICED_S)


async def until_session(tree: Tree, session: Session) -> None:
    """Wait until the connection has this state, and its listeners know."""
    await until(lambda: tree.session == session, PATIENT_S)
    await asyncio.sleep(0)

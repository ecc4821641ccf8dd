"""The registry's tree inside this process. A session ends when it is closed, or when a test ends it."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Final

from muster_server.control.config.zookeeper import check_path
from muster_server.control.registry.signals import Signals
from muster_server.control.registry.store import Store
from muster_server.control.registry.tree import Entry, Operation, Result, Session, Tree, Unavailable, check


class Memory:
    """The state shared by the trees of one process."""

    def __init__(self) -> None:
        self.store = Store()
        self.trees: Final[list[MemoryTree]] = []
        self.sessions: Final = itertools.count(1)
        self.serving = True
        self.store.on_change = self._on_change

    def tree(self) -> "MemoryTree":
        """Make one more view of it."""
        return MemoryTree(self)

    def stop(self) -> None:
        """Serve nobody; sessions stay."""
        self.serving = False
        for tree in self.trees:
            tree.signals.become("suspended")

    def start(self) -> None:
        """Serve again."""
        self.serving = True
        for tree in self.trees:
            tree.signals.become("connected")

    def wipe(self) -> None:
        """Lose everything, also the sessions."""
        self.store = Store()
        self.store.on_change = self._on_change
        for tree in self.trees:
            tree.expire()

    def _on_change(self, paths: Sequence[str]) -> None:
        for tree in self.trees:
            tree.signals.changed(paths)


class MemoryTree(Tree):
    """A view of a `Memory`."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._id = memory, next(memory.sessions)
        self.signals: Final = Signals()
        self._asked = 0

    @property
    def session(self) -> Session:
        return self.signals.session

    def on_session(self, callback: Callable[[Session], None]) -> None:
        self.signals.on_session(callback)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self.signals.watch(path, callback)

    async def start(self) -> None:
        self._memory.trees.append(self)
        if self._memory.serving:
            self.signals.become("connected")

    async def close(self) -> None:
        if self in self._memory.trees:
            self._memory.trees.remove(self)
            self._memory.store.end(self._id)
            self.signals.become("expired")

    @property
    def requests(self) -> int:
        return self._asked

    async def peek(self, path: str) -> Entry | None:
        return await self.get(path)

    async def entry(self, path: str) -> Entry | None:
        return await self.get(path)

    async def names(self, path: str) -> Collection[str]:
        return await self.children(path)

    async def get(self, path: str) -> Entry | None:
        check_path(path)
        await self._turn()
        return self._memory.store.get(path)

    async def children(self, path: str) -> dict[str, Entry]:
        check_path(path)
        await self._turn()
        return self._memory.store.children(path)

    def forget(self) -> None:
        """Nothing is kept: reads go to the tree itself."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        check(operations)
        await self._turn()
        return self._memory.store.apply(self._id, operations)

    async def _turn(self) -> None:
        self._asked += 1
        await asyncio.sleep(0)
        if self.session != "connected":
            raise Unavailable("no session")

    def expire(self) -> None:
        """Lose the session, and get another one while the memory serves."""
        self._memory.store.end(self._id)
        self._id = next(self._memory.sessions)
        self.signals.become("expired")
        if self._memory.serving:
            self.signals.become("connected")

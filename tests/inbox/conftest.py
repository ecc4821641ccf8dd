"""A real node of inboxes in the test's own loop, on SQLite, with an HTTP face before it."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

import muster.testing
from muster_server.control.cluster.instance import Process
from muster_server.plane.calls import key_of
from muster_server.plane.database.url import location
from muster_server.plane.service import Context
from muster_server.systems.inbox.asking import Inboxes
from muster_server.systems.inbox.database.store import SqlStore
from muster_server.systems.inbox.node import InboxNode
from muster_server.systems.inbox.options import InboxOptions, InboxSettings
from muster_server.systems.inbox.shapes import ROLE
from tests.control.players import spec
from tests.http.conftest import Beside, address, eventually
from tests.ports import free_ports
from tests.waiting import PATIENT_S

__all__ = ["address", "eventually"]
SECRET = b"c" * 32


class Rig:
    """One node, which ends and starts again on its file."""

    def __init__(self, folder: Path, database: str = "", **options: Any) -> None:
        """`database`: a URL; empty: a file of the folder."""
        (folder / "cluster.secret").write_text(SECRET.hex())
        (folder / "token").write_text("token")
        self.folder, self.options = folder, options
        self.database = database or f"sqlite:///{folder / 'inbox.db'}"
        self.bind = ("127.0.0.1", free_ports(1)[0])
        self.node: InboxNode | None = None
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.inboxes = Inboxes(lambda: [self.bind], key_of(SECRET))

    async def start(self) -> InboxNode:
        """Serve, once the database is open."""
        settings = InboxSettings(
            folder=str(self.folder),
            database=self.database,
            database_password_file="",
            instance="test",
            pushes=False,
            options=msgspec.to_builtins(InboxOptions(**self.options)),
        )
        told = msgspec.structs.replace(
            spec(1, ROLE),
            bind=self.bind,
            registry=None,
            cluster_secret_file=str(self.folder / "cluster.secret"),
            token_file=str(self.folder / "token"),
            settings=settings,
        )
        context = Context(structlog.get_logger(), lambda: None, lambda: None)
        where = location(settings.database)
        self.node = node = InboxNode(told, settings, context, lambda limits: SqlStore(where, "test", limits))
        ready = asyncio.Event()
        node.on_ready = lambda is_ready: ready.set()
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(node.run(self._stop, 5.0))
        async with asyncio.timeout(PATIENT_S):
            await ready.wait()
        return node

    async def end(self) -> None:
        """End it in order."""
        self._stop.set()
        if self._running is not None:
            await self._running

    async def kill(self) -> None:
        """End it at once, as far as a task can."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    @property
    def processes(self) -> list[Process]:
        """As a record of an instance has it."""
        return [
            Process(
                name=ROLE,
                role=ROLE,
                node=1,
                partition=0,
                pid=1,
                epoch=1,
                restarts=0,
                ready=True,
                link=("127.0.0.1", 0),
                admin=("127.0.0.1", 1),
                bind=self.bind,
            )
        ]


Rigged = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def rigged(tmp_path: Path) -> AsyncIterator[Rigged]:
    """Make a node with these options."""
    made: list[Rig] = []

    async def make(**options: Any) -> Rig:
        rig = Rig(tmp_path, **options)
        made.append(rig)
        await rig.start()
        return rig

    yield make
    for rig in made:
        await rig.inboxes.close()
        await rig.end()


@pytest.fixture
async def rig(rigged: Rigged) -> Rig:
    """A node with the defaults."""
    return await rigged()


@pytest.fixture
async def beside(rig: Rig, address: muster.testing.Instance, tmp_path: Path) -> AsyncIterator[Beside]:
    """A face before the node."""

    async def found() -> Sequence[Process]:
        return rig.processes

    made = Beside(address, tmp_path, streams_max=20_000)
    secret = str(tmp_path / "cluster.secret")
    told = {"inbox": {"broadcast_days": 30}}
    made.settings = dataclasses.replace(made.settings, nodes=found, cluster_secret_file=secret, told=told)
    made.begin()
    await made.server.start()
    yield made
    for client in made.clients:
        await client.aclose()
    await made.server.stop()

"""A real node of the archive in the test's own loop, on SQLite, beside an instance and an HTTP face."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from muster_server.systems.rooms.archive.asking import Archive
from muster_server.systems.rooms.archive.database.store import SqlStore
from muster_server.systems.rooms.archive.node import ArchiveNode
from muster_server.systems.rooms.archive.options import ArchiveOptions, ArchiveSettings
from muster_server.systems.rooms.archive.records import Store
from muster_server.systems.rooms.archive.shapes import ROLE
from tests.control.players import spec
from tests.http.conftest import Beside, address, eventually
from tests.ports import free_ports
from tests.waiting import PATIENT_S

__all__ = ["address", "eventually"]
SECRET = b"c" * 32


class Rig:
    """One node, which ends and starts again on its file."""

    def __init__(self, folder: Path, where: muster.testing.Instance, database: str = "", **options: Any) -> None:
        (folder / "cluster.secret").write_text(SECRET.hex())
        (folder / "token").write_text("token")
        self.folder, self.where, self.options = folder, where, options
        self.database = database or f"sqlite:///{folder / 'archive.db'}"
        self.bind = ("127.0.0.1", free_ports(1)[0])
        self.history_max = 20
        """Limit of the HTTP face before it."""
        self.found: dict[str, int] = {}
        """The rooms that gateways would name, with their members."""
        self.node: ArchiveNode | None = None
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.archive = Archive(lambda: [self.bind], key_of(SECRET))

    async def _find(self) -> Mapping[str, int]:
        return self.found

    async def start(self, around: Callable[[Store], Store] = lambda store: store) -> ArchiveNode:
        """Keep rooms, once the database is open. `around`: puts something between the node and its store."""
        settings = ArchiveSettings(
            folder=str(self.folder),
            database=self.database,
            database_password_file="",
            instance="test",
            options=msgspec.to_builtins(ArchiveOptions(**self.options)),
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
        store = around(SqlStore(location(self.database), "test"))
        self.node = node = ArchiveNode(told, settings, context, store, where=self.where, find=self._find)
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
            self._running = None

    async def kill(self) -> None:
        """End it at once, as far as a task can."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None

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
async def rigged(tmp_path: Path, address: muster.testing.Instance) -> AsyncIterator[Rigged]:
    """Make a node with these options."""
    made: list[Rig] = []

    async def make(**options: Any) -> Rig:
        rig = Rig(tmp_path, address, **options)
        made.append(rig)
        await rig.start()
        return rig

    yield make
    for rig in made:
        await rig.archive.close()
        await rig.end()


@pytest.fixture
async def rig(rigged: Rigged) -> Rig:
    """A node that keeps the rooms of `kept`, and `news`."""
    return await rigged(rooms="kept:*, news", look_ms=100)


@pytest.fixture
async def beside(rig: Rig, address: muster.testing.Instance, tmp_path: Path) -> AsyncIterator[Beside]:
    """A face before the node, with a small memory."""

    async def found() -> Sequence[Process]:
        return rig.processes

    made = Beside(address, tmp_path, history_max=rig.history_max)
    made.settings = dataclasses.replace(
        made.settings, nodes=found, cluster_secret_file=str(tmp_path / "cluster.secret")
    )
    made.begin()
    await made.server.start()
    yield made
    for client in made.clients:
        await client.aclose()
    await made.server.stop()

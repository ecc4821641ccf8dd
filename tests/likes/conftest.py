"""A node of likes in the test's own loop, and the HTTP face beside it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

from muster_server._engines import LikesEngine
from muster_server.control.cluster.instance import Process
from muster_server.plane.systems import actions
from muster_server.plane.trust import Trust
from muster_server.systems.http import keys
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.server import HttpFace, Serving
from muster_server.systems.likes import routes
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.listener import Listener
from muster_server.systems.likes.reach import Reach
from tests.waiting import PATIENT_S

SEGMENT_BYTES = 8 << 20


class Node:
    """Serves on a port that stays its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0

    async def start(self) -> None:
        self.engine = LikesEngine(folder=str(self.folder), segment_bytes=SEGMENT_BYTES)
        self.listener = Listener(self.engine, 1_000)
        _, self.port = self.listener.start(("127.0.0.1", self.port), None)

    async def end(self) -> None:
        await self.listener.drain(1.0)
        self.listener.close()
        self.engine.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "log")
    await made.start()
    yield made
    with contextlib.suppress(ValueError, RuntimeError):
        await made.end()


@pytest.fixture
async def likes(node: Node) -> AsyncIterator[Likes]:
    async with Likes(Reach([("127.0.0.1", node.port)])) as client:
        yield client


class Face:
    """The HTTP face beside that node."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.keys_file = folder / "http-keys.json"
        self.nodes = [node]
        settings = Serving(
            options=HttpOptions(),
            bind=("127.0.0.1", 0),
            keys_file=self.keys_file,
            trust=Trust(),
            where=str(folder / "nowhere"),
            nodes=self._nodes,
            version="0",
        )
        self.server = HttpFace(settings, structlog.get_logger())

    async def _nodes(self) -> Sequence[Process]:
        return [
            Process(
                name="likes",
                role="likes",
                node=1,
                partition=0,
                pid=0,
                epoch=1,
                restarts=0,
                ready=True,
                link=("127.0.0.1", 0),
                admin=("127.0.0.1", 0),
                bind=("127.0.0.1", node.port),
            )
            for node in self.nodes
        ]

    def client(self, *scopes: str) -> httpx2.AsyncClient:
        """A client with a key of these scopes."""
        known = {action.name: action.text for action in actions().values()}
        made = len(keys.read(self.keys_file).keys)
        _, secret = keys.create(self.keys_file, f"key-{made}", scopes, known)
        self.server.reload(Trust())
        headers = {"x-api-key": secret}
        return httpx2.AsyncClient(
            base_url=self.server.url, headers=headers, timeout=PATIENT_S, trust_env=False, verify=False
        )


@pytest.fixture
async def face(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Face]:
    monkeypatch.setattr(routes, "LOOK_S", PATIENT_S)  # the node shares this process, and may be slow
    made = Face(node, tmp_path)
    await made.server.start()
    yield made
    await made.server.stop()
    await asyncio.sleep(0)


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem that an answer is."""
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["code"]) == (status, code), document
    return document

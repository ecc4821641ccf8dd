"""A real instance in the test's own loop, the HTTP face beside it, and a client that speaks to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
import uvloop

import muster.testing
from muster_server.control.cluster.instance import Process
from muster_server.plane.systems import actions
from muster_server.plane.trust import Trust
from muster_server.systems.http import keys
from muster_server.systems.http.face import Where
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.server import HttpFace, Serving
from tests.waiting import PATIENT_S

SECRET = b"s" * 32
COMMAND_RATE = 1_000


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """As processes run."""
    return {"uvloop": uvloop.Loop}


async def until_refused(ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """Ask again until a limit refuses it: a machine that stands still for a moment lets more pass."""
    async with asyncio.timeout(PATIENT_S):
        while (answer := await ask()).status_code != 429:
            pass
    return answer


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = PATIENT_S) -> None:
    """Ask again until it holds."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - what is asked is a server
            await asyncio.sleep(0.02)


async def no_nodes() -> Sequence[Process]:
    """Of an instance whose roles have no admin port."""
    return []


class Beside:
    """One HTTP face beside an instance."""

    def __init__(self, where: Where, folder: Path, **options: Any) -> None:
        self.keys_file = folder / "http-keys.json"
        self.settings = Serving(
            options=HttpOptions(**options),
            bind=("127.0.0.1", 0),
            keys_file=self.keys_file,
            trust=Trust((SECRET,)),
            where=where,
            nodes=no_nodes,
            version="0",
        )
        self.clients: list[httpx2.AsyncClient] = []
        self.begin()

    def begin(self) -> None:
        """Make the face of the settings as they are now."""
        self.server = HttpFace(self.settings, structlog.get_logger())

    def key(self, *scopes: str, name: str = "") -> str:
        """A new key, in force at once."""
        known = {action.name: action.text for action in actions().values()}
        count = len(keys.read(self.keys_file).keys)
        _, secret = keys.create(self.keys_file, name or f"key-{count}", scopes, known)
        self.server.reload(Trust((SECRET,)))
        return secret

    def client(self, *scopes: str, token: str = "", **options: Any) -> httpx2.AsyncClient:
        """A client with a key of these scopes, or with a user's token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if scopes:
            headers = {"x-api-key": self.key(*scopes)}
        made = httpx2.AsyncClient(
            base_url=self.server.url, headers=headers, timeout=PATIENT_S, trust_env=False, verify=False, **options
        )
        self.clients.append(made)
        return made


Make = Callable[..., Awaitable[Beside]]


@pytest.fixture
async def address() -> AsyncIterator[muster.testing.Instance]:
    """An instance of this test alone, whose users are those of `token`."""
    async with muster.testing.instance(command_rate=COMMAND_RATE, command_burst=COMMAND_RATE) as running:
        yield running


@pytest.fixture
async def make(address: muster.testing.Instance, tmp_path: Path) -> AsyncIterator[Make]:
    """Start a face with these options."""
    async with contextlib.AsyncExitStack() as stack:

        async def made(**options: Any) -> Beside:
            beside = Beside(address, tmp_path, **options)
            await beside.server.start()
            stack.push_async_callback(beside.server.stop)
            stack.push_async_callback(_close, beside)
            return beside

        yield made


async def _close(beside: Beside) -> None:
    for client in beside.clients:
        await client.aclose()

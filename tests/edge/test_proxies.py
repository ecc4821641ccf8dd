"""The recipes of `docs/edge.md` for nginx and HAProxy, run by the real programs in front of an edge."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.certificates import certificates
from tests.documents import ROOT, fenced
from tests.edge.python_watcher import Watcher, watching
from tests.edge.served import Served
from tests.ports import free_ports
from tests.waiting import PATIENT_S, until_asked

PAGE: Final = (ROOT / "docs" / "edge.md").read_text()
SYSTEM: Final = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
NGINX: Final = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
{recipe}
    }}
}}
"""


def program(name: str) -> str:
    """The program. Skips if it is missing, and fails where nothing may be."""
    found = shutil.which(name, path=SYSTEM)
    mend = f"needs {name}; to install it: apt-get install --no-install-recommends {name}"
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(mend)
    if found is None:
        pytest.skip(mend)
    return found


@contextlib.asynccontextmanager
async def running(words: list[str], port: int) -> AsyncIterator[None]:
    """A proxy that listens, and its end."""
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(PATIENT_S):
            while not await _listens(port):
                assert process.returncode is None, words
                await asyncio.sleep(0.02)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def nginx(folder: Path, served: Served, timeout: str = "60s") -> tuple[list[str], int]:
    """The command that runs the recipe, and its port. `timeout` in place of the recipe's."""
    (recipe,) = fenced(PAGE, "nginx")
    host, edge = served.address
    assert "127.0.0.1:7450" in recipe
    assert "proxy_read_timeout 60s" in recipe
    recipe = recipe.replace("127.0.0.1:7450", f"{host}:{edge}").replace("_timeout 60s", f"_timeout {timeout}")
    (port,) = free_ports(1)
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port, recipe=recipe))
    return [program("nginx"), "-p", str(folder), "-c", str(file)], port


def haproxy(folder: Path, served: Served) -> tuple[list[str], int]:
    """The command that runs the recipe, and its port."""
    (recipe,) = fenced(PAGE, "haproxy")
    certificates(folder)
    pem = folder / "site.pem"
    pem.write_text((folder / "server.pem").read_text() + (folder / "server.key").read_text())
    host, edge = served.address
    (port,) = free_ports(1)
    recipe, files = re.subn(r"bind :443 ssl crt \S+", f"bind 127.0.0.1:{port} ssl crt {pem}", recipe)
    recipe, first = re.subn(r"10\.0\.0\.1:7450", f"{host}:{edge}", recipe)
    recipe, second = re.subn(r"10\.0\.0\.2:7450", f"127.0.0.1:{free_ports(1)[0]}", recipe)  # an edge that is down
    assert (files, first, second) == (1, 1, 1)
    file = folder / "haproxy.cfg"
    file.write_text(recipe)
    return [program("haproxy"), "-db", "-f", str(file)], port


class Backend:
    """Publishes numbers to one room."""

    def __init__(self, served: Served, room: str) -> None:
        self._url, self._key, self._room = f"{served.http}/api/publish", served.key("publish:*"), room
        self.said: list[int] = []

    async def say(self, count: int = 1) -> None:
        """So many more."""
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=PATIENT_S) as client:
            for _ in range(count):
                n = len(self.said)
                answer = await client.post(
                    self._url, json={"channel": self._room, "data": n}, headers={"x-api-key": self._key}
                )
                assert "result" in answer.json(), answer.text
                self.said.append(n)


def pongs(served: Served) -> float:
    """Messages of clients, which are pongs while they do nothing."""
    return served.instance.metrics("edge")["connections_messages_received"]


async def gets_all(watcher: Watcher, backend: Backend) -> None:
    """It has every message once, and each new subscription went on where the former one ended."""
    await watcher.until(lambda: len(watcher.data) >= len(backend.said))
    assert watcher.data == backend.said
    assert [each["recovered"] for each in watcher.all("subscribed")[1:] if each["was"]] == [
        True for each in watcher.all("subscribed")[1:]
    ]


async def test_a_restart_of_nginx_loses_nothing(served: Served, tmp_path: Path) -> None:
    words, port = nginx(tmp_path, served)
    backend = Backend(served, "proxied:nginx")
    async with contextlib.AsyncExitStack() as stack:
        async with running(words, port):
            url = f"ws://127.0.0.1:{port}/connection/websocket"
            watcher = await stack.enter_async_context(watching(url, served.token("7"), "proxied:nginx"))
            await backend.say(3)
            await gets_all(watcher, backend)
        await watcher.until(lambda: len(watcher.all("subscribing")) == 2)
        await backend.say(3)
        async with running(words, port):
            await watcher.until(lambda: len(watcher.all("subscribed")) == 2)
            await backend.say(3)
            await gets_all(watcher, backend)
    assert len(watcher.all("subscribing")) == 2


async def test_nginx_keeps_what_is_pinged_more_often_than_it_cuts(served: Served, tmp_path: Path) -> None:
    words, port = nginx(tmp_path, served, timeout="3s")
    backend = Backend(served, "proxied:pinged")
    url = f"ws://127.0.0.1:{port}/connection/websocket"
    async with running(words, port), watching(url, served.token("7"), "proxied:pinged") as watcher:
        before = pongs(served)
        await until_asked(lambda: pongs(served) >= before + 5)
        await backend.say()
        await gets_all(watcher, backend)
        assert len(watcher.all("subscribing")) == 1


async def test_a_client_that_nginx_cuts_as_idle_comes_back_without_a_loss(served: Served, tmp_path: Path) -> None:
    words, port = nginx(tmp_path, served, timeout="300ms")  # below the ping of this edge
    backend = Backend(served, "proxied:idle")
    url = f"ws://127.0.0.1:{port}/connection/websocket"
    async with running(words, port), watching(url, served.token("7"), "proxied:idle") as watcher:
        await backend.say()
        await watcher.until(lambda: len(watcher.all("subscribing")) >= 3)
        await backend.say(3)
        await gets_all(watcher, backend)


async def test_haproxy_speaks_tls_and_chooses_an_edge_that_runs(served: Served, tmp_path: Path) -> None:
    words, port = haproxy(tmp_path, served)
    backend = Backend(served, "proxied:haproxy")
    url = f"wss://127.0.0.1:{port}/connection/websocket"
    async with running(words, port):
        authority = str(tmp_path / "ca.pem")
        async with watching(url, served.token("7"), "proxied:haproxy", authority) as watcher:
            await backend.say(3)
            await gets_all(watcher, backend)

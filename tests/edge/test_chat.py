"""The server of the chat: its files, tokens, the way to an edge, and strangers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import msgspec
import pytest

from muster_server.control.cluster.instance import Folder
from muster_server.control.config.load import load
from muster_server.control.config.options import UP
from muster_server.systems.edge.chat import server
from tests.edge import sdks
from tests.waiting import PATIENT_S

HERE = Path(server.__file__).parent
SECRET = "s" * 32


class Visitor:
    """Speaks to one server."""

    def __init__(self, url: str) -> None:
        self.host, _, port = url.removeprefix("http://").removesuffix("/").partition(":")
        self.port = int(port)

    async def ask(self, path: str, *, method: str = "GET", host: str = "") -> tuple[int, bytes]:
        """The status and the body of one request."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host or f'{self.host}:{self.port}'}\r\n\r\n".encode())
        async with asyncio.timeout(PATIENT_S):
            answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    """The page of a server whose instance does not run."""
    secret = tmp_path / "jwt"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    file = tmp_path / "muster.toml"
    file.write_text(f'[cluster]\njwt_secret_file = "{secret}"\n')
    async with server.served(load(file, profile=UP).config, Folder(tmp_path / "instance")) as url:
        yield Visitor(url)


def test_every_file_of_the_folder_has_its_media_type() -> None:
    assert {file.name for file in HERE.iterdir() if file.suffix in {".html", ".js"}} == set(server.FILES)


def test_the_sdk_is_the_one_of_npm_with_its_licence() -> None:
    sdks.need("js")
    package = sdks.SDKS / "js" / "node_modules" / "centrifuge"
    assert (HERE / "centrifuge.js").read_bytes() == (package / "dist" / "centrifuge.js").read_bytes()
    assert (HERE / "centrifuge.LICENSE").read_bytes() == (package / "LICENSE").read_bytes()


def test_its_pages_load_nothing_from_elsewhere() -> None:
    for name in ("index.html", "tabs.html", "worker.js"):
        text = (HERE / name).read_text()
        assert "https://" not in text
        assert "http://" not in text


async def test_a_visitor_gets_the_files(visitor: Visitor) -> None:
    assert await visitor.ask("/") == (200, (HERE / "index.html").read_bytes())
    for name in server.FILES:
        assert await visitor.ask(f"/{name}") == (200, (HERE / name).read_bytes())


@pytest.mark.parametrize("path", ["/server.py", "/../server.py", "/centrifuge.LICENSE", "//index.html", "/chat/"])
async def test_there_is_nothing_else(visitor: Visitor, path: str) -> None:
    assert (await visitor.ask(path))[0] == 404


async def test_a_visitor_gets_a_token_of_its_user(visitor: Visitor) -> None:
    status, body = await visitor.ask("/token?user=4711")
    said = msgspec.json.decode(body)
    claims = jwt.decode(said["token"], SECRET.encode(), algorithms=["HS256"])
    assert (status, said["user"], claims["sub"]) == (200, "4711", "4711")
    assert set(claims["cap"]) == {"chat:*", "default:demo"}


@pytest.mark.parametrize("user", ["", "1", "0", "-7", "x", "9" * 30])
async def test_any_other_name_draws_a_new_user(visitor: Visitor, user: str) -> None:
    said = msgspec.json.decode((await visitor.ask(f"/token?user={user}"))[1])
    assert said["user"] != user
    assert int(said["user"]) > 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", "localhost.evil.example", "["])
async def test_a_foreign_name_that_points_here_gets_nothing(visitor: Visitor, host: str) -> None:
    for path in ("/token", "/", "/connection/websocket"):
        assert (await visitor.ask(path, host=host))[0] == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:7", "[::1]:8080"])
async def test_a_name_of_this_machine_is_known(visitor: Visitor, host: str) -> None:
    assert (await visitor.ask("/", host=host))[0] == 200


async def test_what_is_no_get_request_is_refused(visitor: Visitor) -> None:
    assert (await visitor.ask("/", method="POST"))[0] == 400
    assert (await visitor.ask("/ x", method="GET"))[0] == 400


async def test_a_head_without_an_end_costs_a_bounded_time_and_memory(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    for beginning in (b"GET / HTTP/1.1\r\n", b"x" * 100_000):
        reader, writer = await asyncio.open_connection(visitor.host, visitor.port)
        writer.write(beginning)
        async with asyncio.timeout(PATIENT_S):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_too_many_connections_are_closed(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "VISITORS_MAX", 1)
    connected = [await asyncio.open_connection(visitor.host, visitor.port) for _ in range(2)]
    async with asyncio.timeout(PATIENT_S):
        assert await connected[1][0].read() == b""
    for _, writer in connected:
        writer.close()


async def test_without_an_edge_a_page_is_told_so(visitor: Visitor) -> None:
    assert (await visitor.ask("/connection/websocket"))[0] == 503

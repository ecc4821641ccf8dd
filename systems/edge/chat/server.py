"""The server of the chat on `muster up --demo`: its files, tokens for its visitors, and the way to the edge.

Owns one listener on loopback, so that pages and WebSocket have one origin and nothing has to be configured. It must not know
the client protocol: bytes of a WebSocket pass as they are.
"""

import asyncio
import contextlib
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from muster_server.control.cluster import instance, specs
from muster_server.control.cluster.instance import Folder
from muster_server.control.config.options import Config
from muster_server.control.errors import UserError
from muster_server.plane.auth import mint
from muster_server.systems.edge.options import EdgeOptions

FILES: Final[Mapping[str, str]] = {
    "index.html": "text/html; charset=utf-8",
    "tabs.html": "text/html; charset=utf-8",
    "worker.js": "text/javascript; charset=utf-8",
    "centrifuge.js": "text/javascript; charset=utf-8",
}
"""The files of this folder that visitors get, with their media types."""
WEBSOCKET: Final = "/connection/websocket"
CAP: Final = [
    ("chat:*", ["read", "publish", "history", "members"]),
    ("default:demo", ["read", "publish", "history", "members"]),
]
"""Rights of a visitor."""
TOKEN_S: Final = 600.0
HEAD_BYTES_MAX: Final = 8_192
HEAD_S: Final = 10.0
VISITORS_MAX: Final = 256
"""Connections at once; further ones are closed at once. A browser opens some at a time."""
CHUNK_BYTES: Final = 65_536
NAME: Final = re.compile(r"[1-9][0-9]{0,8}")
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


class Head(NamedTuple):
    """The head of a request, which passes on as it came."""

    raw: bytes
    path: str
    query: Mapping[str, list[str]]
    host: str


class Chat:
    """Serves visitors of one instance."""

    def __init__(self, config: Config, folder: Folder) -> None:
        self._config, self._folder = config, folder
        self._visitors: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: a request, or a WebSocket to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._visitors.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return  # the browser has gone, or is none
        finally:
            self._visitors.discard(task)
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._visitors:
            task.cancel()
        await asyncio.gather(*self._visitors, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visitors) > VISITORS_MAX:
            return None
        async with asyncio.timeout(HEAD_S):
            head = _head(await reader.readuntil(b"\r\n\r\n"))
        if head is None:
            return await _answer(writer, 400, b"no GET request\n")
        if not _is_local(head.host):
            return await _answer(writer, 421, b"this server is for browsers on the same machine\n")
        if head.path == WEBSOCKET:
            return await self._relay(head, reader, writer)
        if head.path == "/token":
            return await self._token(head, writer)
        name = head.path.removeprefix("/") or "index.html"
        if name not in FILES:
            return await _answer(writer, 404, b"not found\n")
        return await _answer(writer, 200, resources.files(__package__).joinpath(name).read_bytes(), FILES[name])

    async def _token(self, head: Head, writer: asyncio.StreamWriter) -> None:
        """A token for the user that the page names, or for a new one."""
        asked = head.query.get("user", [""])[0]
        user = asked if NAME.fullmatch(asked) and asked != "1" else str(2 + secrets.randbelow(998))
        secret = specs.signing_secret(self._config)
        said = {"user": user, "token": mint(secret, user, ["read"], time.time(), TOKEN_S, CAP)}
        await _answer(writer, 200, msgspec.json.encode(said), "application/json")

    async def _relay(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a WebSocket to the edge, until one of both ends."""
        address = self._edge()
        if address is None:
            return await _answer(writer, 503, b"the edge does not run yet\n")
        try:
            there, to = await asyncio.open_connection(*address, ssl=self._tls())
        except OSError as error:
            return await _answer(writer, 503, f"the edge does not answer: {error}\n".encode())
        try:
            to.write(head.raw)
            pumps = [asyncio.create_task(_pump(reader, to)), asyncio.create_task(_pump(there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            to.close()

    def _edge(self) -> tuple[str, int] | None:
        try:
            processes = instance.find(self._folder).processes
        except UserError:
            return None
        return next((each.bind for each in processes if each.role == "edge" and each.bind), None)

    def _tls(self) -> ssl.SSLContext | None:
        """Trusts the edge's own certificate, whatever name it has: the edge is on this machine."""
        options: EdgeOptions = self._config.section("edge")
        if not options.tls_cert_file:
            return None
        context = ssl.create_default_context(cafile=options.tls_cert_file)
        context.check_hostname = False
        context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may have no certificate of an authority
        return context


@contextlib.asynccontextmanager
async def served(config: Config, folder: Folder) -> AsyncIterator[str]:
    """As `System.page`: serve the chat on a free port of loopback while the block lasts."""
    chat = Chat(config, folder)
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/"
    finally:
        server.close()
        await chat.close()


def _head(raw: bytes) -> Head | None:
    """The head of a GET request; None: it is none."""
    line, *fields = raw.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[0] != "GET":
        return None
    named = dict(field.split(":", 1) for field in fields if ":" in field)
    host = next((value.strip() for name, value in named.items() if name.lower() == "host"), "")
    path, _, query = words[1].partition("?")
    return Head(raw, path, parse_qs(query), host)


def _is_local(host: str) -> bool:
    """Whether a Host header is one of this machine: the page of a foreign name that points here gets no token."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "text/plain") -> None:
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()

"""The questions that a node of the system answers to others: named, over HTTP/1.1, each with a body in MessagePack.

Owns the port, the check of the credential that programs of the cluster share, and the limits of a request. A stranger
gets one answer without a body (I-9). It must not know the meaning of questions.
"""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
import uvicorn

from muster_server.control.errors import UserError
from muster_server.control.node.admin import HttpServer
from muster_server.systems.messages.refusal import LENGTH_BYTES, Refusal

BODY_BYTES_MAX: Final = 64 << 20
"""Limit of a body: a batch of 1,000 messages of 64 KB."""
BACKLOG: Final = 256

Scope = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: the type of its body, and the function that answers it; a stream is answered in pieces."""

    kind: Any
    answer: Callable[[Any], Awaitable[Any]] | None = None
    pieces: Callable[[Any], AsyncIterator[Any]] | None = None
    waits: bool = False
    """The answer may take its time: it is cancelled once its asker is gone."""


class Listener:
    """Call `start`, then `end`."""

    def __init__(
        self,
        bind: tuple[str, int],
        token: bytes,
        questions: Mapping[str, Question],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._bind, self._log = bind, log
        self._credential = b"Bearer " + token
        self._questions = {f"/{name}": question for name, question in questions.items()}
        self._decoders = {path: msgspec.msgpack.Decoder(each.kind) for path, each in self._questions.items()}
        self._encoder = msgspec.msgpack.Encoder()
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address = bind
        self.asked = 0
        self.refused = 0
        """Number of requests of strangers, and malformed ones."""

    async def start(self) -> None:
        """Listen. Raises `UserError` if the port is in use."""
        host, port = self._bind
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(f"{host}:{port}: {error.strerror}; set another address") from None
        self.address = host, int(listening.getsockname()[1])
        self._server = HttpServer(
            uvicorn.Config(
                self,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                interface="asgi3",
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=2,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def end(self) -> None:
        """Answer the requests in progress, and close."""
        if self._server is not None and self._serving is not None:
            self._server.end()
            await self._serving

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        credential = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        question = self._questions.get(scope["path"])
        if not hmac.compare_digest(credential, self._credential) or question is None or scope["method"] != "POST":
            self.refused += 1
            await _say(send, 401 if question is not None else 404, b"", close=True)
            return
        body = await _body(receive)
        if body is None:
            self.refused += 1
            await _say(send, 413, b"", close=True)
            return
        self.asked += 1
        try:
            asked = self._decoders[scope["path"]].decode(body)
            if question.pieces is not None:
                await self._stream(question.pieces(asked), receive, send)
                return
            assert question.answer is not None
            answered = question.answer(asked)
            if question.waits:
                said = await _unless_gone(answered, receive)
                if said is None:
                    return
                (found,) = said
            else:
                found = await answered
            answer = self._encoder.encode(found)
        except msgspec.MsgspecError as error:
            self.refused += 1
            await _say(send, 400, self._encoder.encode(["bad_request", str(error)]))
        except Refusal as refusal:
            await _say(send, 409, self._encoder.encode([refusal.code, refusal.detail]))
        except Exception as error:
            self._log.error("a question failed", question=scope["path"], exc_info=error)
            await _say(send, 500, self._encoder.encode(["internal", "internal error; see the log of the node"]))
        else:
            await _say(send, 200, answer)

    async def _stream(self, pieces: AsyncIterator[Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Send pieces until they end or the peer closes."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        tasks = [asyncio.create_task(each) for each in (self._pump(pieces, send), _gone(receive))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _pump(self, pieces: AsyncIterator[Any], send: Any) -> None:
        async with contextlib.aclosing(pieces) as each:  # type: ignore[type-var]
            async for piece in each:
                encoded = self._encoder.encode(piece)
                framed = len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded
                await send({"type": "http.response.body", "body": framed, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _unless_gone(answer: Awaitable[Any], receive: Callable[[], Awaitable[Any]]) -> tuple[Any] | None:
    """The answer; None: its asker is gone, and it was cancelled."""
    answering, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        return (answering.result(),) if answering.done() else None
    finally:
        for task in (answering, gone):
            task.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Callable[[], Awaitable[Any]]) -> bytes | None:
    """The body; None if it is too long or its peer has closed."""
    chunks: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        length += len(message["body"])
        if length > BODY_BYTES_MAX:
            return None
        chunks.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _say(send: Any, status: int, body: bytes, *, close: bool = False) -> None:
    headers: Sequence[tuple[bytes, bytes]] = [(b"content-length", str(len(body)).encode())]
    if close:
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

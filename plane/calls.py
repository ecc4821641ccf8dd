"""Requests between processes, and from commands: frames of MessagePack over TCP, or over a Unix socket on one machine.

Owns frames, the proof that both ends know the cluster's secret, and the life of a connection. It must not know the
content of requests: they are tagged structs, each served by a function. Nothing of a peer is decoded before it has
proved the secret. Nothing is encrypted, so an untrusted network needs a tunnel. A request gets one reply, or several
and an end.
"""

import asyncio
import contextlib
import hmac
import secrets
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from muster_server.plane.sockets import address, listen

FRAME_BYTES_MAX: Final = 256 << 20  # a snapshot of a million clients has about 200 MB
NONCE: Final = 32
PROOF_S: Final = 5.0
SILENT_S: Final = 5.0
"""After a request without a reply, a connection on which nothing came for this many seconds gets no further request."""
OPEN_MAX: Final = 4_096  # limit of concurrent requests of one connection; as many may wait for messages to lease
BUSY: Final = "too many concurrent requests on this connection"
ITEMS_MAX: Final = 1_024  # limit of replies that wait for the asking end; a slower reader is disconnected
_LENGTH: Final = struct.Struct("!I")
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Kind = Literal["ask", "item", "end", "error", "drop"]
A = TypeVar("A")
Body = msgspec.Raw | bytes


class CallError(Exception):
    """A request failed. `code`: `away` (no connection), `late` (no reply in time), `slow` (replies come faster than they
    are read), `reply` (a malformed reply), `too_long` (a request or a reply), or the other end's code: `question` (not
    understood), `busy`, `internal`, or one of its own. `maybe_done`: the request was sent, and may have been carried out.
    The text is one line."""

    def __init__(self, code: str, text: str, *, maybe_done: bool = False) -> None:
        super().__init__(text)
        self.code, self.maybe_done = code, maybe_done


class Frame(msgspec.Struct, frozen=True, array_like=True):
    number: int
    kind: Kind
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


_KINDS: Final[dict[bytes, Kind]] = {name.encode(): name for name in get_args(Kind)}
_errors: Final = msgspec.msgpack.Decoder(tuple[str, str])
_encode: Final = msgspec.msgpack.Encoder().encode

Serve = Callable[[Any], Awaitable[Any] | AsyncIterator[Any]]
"""Serves a request: returns one reply, or yields several (a generator). It is cancelled once its asking end is gone."""


def key_of(secret: bytes) -> bytes:
    """The key of these connections, derived from the cluster's secret."""
    return blake2b(secret, digest_size=32, person=b"muster calls").digest()


LOCAL: Final = key_of(b"")
"""The key of Unix sockets, which the kernel keeps for their user: the proof shows that both ends speak this protocol."""
Address = tuple[str, int] | Path
"""Host and port, or the file of a Unix socket."""


class Server:
    """Serves requests at one address, from `start` to `stop`."""

    def __init__(self, key: bytes, questions: Mapping[type[msgspec.Struct], Serve]) -> None:
        self.refused = 0
        """Connections that did not prove the secret."""
        self.asked = 0
        self._key, self._serve = key, dict(questions)
        self._decoder = msgspec.msgpack.Decoder(_union(list(questions)))
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        """Requests in progress that have one reply."""
        self._ending = False
        self._file = contextlib.ExitStack()

    async def start(self, host: str, port: int) -> None:
        """Raises `OSError` when the address is taken."""
        self._server = await asyncio.start_server(self._accept, host, port)

    async def start_at(self, file: Path) -> None:
        """Serve this user at a Unix socket, which replaces that of a dead process. Raises `OSError`."""
        listening = self._file.enter_context(listen(file))
        self._server = await asyncio.start_unix_server(self._accept, sock=listening)

    @property
    def port(self) -> int:
        """The port that it listens on, from `start` on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self, finish_s: float = 0.0) -> None:
        """Refuse further requests, wait up to `finish_s` seconds for those in progress that have one reply, and close."""
        self._ending = True
        if self._server is not None:
            self._server.close()
        self._file.close()
        if self._finishing and finish_s > 0.0:
            await asyncio.wait(self._finishing, timeout=finish_s)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError, CallError, *_MALFORMED):
            pass  # the peer closed, or is not a Muster process
        except asyncio.CancelledError:
            pass  # by `stop`, which waits for it; asyncio would log it as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = secrets.token_bytes(NONCE)
        _send(writer, mine)
        try:
            async with asyncio.timeout(PROOF_S):
                theirs = await reader.readexactly(2 * NONCE)
        except (TimeoutError, asyncio.IncompleteReadError):
            self.refused += 1
            return
        if not hmac.compare_digest(theirs[NONCE:], _proof(self._key, b"asks", mine, theirs[:NONCE])):
            self.refused += 1
            return
        _send(writer, _proof(self._key, b"serves", mine, theirs[:NONCE]))
        running: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                frame = await _read(reader)
                if frame.kind == "drop":
                    if task := running.pop(frame.number, None):
                        task.cancel()
                elif frame.kind == "ask":
                    if frame.number in running:
                        raise CallError("question", f"the number {frame.number} is in use")
                    if self._ending:
                        _write(writer, frame.number, ("error", ("away", "the node is ending")))
                        continue
                    if len(running) >= OPEN_MAX:
                        _write(writer, frame.number, ("error", ("busy", BUSY)))
                        continue
                    task = asyncio.create_task(self._answer(frame, writer))
                    running[frame.number] = task
                    task.add_done_callback(lambda _, number=frame.number: running.pop(number, None))  # type: ignore[misc]
        finally:
            for task in list(running.values()):
                task.cancel()

    async def _answer(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        question: msgspec.Struct | None = None
        try:
            question = self._decoder.decode(frame.body)
            answer = self._serve[type(question)](question)
            if isinstance(answer, AsyncIterator):
                async with contextlib.aclosing(answer):  # type: ignore[type-var]
                    async for each in answer:
                        _write(writer, frame.number, ("item", each))
                        await writer.drain()
                _write(writer, frame.number, ("end", None))
            else:
                await self._reply(frame.number, answer, writer)
            await writer.drain()
        except CallError as error:
            _write(writer, frame.number, ("error", (error.code, str(error))))
        except _MALFORMED as error:
            _write(writer, frame.number, ("error", ("question", str(error))))
        except Exception as error:
            if isinstance(error, OSError) and writer.is_closing():  # the asking end is gone
                return
            _write(writer, frame.number, ("error", ("internal", "internal error; see the log of the node")))
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a request failed: {type(question).__name__}", "exception": error}
            )

    async def _reply(self, number: int, answer: Awaitable[Any], writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._finishing.add(task)
        try:
            reply = await answer
            _write(writer, number, ("item", reply), ("end", None))  # one call of the kernel, one wake-up
        finally:
            self._finishing.discard(task)


class Peer:
    """The asking end. It connects for the first request, and again after a loss; all requests share one connection."""

    def __init__(self, address: Address, key: bytes) -> None:
        self.address = address
        self._key = key
        self._connection: _Connection | None = None
        """The one for further requests."""
        self._connections: set[_Connection] = set()
        self._connecting: asyncio.Task[_Connection] | None = None

    async def ask(self, question: msgspec.Struct, answer: type[A], seconds: float) -> A:
        """Send a request; return its reply. Raises `CallError`."""
        replies: _Replies | None = None
        try:
            async with asyncio.timeout(seconds):
                replies = await self._send(question)
                body = await replies.next()
        except TimeoutError:
            raise self._late(f"did not reply within {seconds:g} s", replies) from None
        finally:
            if replies is not None:
                replies.close()
        if body is None:
            raise CallError("reply", f"{self._where} sent no reply", maybe_done=True)
        return self._decoded(body, answer)

    async def stream(
        self, question: msgspec.Struct, answer: type[A], stall_s: float | None = None
    ) -> AsyncGenerator[A]:
        """Send a request; yield its replies. `stall_s`: longest time without one. Raises `CallError`."""
        replies = await self._send(question)
        try:
            while True:
                async with asyncio.timeout(stall_s):
                    body = await replies.next()
                if body is None:
                    return
                yield self._decoded(body, answer)
        except TimeoutError:
            raise self._late(f"sent nothing for {stall_s:g} s", replies) from None
        finally:
            replies.close()

    async def close(self) -> None:
        """Close the connection at once: requests in progress fail."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await asyncio.gather(*(each.close() for each in list(self._connections)))

    def leave(self) -> None:
        """Close the connection after the last reply of the requests in progress."""
        if self._connection is not None:
            self._connection.leave()
            self._connection = None

    @property
    def _where(self) -> str:
        return str(self.address) if isinstance(self.address, Path) else f"{self.address[0]}:{self.address[1]}"

    async def _send(self, question: msgspec.Struct) -> "_Replies":
        if self._connection is None or not self._connection.open:
            if self._connecting is None:  # all requests wait for one attempt, and share its failure
                self._connecting = asyncio.create_task(self._connected())
                self._connecting.add_done_callback(self._attempted)
            attempt = self._connecting
            await asyncio.wait([attempt])
            if attempt.cancelled():
                raise CallError("away", f"{self._where}: the connection is closed")
            return attempt.result().send(question)
        return self._connection.send(question)

    def _attempted(self, attempt: "asyncio.Task[_Connection]") -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._connection = attempt.result()
            self._connections.add(self._connection)
            self._connection.ended.add_done_callback(lambda _, gone=self._connection: self._connections.discard(gone))  # type: ignore[misc]

    def _late(self, text: str, replies: "_Replies | None") -> CallError:
        """A connection whose other end is silent gets no further request: it may be gone without a word."""
        if replies is not None and replies.connection is self._connection and replies.silent_s() >= SILENT_S:
            self.leave()
        return CallError("late", f"{self._where} {text}", maybe_done=replies is not None)

    def _decoded(self, body: Body, answer: type[A]) -> A:
        try:
            return msgspec.msgpack.decode(body, type=answer)
        except _MALFORMED as error:
            raise CallError("reply", f"{self._where} sent a malformed reply: {error}", maybe_done=True) from None

    async def _connected(self) -> "_Connection":
        try:
            async with asyncio.timeout(PROOF_S):
                return _Connection(self._where, *await self._proven())
        except TimeoutError:
            text = f"no connection within {PROOF_S:g} s; it has stalled, or its release has another protocol"
        except asyncio.IncompleteReadError:
            text = "it ended the connection; the ends have different secrets, or releases with different protocols"
        except OSError as error:
            text = str(error) or type(error).__name__
        raise CallError("away", f"{self._where} does not answer: {text}") from None

    async def _proven(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and prove in both directions that the ends know the secret."""
        reader, writer = await _open(self.address)
        try:
            theirs, mine = await reader.readexactly(NONCE), secrets.token_bytes(NONCE)
            _send(writer, mine + _proof(self._key, b"asks", theirs, mine))
            if not hmac.compare_digest(await reader.readexactly(NONCE), _proof(self._key, b"serves", theirs, mine)):
                raise CallError("away", f"{self._where} has a different cluster secret")
        except BaseException:
            writer.close()
            raise
        return reader, writer


class _Connection:
    """One connection of an asking end, and the requests that wait for replies on it."""

    def __init__(self, where: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._where, self._writer = where, writer
        self._waiting: dict[int, asyncio.Queue[tuple[Kind, Body]]] = {}
        self._last = 0
        self._left = False
        self.clock = asyncio.get_running_loop().time
        self.heard_at = self.clock()
        self.ended = asyncio.create_task(self._read(reader))

    @property
    def open(self) -> bool:
        """Whether it takes requests."""
        return not self._left and not self._writer.is_closing()

    def send(self, question: msgspec.Struct) -> "_Replies":
        """Send a request. Raises `CallError`."""
        if self._writer.is_closing():
            raise CallError("away", f"{self._where} ended the connection")
        self._last += 1
        _write(self._writer, self._last, ("ask", question))
        queue = self._waiting[self._last] = asyncio.Queue(ITEMS_MAX)
        return _Replies(self, self._last, queue)

    async def sent(self) -> None:
        """Wait until the other end takes what was written; a lost connection is reported as a reply."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def end(self, number: int, *, over: bool) -> None:
        """A request waits no more. `over`: its last reply has come."""
        self._waiting.pop(number, None)
        if not over:
            _write(self._writer, number, ("drop", None))
        if self._left and not self._waiting:
            self._writer.close()

    def leave(self) -> None:
        """Close after the last reply."""
        self._left = True
        if not self._waiting:
            self._writer.close()

    async def close(self) -> None:
        """Close at once: requests in progress fail."""
        self.ended.cancel()
        await asyncio.wait([self.ended])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await _read(reader)
                self.heard_at = self.clock()
                queue = self._waiting.get(frame.number)
                if queue is None:
                    continue
                if queue.full():
                    del self._waiting[frame.number]
                    self._fail(queue, "slow", f"{self._where} sends faster than this process reads")
                else:
                    queue.put_nowait((frame.kind, frame.body))
        except (OSError, asyncio.IncompleteReadError, CallError, *_MALFORMED):
            pass
        finally:
            self._writer.close()
            for queue in self._waiting.values():
                self._fail(queue, "away", f"{self._where} ended the connection")
            self._waiting.clear()

    def _fail(self, queue: asyncio.Queue[tuple[Kind, Body]], code: str, text: str) -> None:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(("drop", _encode((code, text))))


class _Replies:
    """The replies of one request. Call `close` once."""

    def __init__(self, connection: _Connection, number: int, queue: asyncio.Queue[tuple[Kind, Body]]) -> None:
        self.connection, self.number, self._queue = connection, number, queue
        self._sent_at = connection.clock()
        self._over = False

    def silent_s(self) -> float:
        """Seconds since the request, or since something came after it."""
        return self.connection.clock() - max(self._sent_at, self.connection.heard_at)

    async def next(self) -> Body | None:
        """The next reply; None: there is no further one. Raises `CallError`."""
        await self.connection.sent()
        kind, body = await self._queue.get()
        if kind == "item":
            return body
        self._over = True
        if kind == "end":
            return None
        try:
            code, text = _errors.decode(body)
        except _MALFORMED:
            code, text = "reply", "the other end sent a malformed error"
        raise CallError(code, text, maybe_done=kind == "drop")

    def close(self) -> None:
        """Stop the request, unless it is over."""
        if not self._over and not self._queue.empty():  # the end of a single reply comes with it
            self._over = self._queue.get_nowait()[0] != "item"
        self.connection.end(self.number, over=self._over)


async def _open(to: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not isinstance(to, Path):
        return await asyncio.open_connection(*to)
    with address(to) as path:
        return await asyncio.open_unix_connection(path)


async def _read(reader: asyncio.StreamReader) -> Frame:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > FRAME_BYTES_MAX:
        raise CallError("question", f"frame too long: {length} bytes")
    return frame_of(await reader.readexactly(length))


def frame_of(data: bytes) -> Frame:
    """Read the head of a frame. Its body, which may have thousands of values, is checked once, when it is decoded. Raises
    `msgspec.DecodeError`."""
    try:
        first, at = data[1], 2
        if 0xCC <= first <= 0xCF:
            at += 1 << first - 0xCC
        number = int.from_bytes(data[2:at], "big") if at > 2 else first
        begin = at + 1
        kind = _KINDS.get(data[begin : begin + data[at] - 0xA0])
        body = data[begin + data[at] - 0xA0 :]
    except IndexError:
        raise msgspec.DecodeError("frame too short") from None
    if data[0] != 0x93 or kind is None or (at == 2 and first > 0x7F) or not body:
        raise msgspec.DecodeError("malformed frame")
    return Frame(number, kind, msgspec.Raw(body))


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write, and ignore the RuntimeError that uvloop raises on a lost connection."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)


def _write(writer: asyncio.StreamWriter, number: int, *frames: tuple[Kind, Any]) -> None:
    """Write frames of one request at once; each is its kind and its body. Raises `CallError` for a body that is too
    long."""
    if writer.is_closing():
        return
    parts: list[bytes] = []
    for kind, body in frames:
        head, content = b"\x93" + _encode(number) + _encode(kind), _encode(body)
        length = len(head) + len(content)
        if length > FRAME_BYTES_MAX:
            name = "request" if kind == "ask" else "reply"
            raise CallError("too_long", f"{name} too long: {length} bytes (limit {FRAME_BYTES_MAX})")
        parts += (_LENGTH.pack(length), head, content)
    writer.write(b"".join(parts))


def _proof(key: bytes, way: bytes, theirs: bytes, mine: bytes) -> bytes:
    return blake2b(way + theirs + mine, key=key, digest_size=NONCE).digest()


def _union(types: list[type[msgspec.Struct]]) -> Any:
    union: Any = types[0]
    for each in types[1:]:
        union = union | each
    return union

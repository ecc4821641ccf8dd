"""Requests between the processes of a system, and from its commands: frames of MessagePack over TCP.

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
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

FRAME_BYTES_MAX: Final = 256 << 20  # a snapshot of a million clients has about 200 MB
NONCE: Final = 32
PROOF_S: Final = 5.0
OPEN_MAX: Final = 1_024  # limit of concurrent requests of one connection
BUSY: Final = "too many concurrent requests on this connection"
ITEMS_MAX: Final = 1_024  # limit of replies that wait for the asking end; a slower reader is disconnected
_LENGTH: Final = struct.Struct("!I")

Kind = Literal["ask", "item", "end", "error", "drop"]
A = TypeVar("A")


class CallError(Exception):
    """A request failed. `code`: `away` (no connection), `late` (no reply in time), or the other end's code. The text is
    one line."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(msgspec.Struct, frozen=True, array_like=True):
    number: int
    kind: Kind
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


_KINDS: Final[dict[bytes, Kind]] = {name.encode(): name for name in get_args(Kind)}
_encode: Final = msgspec.msgpack.Encoder().encode

Serve = Callable[[Any], Awaitable[Any] | AsyncIterator[Any]]
"""Serves a request: returns one reply, or yields several."""


def key_of(secret: bytes) -> bytes:
    """The key of these connections, derived from the cluster's secret."""
    return blake2b(secret, digest_size=32, person=b"muster calls").digest()


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

    async def start(self, host: str, port: int) -> None:
        """Raises `OSError` when the address is taken."""
        self._server = await asyncio.start_server(self._accept, host, port)

    @property
    def port(self) -> int:
        """The port that it listens on, from `start` on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, CallError):
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
        try:
            question = self._decoder.decode(frame.body)
            answer = self._serve[type(question)](question)
            if isinstance(answer, AsyncIterator):
                async for each in answer:
                    _write(writer, frame.number, ("item", each))
                    await writer.drain()
                _write(writer, frame.number, ("end", None))
            else:
                _write(
                    writer, frame.number, ("item", await answer), ("end", None)
                )  # one call of the kernel, one wake-up
            await writer.drain()
        except CallError as error:
            _write(writer, frame.number, ("error", (error.code, str(error))))
        except msgspec.MsgspecError as error:
            _write(writer, frame.number, ("error", ("question", str(error))))


class Peer:
    """The asking end. It connects for the first request, and again after a loss; all requests share one connection."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self.address = address
        self._key = key
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Queue[tuple[Kind, Any]]] = {}
        self._last = 0

    async def ask(self, question: msgspec.Struct, answer: type[A], seconds: float) -> A:
        """Send a request; return its reply. Raises `CallError`."""
        try:
            async with asyncio.timeout(seconds):
                async for each in self.stream(question, answer):
                    return each
        except TimeoutError:
            raise CallError("late", f"{self._where} did not reply within {seconds:g} s") from None
        raise CallError("question", f"{self._where} sent no reply")

    async def stream(self, question: msgspec.Struct, answer: type[A]) -> AsyncGenerator[A]:
        """Send a request; yield its replies. Raises `CallError`."""
        writer = await self._connected()
        self._last += 1
        number = self._last
        queue: asyncio.Queue[tuple[Kind, Any]] = asyncio.Queue(ITEMS_MAX)
        self._waiting[number] = queue
        over = False
        try:
            _write(writer, number, ("ask", question))
            while True:
                kind, body = await queue.get()
                if kind == "item":
                    yield msgspec.msgpack.decode(body, type=answer)
                    continue
                over = True
                if kind == "error":
                    raise CallError(*body if isinstance(body, tuple) else msgspec.msgpack.decode(body))
                return
        finally:
            self._waiting.pop(number, None)
            over = over or (not queue.empty() and queue.get_nowait()[0] in {"end", "error"})
            if not over and not writer.is_closing():
                _write(writer, number, ("drop", None))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    @property
    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is not None and not self._writer.is_closing():
                return self._writer
            try:
                async with asyncio.timeout(PROOF_S):
                    reader, writer = await self._proven()
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                raise CallError(
                    "away", f"{self._where} does not answer: {str(error) or 'no connection in time'}"
                ) from None
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader, writer))
            return writer

    async def _proven(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and prove in both directions that the ends know the secret."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            theirs, mine = await reader.readexactly(NONCE), secrets.token_bytes(NONCE)
            _send(writer, mine + _proof(self._key, b"asks", theirs, mine))
            if not hmac.compare_digest(await reader.readexactly(NONCE), _proof(self._key, b"serves", theirs, mine)):
                raise CallError("away", f"{self._where} has a different cluster secret")
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await _read(reader)
                queue = self._waiting.get(frame.number)
                if queue is None:
                    continue
                if queue.full():
                    del self._waiting[frame.number]
                    with contextlib.suppress(asyncio.QueueEmpty):
                        queue.get_nowait()
                    queue.put_nowait(("error", ("slow", f"{self._where} sends faster than this process reads")))
                else:
                    queue.put_nowait((frame.kind, frame.body))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, CallError):
            pass
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
            for queue in self._waiting.values():
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(("error", ("away", f"{self._where} ended the connection")))
            self._waiting.clear()


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
    """Write frames of one request at once; each is its kind and its body."""
    if writer.is_closing():
        return
    parts: list[bytes] = []
    for kind, body in frames:
        head, content = b"\x93" + _encode(number) + _encode(kind), _encode(body)
        parts += (_LENGTH.pack(len(head) + len(content)), head, content)
    writer.write(b"".join(parts))


def _proof(key: bytes, way: bytes, theirs: bytes, mine: bytes) -> bytes:
    return blake2b(way + theirs + mine, key=key, digest_size=NONCE).digest()


def _union(types: list[type[msgspec.Struct]]) -> Any:
    union: Any = types[0]
    for each in types[1:]:
        union = union | each
    return union

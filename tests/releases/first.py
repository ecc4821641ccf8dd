"""A client of version 1 of the protocol, as release 0.2.0 spoke it: handshake, join, publish, receive, resume, leave.

Frozen: it is written down from that release's bytes, shares no code with the product and reads no page of it. So a
later change of either cannot change it too. `tests/vectors/version-1.json` holds its bytes for fixed keys. It repairs
nothing, as tests run it over loopback.
"""

import asyncio
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from tests.waiting import PATIENT_S

HEADER: Final = struct.Struct("<BBBBQIQI")
HELLO, COOKIE, ACCEPT, DATA = (1 << 4 | kind for kind in (1, 2, 3, 4))
"""The second byte: version 1, and the kind."""
HELLO_BYTES: Final = 1_200
PATTERN: Final = b"Noise_NK_25519_ChaChaPoly_SHA256"
STATUS, LOG, LOG_ACK, PING, CLOSE, ROOM, PUBLISH, ACK = 1, 2, 3, 4, 7, 8, 18, 21
AUTHENTICATE, READY, REFUSED, JOIN, JOINED, LEAVE, OPEN, OPENED = range(1, 9)
WHOLE: Final = 3
WINDOW: Final = 1 << 18
AGAIN_S: Final = 0.1
SPAN: Final = 256
RANGES_MAX: Final = 4

Stream = tuple[int, int, int]
"""Node, epoch and generation."""


def _hmac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _pair(ck: bytes, material: bytes) -> tuple[bytes, bytes]:
    """Noise's HKDF with two outputs."""
    key = _hmac(ck, material)
    one = _hmac(key, b"\1")
    return one, _hmac(key, one, b"\2")


class Handshake:
    """Noise NK as the initiator, with empty statements."""

    def __init__(self, server: bytes, prologue: bytes, ephemeral: bytes) -> None:
        self._own = X25519PrivateKey.from_private_bytes(ephemeral)
        self._h = self._ck = PATTERN
        for each in (prologue, server):
            self._mix(each)
        public = self._own.public_key().public_bytes_raw()
        self._mix(public)
        self._ck, key = _pair(self._ck, self._agreed(server))
        tag = ChaCha20Poly1305(key).encrypt(bytes(12), b"", self._h)
        self._mix(tag)
        self.message1 = public + tag

    def _mix(self, data: bytes) -> None:
        self._h = hashlib.sha256(self._h + data).digest()

    def _agreed(self, public: bytes) -> bytes:
        return self._own.exchange(X25519PublicKey.from_public_bytes(public))

    def finish(self, message2: bytes) -> bytes:
        """The connection's secret. What the server states is read and ignored."""
        public, sealed = message2[:32], message2[32:]
        self._mix(public)
        self._ck, key = _pair(self._ck, self._agreed(public))
        ChaCha20Poly1305(key).decrypt(bytes(12), sealed, self._h)
        self._mix(sealed)
        prk = _hmac(self._h, *_pair(self._ck, b""))
        return _hmac(prk, b"muster session\1")[:16]


class Seal:
    """Seals one direction: 0 from the client, 1 to it. Generation 0 alone: 16 M datagrams."""

    def __init__(self, secret: bytes, direction: int) -> None:
        self._cipher = AESGCM(_hmac(secret, b"muster key", bytes(8), b"\1")[:16])
        self._direction = direction

    def _nonce(self, sequence: int) -> bytes:
        return struct.pack(">BxxxQ", self._direction, sequence)

    def close(self, sequence: int, header: bytes, frames: bytes) -> bytes:
        return header + self._cipher.encrypt(self._nonce(sequence), frames, header)

    def open(self, datagram: bytes) -> tuple[int, bytes]:
        header = datagram[: HEADER.size]
        sequence = cast(int, HEADER.unpack(header)[6])
        return sequence, self._cipher.decrypt(self._nonce(sequence), datagram[HEADER.size :], header)


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<BBH", kind, 0, len(body)) + body


def header(kind: int, connection: int, sequence: int = 0) -> bytes:
    return HEADER.pack(0x4D, kind, 0, 0, connection, 0, sequence, 0)


def hello(connection: int, cookie: bytes, noise: bytes) -> bytes:
    body = cookie + struct.pack("<H", len(noise)) + noise
    return (header(HELLO, connection) + body).ljust(HELLO_BYTES, b"\0")


def prologue(connection: int) -> bytes:
    return b"muster\1" + struct.pack(">QQ", connection, 0) + b"client"


def authenticate(token: bytes) -> bytes:
    return struct.pack("<BH", AUTHENTICATE, len(token)) + token


def join(request: int, name: str, positions: dict[Stream, int], history: int = 0) -> bytes:
    said = b"".join(struct.pack("<IIIQ", *stream, offset) for stream, offset in positions.items())
    room = name.encode()
    return struct.pack("<BIH", JOIN, request, len(room)) + room + bytes([len(positions)]) + said + _u32(history)


def leave(handle: int) -> bytes:
    return struct.pack("<BI", LEAVE, handle)


def opening(request: int, name: str, incarnation: int) -> bytes:
    room = name.encode()
    return struct.pack("<BIH", OPEN, request, len(room)) + room + struct.pack("<Q", incarnation)


def publish(handle: int, sent_at: int, low: int, first: int, messages: list[bytes]) -> bytes:
    said = b"".join(struct.pack("<HB", len(each), WHOLE) + each for each in messages)
    return frame(PUBLISH, struct.pack("<IIQQB", handle, sent_at, low, first, len(messages)) + said)


def log(first: int, records: list[bytes]) -> bytes:
    said = b"".join(struct.pack("<H", len(each)) + each for each in records)
    return frame(LOG, struct.pack("<QH", first, len(records)) + said)


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)


@dataclass(slots=True)
class Message:
    """One message of a room, as a member gets it."""

    handle: int
    place: int
    stream: Stream
    offset: int
    data: bytes


@dataclass(slots=True)
class Log:
    """The records of one session: ours until they are acknowledged, theirs in order."""

    sent: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    taken: int = 0
    early: dict[int, bytes] = field(default_factory=dict)

    def due(self) -> bytes:
        left = self.sent[self.acknowledged :]
        return log(self.acknowledged + 1, left) if left else b""

    def take(self, body: bytes) -> list[bytes]:
        first, count = struct.unpack_from("<QH", body)
        at = 10
        for offset in range(first, first + count):
            (size,) = struct.unpack_from("<H", body, at)
            self.early[offset] = body[at + 2 : at + 2 + size]
            at += 2 + size
        found: list[bytes] = []
        while (record := self.early.pop(self.taken + 1, None)) is not None:
            self.taken += 1
            found.append(record)
        return found


class Session(asyncio.DatagramProtocol):
    """A session with a gateway or a proxy, from `opened` to `close`."""

    def __init__(self, server: tuple[str, int, str], ephemeral: bytes, connection: int) -> None:
        self._key, self._connection, self._ephemeral = bytes.fromhex(server[2]), connection, ephemeral
        self._handshake = Handshake(self._key, prologue(connection), ephemeral)
        self._cookie = bytes(16)
        self._peer, self._in, self._out = 0, cast(Seal, None), cast(Seal, None)
        self._sequence, self._seen = 0, set[int]()
        self._log, self._extra = Log(), list[bytes]()
        self._changed = asyncio.Condition()
        self._tasks = set[asyncio.Task[None]]()
        self.records, self.messages, self.acks = list[bytes](), list[Message](), list[bytes]()
        self.closed = False

    @classmethod
    async def opened(cls, server: tuple[str, int, str], token: bytes) -> "Session":
        """Open a session, as any user of 0.2.0 did. Raises `TimeoutError`."""
        loop = asyncio.get_running_loop()
        made = lambda: cls(server, secrets.token_bytes(32), secrets.randbits(64))  # noqa: E731 - a factory in one line
        _, session = await loop.create_datagram_endpoint(made, remote_addr=server[:2])
        session._start()
        try:
            await session._until(lambda: bool(session._peer))
            session.tell(authenticate(token))
            await session.record(READY)
        except BaseException:
            await session.close()
            raise
        return session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._repeat())
        self._tasks.add(task)

    async def _repeat(self) -> None:
        """Say again what has no answer yet, and that we are here."""
        while True:
            if self._peer:
                self._send(frame(PING))
            else:
                self._hello()
            await asyncio.sleep(AGAIN_S)

    def _hello(self) -> None:
        self._transport.sendto(hello(self._connection, self._cookie, self._handshake.message1))

    def _send(self, frames: bytes = b"") -> None:
        self._sequence += 1
        said = self._status() + frame(LOG_ACK, struct.pack("<Q", self._log.taken + 1)) + self._log.due() + frames
        sealed = self._out.close(self._sequence, header(DATA, self._peer, self._sequence), said)
        self._transport.sendto(sealed)

    def _status(self) -> bytes:
        if not self._seen:
            return b""
        highest, missing = max(self._seen), list[tuple[int, int]]()
        lacks = [each for each in range(max(1, highest - SPAN + 1), highest) if each not in self._seen]
        for each in reversed(lacks):
            if missing and missing[-1][0] == each + 1:
                missing[-1] = each, missing[-1][1]
            else:
                missing.append((each, each))
        said = b"".join(struct.pack("<HH", highest - last, last - first) for first, last in missing[:RANGES_MAX])
        counts = struct.pack("<QIIIB", highest, len(self._seen), 0, WINDOW, min(len(missing), RANGES_MAX))
        return frame(STATUS, counts + said)

    def datagram_received(self, data: bytes, addr: object) -> None:
        kind, connection = data[1], HEADER.unpack_from(data)[4]
        if connection != self._connection:
            return
        if kind == COOKIE and not self._peer:
            self._cookie = data[HEADER.size : HEADER.size + 16]
            self._hello()
        elif kind == ACCEPT and not self._peer:
            peer, size = struct.unpack_from("<QH", data, HEADER.size)
            secret = self._handshake.finish(data[HEADER.size + 10 : HEADER.size + 10 + size])
            self._peer, self._out, self._in = peer, Seal(secret, 0), Seal(secret, 1)
        elif kind == DATA and self._peer:
            sequence, frames = self._in.open(data)
            if sequence not in self._seen:
                self._seen.add(sequence)
                self._take(frames)
        task = asyncio.get_running_loop().create_task(self._tell_change())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _take(self, frames: bytes) -> None:
        at, answers = 0, False
        while at + 4 <= len(frames) and frames[at]:
            kind, _, size = struct.unpack_from("<BBH", frames, at)
            body = frames[at + 4 : at + 4 + size]
            at += 4 + size
            if kind == LOG_ACK:
                (following,) = struct.unpack("<Q", body)
                self._log.acknowledged = max(self._log.acknowledged, following - 1)
            elif kind == LOG:
                self.records += self._log.take(body)
            elif kind == ROOM:
                self.messages += _messages(body)
            elif kind == ACK:
                self.acks.append(body)
            elif kind == CLOSE:
                self.closed = True
            answers |= kind not in {STATUS, LOG_ACK, CLOSE}
        if answers:
            self._send()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_S), self._changed:
            await self._changed.wait_for(condition)

    def tell(self, record: bytes) -> None:
        """Put a record into the log, and send it until it is acknowledged."""
        self._log.sent.append(record)
        self._send()

    async def record(self, kind: int) -> bytes:
        """The first record of this kind, or of a refusal, which raises `PermissionError`."""
        found: list[bytes] = []

        def came() -> bool:
            found[:] = [each for each in self.records if each[0] in {kind, REFUSED}]
            return bool(found)

        await self._until(came)
        self.records.remove(found[0])
        if found[0][0] == REFUSED:
            raise PermissionError(struct.unpack_from("<IBI", found[0], 1))
        return found[0]

    async def join(self, name: str, positions: dict[Stream, int] | None = None) -> tuple[int, bool]:
        """Become a member. Its handle, and whether nothing is missing since the positions."""
        self.tell(join(1, name, positions or {}))
        answer = await self.record(JOINED)
        return struct.unpack_from("<I", answer, 5)[0], answer[-1] == 1

    async def publish(self, name: str, contents: list[bytes]) -> None:
        """Publish these in order, until the proxy has acknowledged all."""
        self.tell(opening(1, name, secrets.randbits(62)))
        (handle,) = struct.unpack_from("<I", await self.record(OPENED), 5)
        for number, content in enumerate(contents, 1):
            await self._published(publish(handle, number, number, number, [content]), number)

    async def _published(self, said: bytes, number: int) -> None:
        async with asyncio.timeout(PATIENT_S):
            while not any(struct.unpack_from("<Q", ack, 9)[0] >= number for ack in self.acks):
                self._send(said)
                async with self._changed:
                    try:
                        await asyncio.wait_for(self._changed.wait(), AGAIN_S)
                    except TimeoutError:
                        continue

    async def received(self, count: int) -> list[Message]:
        """The messages, once there are so many."""
        await self._until(lambda: len(self.messages) >= count)
        return self.messages

    async def leave(self, handle: int) -> None:
        """Leave a room, and wait until the gateway has heard it."""
        self.tell(leave(handle))
        await self._until(lambda: self._log.acknowledged == len(self._log.sent))

    async def close(self) -> None:
        """Say goodbye."""
        if self._peer:
            self._send(frame(CLOSE, b"\0"))
        self._transport.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _messages(body: bytes) -> list[Message]:
    """The messages of a room's frame."""
    handle, place, *stream, offset, count = struct.unpack_from("<IQIIIQB", body)
    at, known, found = struct.calcsize("<IQIIIQB"), 0, list[Message]()
    for number in range(count):
        size, _, publisher, _ = struct.unpack_from("<HBBH", body, at)
        at += 6
        if publisher == known:
            at, known = at + 24, known + 1
        data = body[at : at + size]
        at += size
        of = cast(Stream, tuple(stream))
        found.append(Message(handle, place + number, of, offset + number, data))
    return found

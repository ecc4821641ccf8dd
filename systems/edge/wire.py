"""The client's side of the Centrifuge protocol, in JSON and Protobuf: commands as bytes, and what a server answers.

Owns the numbers and names of its fields, and the frames of a WebSocket. Knows no socket and no session.
"""

import base64
import json
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

Encoding = Literal["json", "protobuf"]
ENCODINGS: Final[tuple[Encoding, ...]] = ("json", "protobuf")
PATH: Final = "/connection/websocket"
MASK: Final = b"\0\0\0\0"
"""A mask of zeros is one: the client need not spend time on it, and servers unmask all alike."""
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FRAME_BYTES_MAX: Final = 16 << 20


class Encodings(StrEnum):
    """The encodings of the sessions; `both`: in turn."""

    json = "json"
    protobuf = "protobuf"
    both = "both"

    def of(self, index: int) -> Encoding:
        """The encoding of one session."""
        if self is Encodings.both:
            return ENCODINGS[index % len(ENCODINGS)]
        return "json" if self is Encodings.json else "protobuf"


class Malformed(Exception):
    """These bytes are not of the protocol."""


class Position(msgspec.Struct, frozen=True):
    """A place in a room's stream."""

    epoch: str
    offset: int


class Failure(msgspec.Struct):
    """The error of one command."""

    code: int = 0
    message: str = ""


class Publication(msgspec.Struct):
    """A message of a room. `data` is JSON for JSON clients."""

    data: msgspec.Raw = msgspec.Raw()
    offset: int = 0
    epoch: str = ""


class Connected(msgspec.Struct):
    """The answer to a connect command."""

    ping: int = 0
    pong: bool = False


class Subscribed(msgspec.Struct):
    """The answer to a subscribe command."""

    epoch: str = ""
    offset: int = 0
    recovered: bool = False
    publications: list[Publication] = []


class Ended(msgspec.Struct):
    """The end of a subscription."""

    code: int = 0
    reason: str = ""


class Push(msgspec.Struct):
    """News of a room."""

    channel: str = ""
    pub: Publication | None = None
    unsubscribe: Ended | None = None


class Message(msgspec.Struct):
    """A reply to the command `id`, or a push. An empty one is a ping."""

    id: int = 0
    error: Failure | None = None
    push: Push | None = None
    connect: Connected | None = None
    subscribe: Subscribed | None = None


_decoder: Final = msgspec.json.Decoder(Message)


def upgrade(host: str, encoding: Encoding, path: str = PATH) -> bytes:
    """The request that opens a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    head += "" if encoding == "json" else "Sec-WebSocket-Protocol: centrifuge-protobuf\r\n"
    return f"{head}\r\n".encode()


def frame(body: bytes, encoding: Encoding) -> bytes:
    """One message of a client: text for JSON, binary for Protobuf."""
    return _frame(TEXT if encoding == "json" else BINARY, body)


def _frame(kind: int, body: bytes) -> bytes:
    head = bytes([0x80 | kind])
    if len(body) < 126:
        return head + bytes([0x80 | len(body)]) + MASK + body
    if len(body) < 1 << 16:
        return head + b"\xfe" + len(body).to_bytes(2, "big") + MASK + body
    return head + b"\xff" + len(body).to_bytes(8, "big") + MASK + body


def answer_ping(body: bytes) -> bytes:
    """The frame that answers a ping of the WebSocket."""
    return _frame(PONG, body)


def pong(encoding: Encoding) -> bytes:
    """The frame that answers a ping of the protocol."""
    return frame(b"{}" if encoding == "json" else b"\0", encoding)


def connect(encoding: Encoding, number: int, token: str = "") -> bytes:
    """The command that opens a session."""
    said = {"token": token} if token else {}
    return _command(encoding, number, "connect", 4, said, _text(1, token))


def subscribe(
    encoding: Encoding, number: int, channel: str, *, recoverable: bool = True, since: Position | None = None
) -> bytes:
    """The command that subscribes to a channel. `since`: the client wants what came behind this position."""
    said: dict[str, Any] = {"channel": channel}
    body = _text(1, channel)
    if since is not None:
        said |= {"recover": True, "epoch": since.epoch, "offset": since.offset}
        body += b"\x18\x01" + _text(6, since.epoch) + b"\x38" + _varint(since.offset)
    if recoverable:
        said |= {"recoverable": True, "positioned": True}
        body += b"\x48\x01\x50\x01"
    return _command(encoding, number, "subscribe", 5, said, body)


def publish(encoding: Encoding, number: int, channel: str, data: bytes) -> bytes:
    """The command that publishes a message, which is JSON."""
    if encoding == "json":
        said = b'{"id":%d,"publish":{"channel":%s,"data":%s}}' % (number, json.dumps(channel).encode(), data)
        return frame(said, encoding)
    return _command(encoding, number, "publish", 7, {}, _text(1, channel) + _bytes(2, data))


def _command(encoding: Encoding, number: int, name: str, tag: int, said: dict[str, Any], body: bytes) -> bytes:
    if encoding == "json":
        return frame(json.dumps({"id": number, name: said}).encode(), encoding)
    command = b"\x08" + _varint(number) + _bytes(tag, body)
    return frame(_varint(len(command)) + command, encoding)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode()) if text else b""


def frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """The whole frames of a server among these bytes, each with its kind, and the bytes of the next one. Raises
    `Malformed`."""
    found, at, end = list[tuple[int, bytes]](), 0, len(data)
    while end - at >= 2:
        first, size, body = data[at], data[at + 1], at + 2
        if size > 125:
            wide = 2 if size == 126 else 8
            if size > 127 or end < body + wide:
                if size > 127:
                    raise Malformed("a frame from the server is masked")
                break
            size, body = int.from_bytes(data[body : body + wide], "big"), body + wide
        if size > FRAME_BYTES_MAX or not first & 0x80:
            raise Malformed(f"a frame of {size:,} bytes, or a part of one")
        if body + size > end:
            break
        found.append((first & 15, data[body : body + size]))
        at = body + size
    return found, data[at:]


def messages(encoding: Encoding, body: bytes) -> list[Message]:
    """The messages of a frame. Raises `Malformed`."""
    try:
        if encoding == "json":
            return [_decoder.decode(line) for line in body.splitlines() if line]
        return [_message(each) for each in _delimited(body)]
    except (msgspec.MsgspecError, IndexError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from None


def _delimited(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size, at = _number(body, at)
        if at + size > len(body):
            raise Malformed("a message is longer than its frame")
        yield body[at : at + size]
        at += size


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A varint at this place, and the place behind it."""
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(body: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a Protobuf message: numbers, and bytes."""
    at = 0
    while at < len(body):
        key, at = _number(body, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _number(body, at)
        elif key & 7 == 2:
            size, at = _number(body, at)
            if at + size > len(body):
                raise Malformed("a field is longer than its message")
            value, at = body[at : at + size], at + size
        else:
            raise Malformed(f"unknown wire type {key & 7}")
        yield key >> 3, value


def _message(body: bytes) -> Message:
    made = Message()
    for number, value in _fields(body):
        if number == 1:
            made.id = value
        elif number == 2:
            made.error = Failure(**_named(value, {1: "code", 2: "message"}))
        elif number == 4:
            made.push = _push(value)
        elif number == 5:
            found = _named(value, {7: "ping", 8: "pong"})
            made.connect = Connected(found.get("ping", 0), bool(found.get("pong", 0)))
        elif number == 6:
            found = _named(value, {6: "epoch", 8: "recovered", 9: "offset"})
            publications = [_publication(each) for at, each in _fields(value) if at == 7]
            made.subscribe = Subscribed(
                found.get("epoch", ""), found.get("offset", 0), bool(found.get("recovered", 0)), publications
            )
    return made


def _push(body: bytes) -> Push:
    made = Push()
    for number, value in _fields(body):
        if number == 2:
            made.channel = value.decode()
        elif number == 4:
            made.pub = _publication(value)
        elif number == 7:
            made.unsubscribe = Ended(**_named(value, {2: "code", 3: "reason"}))
    return made


def _publication(body: bytes) -> Publication:
    made = Publication()
    for number, value in _fields(body):
        if number == 4:
            made.data = msgspec.Raw(value)
        elif number == 6:
            made.offset = value
        elif number == 14:
            made.epoch = value.decode()
    return made


def _named(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    """The fields with these numbers, by name; bytes as text."""
    return {
        names[number]: value.decode() if isinstance(value, bytes) else value
        for number, value in _fields(body)
        if number in names
    }

"""The messages between the embedded server and its clients: a length (u32, big-endian), then one message of msgpack."""

import asyncio
from typing import Final

import msgspec

from muster_server.control.config.zookeeper import PATH_MAX
from muster_server.control.registry.tree import DATA_MAX, TRANSACTION_MAX, TREE_BYTES_MAX, Entry, Operation, Result

REQUEST_MAX: Final = TRANSACTION_MAX * (DATA_MAX + PATH_MAX + 32)
ANSWER_MAX: Final = 2 * TREE_BYTES_MAX
"""Limit of an answer: the whole tree, and msgpack's overhead."""


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`call` numbers a question; the answer has the same number."""


class Hello(Frame, frozen=True):
    """Begin a session (0), or continue one."""

    session: int
    secret: bytes
    timeout_ms: int


class Ping(Frame, frozen=True):
    """Keepalive; answered by another one."""


class Get(Frame, frozen=True):
    call: int
    path: str


class Children(Frame, frozen=True):
    call: int
    path: str


class Transact(Frame, frozen=True):
    call: int
    operations: list[Operation]


class Bye(Frame, frozen=True):
    """End the session."""

    call: int


class Welcome(Frame, frozen=True):
    """The requested session, or a new one."""

    session: int
    secret: bytes
    timeout_ms: int


class Found(Frame, frozen=True):
    call: int
    entry: Entry | None


class Listed(Frame, frozen=True):
    call: int
    entries: dict[str, Entry]


class Done(Frame, frozen=True):
    call: int
    results: list[Result]


class Failed(Frame, frozen=True):
    """`error` is the name of a `TreeError`."""

    call: int
    error: str
    text: str


class Changed(Frame, frozen=True):
    """These paths may have changed."""

    paths: list[str]


Request = Hello | Ping | Get | Children | Transact | Bye
Answer = Welcome | Ping | Found | Listed | Done | Failed | Changed
REQUEST: Final = msgspec.msgpack.Decoder(Request)
ANSWER: Final = msgspec.msgpack.Decoder(Answer)


def pack(frame: Frame) -> bytes:
    """Encode for the socket."""
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(4) + body


async def read(reader: asyncio.StreamReader, longest: int) -> bytes:
    """Read the next message. Raises `ValueError` for a longer one, and the stream's error at its end."""
    length = int.from_bytes(await reader.readexactly(4))
    if length > longest:
        raise ValueError(f"message too long: {length} bytes (limit {longest})")
    return await reader.readexactly(length)

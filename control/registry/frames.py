"""What the embedded server and its clients say to each other: a length (u32, big-endian), then one message of msgpack."""

import asyncio
from typing import Final

import msgspec

from control.config.zookeeper import PATH_MAX
from control.registry.tree import DATA_MAX, TRANSACTION_MAX, TREE_BYTES_MAX, Entry, Operation, Result

REQUEST_MAX: Final = TRANSACTION_MAX * (DATA_MAX + PATH_MAX + 32)
ANSWER_MAX: Final = 2 * TREE_BYTES_MAX
"""All there is, and what msgpack puts between."""


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`call` numbers what is asked, and the answer has the same number."""


class Hello(Frame, frozen=True):
    """Begin, or go on with a session; 0 is a new one."""

    session: int
    secret: bytes
    timeout_ms: int


class Ping(Frame, frozen=True):
    """Live; answered by another one."""


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
    """The session that was asked for, or a new one."""

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
    """These paths, perhaps."""

    paths: list[str]


Request = Hello | Ping | Get | Children | Transact | Bye
Answer = Welcome | Ping | Found | Listed | Done | Failed | Changed
REQUEST: Final = msgspec.msgpack.Decoder(Request)
ANSWER: Final = msgspec.msgpack.Decoder(Answer)


def pack(frame: Frame) -> bytes:
    """As it goes out."""
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(4) + body


async def read(reader: asyncio.StreamReader, longest: int) -> bytes:
    """The next message. Raises `ValueError` for a longer one, and what a stream raises at its end."""
    length = int.from_bytes(await reader.readexactly(4))
    if length > longest:
        raise ValueError(f"a message of {length} bytes, {longest} are the most")
    return await reader.readexactly(length)

"""The messages between clients and the plane over MQTT: topics, payloads, and their version.

Owns names and bytes. It must not know a broker, a socket or a state. Payloads are JSON objects; a reader ignores
unknown fields, so that fields can be added. A change that a reader must understand gets a new version, which is part of
the topic: old and new clients can share one broker. docs/fleet.md documents the same, and a test holds it.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION: Final = 1
PREFIX: Final = f"fleet/{VERSION}"

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Name of a client or a task."""

TASK_BYTES_MAX: Final = 16_384
UP_BYTES_MAX: Final = 65_536  # limit of one message of a client; a result is the largest
RUN_MAX: Final = 96  # limit of characters of a run's name

Up = Literal["hello", "beat", "bye", "receipt", "result"]
Down = Literal["task", "notice"]

Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

QOS: Final[dict[Up | Down, int]] = {
    "hello": 1,
    "beat": 0,  # the next heartbeat replaces it
    "bye": 1,
    "receipt": 1,
    "result": 1,
    "task": 1,
    "notice": 1,
}


class SchemaError(Exception):
    """A client's message is refused: an unknown topic, too large, or malformed. The text is one line, with a word for a
    counter."""

    def __init__(self, reason: Literal["topic", "size", "form"], text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Hello(msgspec.Struct, frozen=True):
    """A client is online. Sent after each connect, and again when its attributes change, with a greater `version`."""

    epoch: Epoch
    """Grows strictly with each start of the client, for example ms since 1970: of two clients with one name the later
    one stays."""
    version: Epoch
    """Version of `attributes`, within the epoch."""
    attributes: dict[str, list[str]]
    """device, country, province, city, carrier, version, tag: values of each, at most 64 characters long."""


class Beat(msgspec.Struct, frozen=True):
    """A client is still online; sent at the interval of the last `Notice` with `beat_ms`."""

    epoch: Epoch


class Bye(msgspec.Struct, frozen=True):
    """A client leaves, or has left: its last will. A hint: an epoch with heartbeats has not left."""

    epoch: Epoch


class Receipt(msgspec.Struct, frozen=True):
    """A client has a task and works on it."""

    run: str
    epoch: Epoch


class Result(msgspec.Struct, frozen=True):
    """A client's result of a task. A second one for the same run is not counted."""

    run: str
    epoch: Epoch
    ok: bool
    value: msgspec.Raw = msgspec.Raw(b"null")
    """Any JSON that the kind of task defines; stored unchanged."""
    error: str = ""
    """The reason if not `ok`."""


class Order(msgspec.Struct, frozen=True):
    """A task for one client."""

    run: str
    """To be returned in receipt and result. Names a run of a task; an order with the same run is the same order."""
    kind: str
    """Kind of task, as the client knows it: ping, traceroute, http, …"""
    target: str
    receipt_ms: int
    """Limit for the receipt, counted from the sending."""
    result_ms: int
    options: dict[str, Any] = {}


class Notice(msgspec.Struct, frozen=True):
    """A notice of the plane to a client about itself."""

    what: Literal["superseded", "refused", "unknown", "beat"]
    """`superseded`: a later epoch uses this name. `refused`: `text` has the reason. `unknown`: send a hello. `beat`:
    send a heartbeat every `beat_ms`."""
    epoch: int
    """The addressed epoch; other epochs ignore the notice."""
    text: str = ""
    beat_ms: int = 0


Message = Hello | Beat | Bye | Receipt | Result

UP: Final[dict[str, type[Message]]] = {"hello": Hello, "beat": Beat, "bye": Bye, "receipt": Receipt, "result": Result}
DECODERS: Final[dict[str, msgspec.json.Decoder[Message]]] = {
    kind: msgspec.json.Decoder(message) for kind, message in UP.items()
}

PRESENCE: Final = tuple(f"{PREFIX}/+/up/{kind}" for kind in ("hello", "beat", "bye"))
"""Topic filters of index nodes."""
ANSWERS: Final = tuple(f"{PREFIX}/+/up/{kind}" for kind in ("receipt", "result"))
"""Topic filters of schedulers."""


def up(client: str, kind: Up) -> str:
    return f"{PREFIX}/{client}/up/{kind}"


def down(client: str, kind: Down) -> str:
    return f"{PREFIX}/{client}/down/{kind}"


def ups(client: str) -> list[str]:
    """All topics that a client writes."""
    return [f"{PREFIX}/{client}/up/{kind}" for kind in UP]


def client_of(topic: str) -> str | None:
    """The client that owns this topic; None: no client does."""
    parts = topic.split("/")
    theirs = len(parts) == 5 and parts[:2] == ["fleet", str(VERSION)] and parts[3] == "up"
    return parts[2] if theirs and NAME.fullmatch(parts[2]) else None


def down_filter(client: str) -> str:
    """The topic filter of a client."""
    return f"{PREFIX}/{client}/down/+"


def read(topic: str, payload: bytes) -> tuple[str, Message]:
    """Parse a message: the client, by its topic (the broker lets it write no other), and the message. Raises
    `SchemaError`."""
    parts = topic.split("/")
    if len(parts) != 5 or parts[:2] != ["fleet", str(VERSION)] or parts[3] != "up" or not NAME.fullmatch(parts[2]):
        raise SchemaError("topic", f"invalid topic of a client: {topic[:200]!r}")
    decoder = DECODERS.get(parts[4])
    if decoder is None:
        raise SchemaError("topic", f"client {parts[2]}: unknown kind of message {parts[4][:80]!r}")
    if len(payload) > UP_BYTES_MAX:
        raise SchemaError(
            "size", f"client {parts[2]}: {parts[4]} too long: {len(payload)} bytes (limit {UP_BYTES_MAX})"
        )
    try:
        return parts[2], decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaError("form", f"client {parts[2]}: {parts[4]}: {error}") from None


def written(message: Hello | Beat | Bye | Receipt | Result | Order | Notice) -> bytes:
    """Encode a message. Raises `SchemaError` if an order is too large."""
    payload = msgspec.json.encode(message)
    if isinstance(message, Order) and len(payload) > TASK_BYTES_MAX:
        raise SchemaError("size", f"run {message.run}: order too long: {len(payload)} bytes (limit {TASK_BYTES_MAX})")
    return payload


def run_name(task: str, minute: int) -> str:
    """The name of a run in messages."""
    return f"{task}@{minute}"


def run_of(name: str) -> tuple[str, int]:
    """(task, minute). Raises `SchemaError`."""
    task, at, minute = name.rpartition("@")
    if not at or not task or len(name) > RUN_MAX or not (minute.isascii() and minute.isdigit()):
        raise SchemaError("form", f"invalid name of a run: {name[:RUN_MAX]!r}")
    return task, int(minute)

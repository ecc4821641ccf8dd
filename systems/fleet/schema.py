"""What clients and the plane say to each other over MQTT: topics, payloads, and their version.

Owns names and bytes. It must not know a broker, a socket or a state. Payloads are JSON objects; a field that a reader does
not know is passed over, so that fields can be added. Whatever a reader cannot do without gets a new version, which stands in
the topic: old and new clients live beside each other on one broker. docs/fleet.md says the same, and is tested to do so.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION: Final = 1
PREFIX: Final = f"fleet/{VERSION}"

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Of a client, and of a task."""

TASK_BYTES_MAX: Final = 16_384
UP_BYTES_MAX: Final = 65_536  # of one message of a client; a result is the largest
RUN_MAX: Final = 96  # characters of a run's name

Up = Literal["hello", "beat", "bye", "receipt", "result"]
Down = Literal["task", "notice"]

Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

QOS: Final[dict[Up | Down, int]] = {
    "hello": 1,
    "beat": 0,  # another follows
    "bye": 1,
    "receipt": 1,
    "result": 1,
    "task": 1,
    "notice": 1,
}


class SchemaError(Exception):
    """A message of a client cannot be taken: an unknown topic, too large, or not of its form. One line, for a counter."""

    def __init__(self, reason: Literal["topic", "size", "form"], text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Hello(msgspec.Struct, frozen=True):
    """A client is here. Sent after each connect, and again when its attributes change, with a greater `version`."""

    epoch: Epoch
    """Grows strictly with each start of the client (ms since 1970 will do): of two with one name the later one stays."""
    version: Epoch
    """Of `attributes`, within the epoch."""
    attributes: dict[str, list[str]]
    """device, country, province, city, carrier, version, tag: values of each, of at most 64 characters."""


class Beat(msgspec.Struct, frozen=True):
    """A client is still here; sent as often as the last `Notice` with `beat_ms` says."""

    epoch: Epoch


class Bye(msgspec.Struct, frozen=True):
    """A client goes, or is gone: its last will. A hint: an epoch that beats on is not gone."""

    epoch: Epoch


class Receipt(msgspec.Struct, frozen=True):
    """A client has a task and works on it."""

    run: str
    epoch: Epoch


class Result(msgspec.Struct, frozen=True):
    """A client's answer to a task. A second one of the same run is not counted."""

    run: str
    epoch: Epoch
    ok: bool
    value: msgspec.Raw = msgspec.Raw(b"null")
    """Any JSON, of the kind of task; stored as it comes."""
    error: str = ""
    """Why not, if not `ok`."""


class Order(msgspec.Struct, frozen=True):
    """A task for one client."""

    run: str
    """To be said back in receipt and result. Names a run of a task; the same one again is the same order."""
    kind: str
    """Of task, as the client knows it: ping, traceroute, http, …"""
    target: str
    receipt_ms: int
    """How long the receipt is waited for, from the sending on."""
    result_ms: int
    options: dict[str, Any] = {}


class Notice(msgspec.Struct, frozen=True):
    """The plane tells a client something about itself."""

    what: Literal["superseded", "refused", "unknown", "beat"]
    """superseded: a later epoch has this name. refused: `text` says why. unknown: say hello. beat: beat every `beat_ms`."""
    epoch: int
    """The one that is meant; others pass it over."""
    text: str = ""
    beat_ms: int = 0


Message = Hello | Beat | Bye | Receipt | Result

UP: Final[dict[str, type[Message]]] = {"hello": Hello, "beat": Beat, "bye": Bye, "receipt": Receipt, "result": Result}
DECODERS: Final[dict[str, msgspec.json.Decoder[Message]]] = {
    kind: msgspec.json.Decoder(message) for kind, message in UP.items()
}

PRESENCE: Final = tuple(f"{PREFIX}/+/up/{kind}" for kind in ("hello", "beat", "bye"))
"""What index nodes subscribe to."""
ANSWERS: Final = tuple(f"{PREFIX}/+/up/{kind}" for kind in ("receipt", "result"))
"""What schedulers subscribe to."""


def up(client: str, kind: Up) -> str:
    return f"{PREFIX}/{client}/up/{kind}"


def down(client: str, kind: Down) -> str:
    return f"{PREFIX}/{client}/down/{kind}"


def ups(client: str) -> list[str]:
    """All topics that a client writes."""
    return [f"{PREFIX}/{client}/up/{kind}" for kind in UP]


def client_of(topic: str) -> str | None:
    """The client whose topic this is; None: it is nobody's."""
    parts = topic.split("/")
    theirs = len(parts) == 5 and parts[:2] == ["fleet", str(VERSION)] and parts[3] == "up"
    return parts[2] if theirs and NAME.fullmatch(parts[2]) else None


def down_filter(client: str) -> str:
    """What a client subscribes to."""
    return f"{PREFIX}/{client}/down/+"


def read(topic: str, payload: bytes) -> tuple[str, Message]:
    """The client that speaks, by its topic (the broker lets it write no other), and what it says. Raises `SchemaError`."""
    parts = topic.split("/")
    if len(parts) != 5 or parts[:2] != ["fleet", str(VERSION)] or parts[3] != "up" or not NAME.fullmatch(parts[2]):
        raise SchemaError("topic", f"no topic of a client: {topic[:200]!r}")
    decoder = DECODERS.get(parts[4])
    if decoder is None:
        raise SchemaError("topic", f"client {parts[2]}: unknown kind of message {parts[4][:80]!r}")
    if len(payload) > UP_BYTES_MAX:
        raise SchemaError(
            "size", f"client {parts[2]}: a {parts[4]} of {len(payload)} bytes; {UP_BYTES_MAX} are allowed"
        )
    try:
        return parts[2], decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaError("form", f"client {parts[2]}: {parts[4]}: {error}") from None


def written(message: Hello | Beat | Bye | Receipt | Result | Order | Notice) -> bytes:
    """The payload. Raises `SchemaError` if an order is too large to be sent."""
    payload = msgspec.json.encode(message)
    if isinstance(message, Order) and len(payload) > TASK_BYTES_MAX:
        raise SchemaError("size", f"run {message.run}: an order of {len(payload)} bytes; {TASK_BYTES_MAX} are allowed")
    return payload


def run_name(task: str, minute: int) -> str:
    """How a run is called on the wire."""
    return f"{task}@{minute}"


def run_of(name: str) -> tuple[str, int]:
    """(task, minute). Raises `SchemaError`."""
    task, at, minute = name.rpartition("@")
    if not at or not task or len(name) > RUN_MAX or not (minute.isascii() and minute.isdigit()):
        raise SchemaError("form", f"no name of a run: {name[:RUN_MAX]!r}")
    return task, int(minute)

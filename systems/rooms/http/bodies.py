"""The content of requests: a room's name, one message, a batch. Knows no route."""

import base64
from typing import Final

import msgspec

import muster
from muster.client import check_name
from muster_server.systems.http.idempotency import Nothing
from muster_server.systems.http.problems import Problem

NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"


class JsonMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message in JSON. `data`: text, or with `encoding` base64, or any other JSON, which is sent as it is written."""

    data: msgspec.Raw
    encoding: str = "utf-8"


def room_name(name: str) -> str:
    """The room of this name. Raises `Problem`."""
    try:
        check_name(name)
    except muster.BadRoomName as error:
        raise Problem("bad_room_name", str(error)) from None
    return name


def is_batch(body: bytes, kind: str) -> bool:
    """Whether a body of this Content-Type has several messages."""
    return kind == NDJSON or (kind == JSON and body.lstrip()[:1] == b"[")


def batch(body: bytes, kind: str) -> list[bytes | Problem]:
    """The messages of a batch; an invalid part is a problem in its place. Raises `Nothing`."""
    return _lines(body) if kind == NDJSON else _array(body)


def one(body: bytes, kind: str) -> bytes:
    """The message in a body. Raises `Nothing`."""
    try:
        return _data(body) if kind == JSON else body
    except msgspec.MsgspecError as error:
        raise Nothing(Problem("bad_body", str(error))) from None


def _data(text: bytes | msgspec.Raw) -> bytes:
    """The message of `{"data": ...}`, or of a string. Raises `MsgspecError`."""
    try:
        said = msgspec.json.decode(text, type=JsonMessage | str)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None
    if isinstance(said, str):
        return said.encode()
    raw = bytes(said.data)
    if not raw.startswith(b'"'):
        if said.encoding != "utf-8":
            raise msgspec.ValidationError(f"`data` is text where `encoding` is {said.encoding!r:.20}")
        return raw
    written = msgspec.json.decode(raw, type=str)
    if said.encoding == "utf-8":
        return written.encode()
    if said.encoding != "base64":
        raise msgspec.ValidationError(f"`encoding` is utf-8 or base64, not {said.encoding!r:.20}")
    try:
        return base64.b64decode(written, validate=True)
    except ValueError:
        raise msgspec.ValidationError("`data` is no base64") from None


def _line(text: bytes | msgspec.Raw, what: str, number: int) -> bytes | Problem:
    try:
        return _data(text)
    except msgspec.MsgspecError as error:
        return Problem("bad_body", f"{what} {number}: {error}")


def _lines(body: bytes) -> list[bytes | Problem]:
    return [_line(line, "line", at) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]


def _array(body: bytes) -> list[bytes | Problem]:
    try:
        items = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Nothing(Problem("bad_body", str(error))) from None
    return [_line(item, "message", at) for at, item in enumerate(items, 1)]

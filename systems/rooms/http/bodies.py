"""The content of requests: a room's name, one message, a batch. Knows no route."""

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

import muster
from muster.inputs import check_name
from muster_server.systems.http.bodies import decoded
from muster_server.systems.http.idempotency import Nothing
from muster_server.systems.http.problems import Problem

NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"


class JsonMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message in JSON. `data`: text, or base64 with `encoding`, or any other JSON, which is sent unchanged. `headers`:
    texts by name, at most 16 and 1,024 bytes."""

    data: msgspec.Raw
    encoding: str = "utf-8"
    headers: dict[str, str] = {}


class Content(NamedTuple):
    """A message to publish."""

    data: bytes
    headers: Mapping[str, str] = MappingProxyType({})


_MESSAGE: Final[msgspec.json.Decoder[JsonMessage | str]] = msgspec.json.Decoder(JsonMessage | str)


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


def batch(body: bytes, kind: str) -> list[Content | Problem]:
    """The messages of a batch; an invalid part becomes a problem at the same index. Raises `Nothing`."""
    return _lines(body) if kind == NDJSON else _array(body)


def one(body: bytes, kind: str) -> Content:
    """The message in a body. Raises `Nothing`."""
    try:
        return _content(body) if kind == JSON else Content(body)
    except Problem as problem:
        raise Nothing(problem) from None


def _content(text: bytes | msgspec.Raw) -> Content:
    """The message of `{"data": ...}`, or of a string. Raises `Problem`."""
    said = decoded(text, _MESSAGE)
    if isinstance(said, str):
        return Content(said.encode())
    return Content(_data(said), said.headers)


def _data(said: JsonMessage) -> bytes:
    raw = bytes(said.data)
    if not raw.startswith(b'"'):
        if said.encoding != "utf-8":
            raise Problem("bad_body", f"`data` must be text if `encoding` is {said.encoding!r:.20}")
        return raw
    written = decoded(raw, str)
    if said.encoding == "utf-8":
        return written.encode()
    if said.encoding != "base64":
        raise Problem("bad_body", f"invalid `encoding` {said.encoding!r:.20} (expected utf-8 or base64)")
    try:
        return base64.b64decode(written, validate=True)
    except ValueError:
        raise Problem("bad_body", "`data` is not valid base64") from None


def _line(text: bytes | msgspec.Raw, what: str, number: int) -> Content | Problem:
    try:
        return _content(text)
    except Problem as problem:
        return Problem("bad_body", f"{what} {number}: {problem.detail}")


def _lines(body: bytes) -> list[Content | Problem]:
    return [_line(line, "line", at) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]


def _array(body: bytes) -> list[Content | Problem]:
    try:
        items = decoded(body, list[msgspec.Raw])
    except Problem as problem:
        raise Nothing(problem) from None
    return [_line(item, "message", at) for at, item in enumerate(items, 1)]

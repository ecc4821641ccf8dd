"""Checks of what a program passes to the library; each raises before anything is sent."""

import math
from collections.abc import Mapping
from json import dumps
from typing import Any, Final

from ._core import encode_headers, room_name_error
from .errors import BadRoomName, Invalid, TooLong
from .sizes import MESSAGE_BYTES_MAX

DEFAULT_NAMESPACE: Final = "default"
NO_JSON: Final[Any] = object()
"""Default for `json`, since None is valid JSON."""


def check_name(name: str) -> None:
    """Raise `BadRoomName` for an invalid room name."""
    try:
        wrong = room_name_error(name)
    except (TypeError, UnicodeError):
        wrong = "a room name must be text"
    if wrong is not None:
        raise BadRoomName(f"{name!r:.80}: {wrong}")


def full_name(name: str) -> str:
    """The name with its namespace."""
    return f"{DEFAULT_NAMESPACE}:{name}" if isinstance(name, str) and ":" not in name else name


def check_seconds(timeout: float) -> float:
    """Return the time-out. Raises `Invalid`."""
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        raise Invalid(f"invalid time-out {timeout!r} (expected a number of seconds)")
    return timeout


def check_data(data: bytes, most: int = MESSAGE_BYTES_MAX, what: str = "message") -> None:
    """Raise `Invalid` for what is not bytes, `TooLong` for more than `most` of them."""
    if not isinstance(data, bytes):
        raise Invalid(f"invalid {what} of type {type(data).__name__} (expected bytes)")
    if len(data) > most:
        raise TooLong(f"the {what} is too long: {len(data)} bytes (limit {most}); nothing was sent")


def check_message(data: bytes, block: bytes | None) -> None:
    """The same for a message of a room with its headers."""
    check_data(data)
    if block is not None and len(data) + len(block) > MESSAGE_BYTES_MAX:
        length = f"{len(data)} bytes and {len(block)} of headers (limit {MESSAGE_BYTES_MAX} together)"
        raise TooLong(f"the message is too long: {length}; nothing was sent")


def encoded(headers: Mapping[str, str]) -> bytes:
    """Encode headers. Raises `Invalid`."""
    try:
        return encode_headers(dict(headers))
    except (TypeError, ValueError) as error:
        raise Invalid(f"invalid headers: {error}") from None


def content(data: bytes | None, json: object) -> bytes:
    """Return the message's bytes. Raises `Invalid`."""
    if json is NO_JSON:
        if data is None:
            raise Invalid("no message: give data or json")
        return data
    if data is not None:
        raise Invalid("data and json exclude each other: give one of them")
    try:
        return dumps(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"json: {error}") from None

"""Bodies of requests in JSON. Owns which input is none: it is the caller's mistake, whatever the decoder raises.

Knows no route and no shape.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from muster_server.systems.http.problems import Problem

T = TypeVar("T")
NESTED: Final = "JSON is nested too deeply; up to 500 levels are taken"
_EMPTY: Final = (b"", b"{}")


class Body(NamedTuple):
    """The body that a route takes, for the description of the API: `opt={"body": Body(...)}`."""

    shapes: tuple[Any, ...]
    """In JSON, one of these."""
    others: Mapping[str, str] = {}
    """Other media types, and what such a body is."""


def decoded(body: bytes | msgspec.Raw, shape: type[T] | msgspec.json.Decoder[T]) -> T:
    """A document of this shape. Raises `Problem`."""
    try:
        if isinstance(body, bytes):
            body.decode()  # msgspec takes the parts that it passes over as they are
        if isinstance(shape, msgspec.json.Decoder):
            return shape.decode(body)
        return msgspec.json.decode(body, type=shape)
    except RecursionError:
        raise Problem("bad_body", NESTED) from None
    except UnicodeDecodeError as error:
        raise Problem("bad_body", f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        raise Problem("bad_body", str(error)) from None


def none(body: bytes) -> None:
    """Refuse a body where nothing is taken. Raises `Problem`."""
    if body.strip() not in _EMPTY:
        raise Problem("bad_body", "this path takes no body")


def no_words(query: Mapping[str, Any], words: Collection[str]) -> None:
    """Refuse words of the query that a body in JSON has itself. Raises `Problem`."""
    if twice := sorted(set(query) & set(words)):
        raise Problem("bad_request", f"{', '.join(twice)}: of a message in JSON these are members of the body")

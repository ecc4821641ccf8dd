"""Bodies of requests in JSON. Owns which input is invalid: that is the caller's mistake, whatever the decoder raises.

Knows no route and no shape.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from muster_server.systems.http.problems import Problem

T = TypeVar("T")
NESTED: Final = "JSON is nested too deeply (limit 500 levels)"
_EMPTY: Final = (b"", b"{}")


class Body(NamedTuple):
    """The body that a route expects, for the description of the API: `opt={"body": Body(...)}`."""

    shapes: tuple[Any, ...]
    """Shapes in JSON, one of which it has."""
    others: Mapping[str, str] = {}
    """Other media types, with the meaning of such a body."""


def decoded(body: bytes | msgspec.Raw, shape: type[T] | msgspec.json.Decoder[T]) -> T:
    """Decode a document of this shape. Raises `Problem`."""
    try:
        if isinstance(body, bytes):
            body.decode()  # msgspec does not check the UTF-8 of skipped parts
        if isinstance(shape, msgspec.json.Decoder):
            return shape.decode(body)
        return msgspec.json.decode(body, type=shape)
    except RecursionError:
        raise Problem("bad_body", NESTED) from None
    except UnicodeDecodeError as error:
        raise Problem("bad_body", f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        raise Problem("bad_body", str(error)) from None


def no_body(body: bytes) -> None:
    """Refuse any body. Raises `Problem`."""
    if body.strip() not in _EMPTY:
        raise Problem("bad_body", "this path accepts no body")


def no_words(query: Mapping[str, Any], words: Collection[str]) -> None:
    """Refuse query parameters that belong into a body in JSON. Raises `Problem`."""
    if twice := sorted(set(query) & set(words)):
        raise Problem("bad_request", f"{', '.join(twice)}: for a message in JSON, put these into the body")

"""Estimates the bytes that a value takes in memory. A shared part is counted each time that it is reached."""

from collections.abc import Iterator
from sys import getsizeof
from typing import Any


def weight(value: Any) -> int:
    """The size of a value and its parts, in bytes. The value must not contain itself; no encoding produces such a
    value."""
    size, left = 0, [value]
    while left:
        each = left.pop()
        size += getsizeof(each)
        if not isinstance(each, (str, bytes, int, float, type(None))):
            left.extend(_parts(each))
    return size


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    else:
        if (named := getattr(value, "__dict__", None)) is not None:
            yield named
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if (part := getattr(value, slot, None)) is not None:
                    yield part

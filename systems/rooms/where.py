"""Headers that a reader wants, as words of a command line or of a query: `NAME=VALUE[,VALUE]`."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

HEADERS_MAX: Final = 4
VALUES_MAX: Final = 16
BYTES_MAX: Final = 512
"""Limits as those of a membership's filter: headers, values of one, and bytes of all with 2 more for each name and value."""
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

Where = Mapping[str, Collection[str]]
"""Wanted values by name of a header: a message must have each of these headers, with one of its values."""


def parse_where(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parse words, one for each header. Raises `ValueError` with the reason."""
    found: dict[str, list[str]] = {}
    size = 0
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not NAME.fullmatch(name):
            raise ValueError(f"invalid {text!a:.80} (expected NAME=VALUE[,VALUE])")
        if name in found:
            raise ValueError(f"the header {name} is named twice; give its values as {name}=VALUE,VALUE")
        found[name] = values.split(",")
        if len(found) > HEADERS_MAX:
            raise ValueError(f"too many headers (limit {HEADERS_MAX})")
        if len(found[name]) > VALUES_MAX:
            raise ValueError(f"too many values of {name} (limit {VALUES_MAX})")
        size += sum(2 + len(text.encode()) for text in (name, *found[name]))
        if size > BYTES_MAX:
            raise ValueError(f"names and values are too long (limit {BYTES_MAX} bytes, with 2 more for each)")
    return found


def matches(where: Where, headers: Mapping[str, str]) -> bool:
    """Whether a message with these headers is wanted."""
    return all(headers.get(name) in values for name, values in where.items())

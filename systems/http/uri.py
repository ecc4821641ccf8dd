"""The path and the query of a request, each decoded once and strictly. Knows no route and no framework.

The path stays encoded until it is split into parts, so a name may contain a slash as `%2F`.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

SAFE: Final = "!$&'()*+,;=:@"
"""Characters that a part of a path may contain besides letters, digits and `-._~` (RFC 3986)."""
PLAIN: Final = re.compile(rb"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?|/")
"""A path without anything to decode."""
MALFORMED: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class BadUri(ValueError):
    """A path or a query cannot be decoded. The text is one line."""


class Query(NamedTuple):
    """The query parameters of a route."""

    words: Collection[str] = ()
    lists: Collection[str] = ()
    """The parameters in `words` that may be repeated."""


def path(raw: bytes) -> str:
    """The path with each part encoded in one way, so that equal paths are equal text. Raises `BadUri`.

    A part that cannot be decoded stays unchanged; `part` refuses it.
    """
    if PLAIN.fullmatch(raw):
        return raw.decode("ascii")
    parts = raw.removeprefix(b"/").removesuffix(b"/").split(b"/")
    if not all(parts):
        raise BadUri("the path has an empty part: //")
    return "/" + "/".join(map(_canonical, parts))


def part(encoded: str) -> str:
    """The name in a part of `path`. Raises `BadUri`."""
    return _text(encoded.encode(), "path") if "%" in encoded else encoded


def check_query(raw: bytes, known: Query) -> None:
    """Refuse an unknown parameter, a repeated one, or bytes that are not UTF-8. Raises `BadUri`."""
    seen: set[str] = set()
    for each in filter(None, raw.split(b"&")):
        encoded, _, value = each.partition(b"=")
        word = _text(encoded.replace(b"+", b" "), "query")
        _text(value, "query")
        if word not in known.words:
            takes = ", ".join(sorted(known.words)) or "no words"
            raise BadUri(f"unknown query parameter {word!r:.80}; this path accepts {takes}")
        if word in seen and word not in known.lists:
            raise BadUri(f"query parameter {word} is repeated")
        seen.add(word)


def _canonical(encoded: bytes) -> str:
    try:
        return quote(_text(encoded, "path"), safe=SAFE)
    except BadUri:
        return quote(encoded, safe=SAFE + "%")


def _text(encoded: bytes, where: str) -> str:
    if MALFORMED.search(encoded):
        raise BadUri(f"the {where} has a % without two hex digits; write a % as %25")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise BadUri(f"the {where} is not UTF-8, percent-encoded") from None

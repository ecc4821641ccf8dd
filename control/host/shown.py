"""Untrusted text made safe for a terminal: it cannot contain terminal commands or reverse the text's direction.

Only this file defines which characters are escaped. Knows no stream.
"""

import re
import unicodedata
from typing import Final

HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control, format (for example direction marks), surrogates, line and paragraph separators."""
_PLAIN: Final = re.compile(r"[ -~\n]*")
_ABOVE: Final = 0x10000
"""JSON writes characters from here on as two escapes."""


def shown(text: str) -> str:
    """Replace such characters by Python escapes: `\x1b`, `\u202e`. Line feeds stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join([_escape(each) if _hidden(each) else each for each in text])


def one_line(text: str) -> str:
    """The same in one line."""
    return shown(text).replace("\n", "\\n")


def shown_json(document: bytes) -> bytes:
    """Escape such characters in the texts of a JSON document. Line feeds between its parts stay."""
    text = document.decode()
    if _PLAIN.fullmatch(text):
        return document
    return "".join([_json_escape(each) if _hidden(each) else each for each in text]).encode()


def _hidden(each: str) -> bool:
    return each != "\n" and unicodedata.category(each) in HIDDEN


def _escape(each: str) -> str:
    return each.encode("unicode_escape").decode()


def _json_escape(each: str) -> str:
    code = ord(each)
    if code < _ABOVE:
        return f"\\u{code:04x}"
    return "".join([f"\\u{half:04x}" for half in (0xD800 + (code - _ABOVE >> 10), 0xDC00 + (code - _ABOVE & 0x3FF))])

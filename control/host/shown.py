"""Text that strangers wrote, as a terminal may show it: nothing in it is a command to the terminal or turns the text around.

The only place that says which characters are escaped. Knows no stream.
"""

import re
import unicodedata
from typing import Final

HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control, format (as marks of direction), halves of pairs, ends of lines and paragraphs."""
_PLAIN: Final = re.compile(r"[ -~\n]*")
_ABOVE: Final = 0x10000
"""JSON writes characters from here on as two."""


def shown(text: str) -> str:
    """The text with such characters as escapes of Python: `\\x1b`, `\\u202e`. Ends of lines stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join([_escape(each) if _hidden(each) else each for each in text])


def one_line(text: str) -> str:
    """The same in one line."""
    return shown(text).replace("\n", "\\n")


def shown_json(document: bytes) -> bytes:
    """The same document, with such characters of its texts escaped as JSON does. Ends of lines between its parts stay."""
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

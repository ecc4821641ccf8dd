"""The cause of a store's failure in one line, without its address, URL, user, password or file.

Replies, logs and states show this line; the configuration has the store's address. Knows no store.
"""

import os
import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"
LINE_MAX: Final = 300
_PATTERNS: Final = (
    re.compile(r"\b[A-Za-z][A-Za-z0-9+._-]*://[^\s'\"),;]*[^\s'\"),;:.]"),
    re.compile(r"\('[^']*', \d+(?:, \d+, \d+)?\)"),
    re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?:[:/#]\d+)?"),
    re.compile(r"\[[0-9A-Fa-f:.%\w]*:[0-9A-Fa-f:.%\w]*\](?::\d+)?"),
    re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])"),
    re.compile(r"\b(?=[\w.-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*:\d{2,5}\b"),
    re.compile(r"(?<![\w/.*])/(?:[^\s/'\":,;]+/)+[^\s'\":,;]+"),
)
_NAMED: Final = re.compile(
    r"\b(user|role|database|host|hostname|server at|server on|master)( name)? (\"[^\"]*\"|'[^']*'(?:@'[^']*')?)"
)


def shown(text: str, hidden: Iterable[str | None] = ()) -> str:
    """Remove addresses, URLs, users, files and the `hidden` words from a text."""
    for word in sorted(filter(None, hidden), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", HIDDEN, text)
    text = _NAMED.sub(rf"\1\2 {HIDDEN}", text)
    for pattern in _PATTERNS:
        text = pattern.sub(HIDDEN, text)
    return text


def cause(error: BaseException, hidden: Iterable[str | None] = ()) -> str:
    """Format an error as one line, without what `shown` removes."""
    if isinstance(error, OSError) and error.errno and error.errno > 0 and type(error).__module__ == "builtins":
        return os.strerror(error.errno)
    return shown(" ".join(str(error).split())[:LINE_MAX], hidden) or type(error).__name__

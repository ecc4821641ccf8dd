"""Users: decimal numbers, or text that a keyed hash turns into numbers of 64 bits, and the names that a node has seen.

Owns the form of a user's name, and its number. The key of the hash is that of room names, which every node that judges
users has: without it nobody can find a text with another user's number.
"""

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from muster_server import _engines

USER_MAX: Final = 2**64 - 1
EMBEDDED_USER: Final = _engines.SHARED_USER
"""The user of the shared token. No signed token can name it."""
TEXT_BYTES_MAX: Final = 64
HASHED: Final = 1 << 63
"""The lowest number of a text: usual numbers of users are below it."""
TEXTS_MAX: Final = 65_536
"""Limit of names that a node remembers, the last seen ones: 64 B plus Python's overhead, about 16 MB in all."""
NUMBERS: Final = re.compile(r"\*|[0-9]+\*?", re.ASCII)
"""A user's number, its first digits with `*`, or `*`."""
HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that are invisible or change how others are shown."""


def check_user(text: str) -> None:
    """Check a user's name: a number from 2 on, or text. Raises `ValueError`."""
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if not re.fullmatch(r"[1-9][0-9]{0,19}", text) or int(text) > USER_MAX:
            raise ValueError(f"invalid user {text!r:.40} (expected a decimal number from 2 to {USER_MAX}, or text)")
        if int(text) == EMBEDDED_USER:
            raise ValueError(f"user {EMBEDDED_USER} is reserved for the shared token; choose another number")
    elif not 0 < len(text.encode(errors="replace")) <= TEXT_BYTES_MAX:
        raise ValueError(
            f"invalid length of a user's name: {len(text.encode(errors='replace'))} bytes (expected 1 to "
            f"{TEXT_BYTES_MAX})"
        )
    elif text != text.strip() or any(unicodedata.category(letter) in HIDDEN for letter in text):
        raise ValueError(
            f"invalid user name {text!a:.100} (expected printable characters, and no space at the beginning or the end)"
        )


def user_of(text: str, key: bytes) -> int:
    """The number of a user: a number stays the same, text is hashed with this key. Raises `ValueError`."""
    check_user(text)
    if text.isascii() and text.isdigit():
        return int(text)
    if not key:
        raise ValueError("a user that is text needs the key of room names; set cluster.names_file")
    digest = blake2b(text.encode(), digest_size=8, key=key, person=b"muster user").digest()
    return int.from_bytes(digest) | HASHED


def is_hashed(number: str) -> bool:
    """Whether a number may be the hash of a text, so that its first digits have no meaning."""
    return int(number) >= HASHED


def check_recipient(pattern: str) -> None:
    """Check a pattern of users to whom a token may send: a number, first digits with `*`, `*`, or a whole text. Raises
    `ValueError`."""
    if NUMBERS.fullmatch(pattern):
        _engines.Recipients([pattern])
    elif "*" in pattern:
        raise ValueError(
            f"invalid pattern of users {pattern!r:.60}: use * alone or after first digits; write a text in full"
        )
    else:
        check_user(pattern)


def recipient_of(pattern: str, key: bytes) -> str:
    """The same pattern in numbers: text is hashed with this key. Raises `ValueError`."""
    check_recipient(pattern)
    return pattern if NUMBERS.fullmatch(pattern) else str(user_of(pattern, key))


class Texts:
    """The recently seen names of users that are text, by number."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, str] = OrderedDict()

    def keep(self, user: int, text: str) -> None:
        """Remember the name of a user, in place of the least recently seen one."""
        self._texts[user] = text
        self._texts.move_to_end(user)
        if len(self._texts) > TEXTS_MAX:
            self._texts.popitem(last=False)

    def of(self, users: Iterable[int]) -> dict[int, str]:
        """The known names of these users."""
        return {user: self._texts[user] for user in users if user in self._texts}

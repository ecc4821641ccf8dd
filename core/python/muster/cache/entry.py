"""An entry of level 2, as bytes. Owns the layout behind the life and the time that `scripts` writes before it."""

import struct
from dataclasses import dataclass
from typing import Any, Final

LIFE: Final = slice(1, 41)
MADE: Final = slice(41, 54)
_REST: Final = struct.Struct("<BIII")
BODY: Final = 54 + _REST.size
"""Offset of the value, in bytes."""
_ABSENT: Final = 1


@dataclass(frozen=True, slots=True)
class Found:
    """A value of level 2: its payload, else the value itself. Times are seconds from now; `fresh_s` may be negative."""

    payload: bytes | None
    fresh_s: float
    left_s: float
    load_s: float
    """Duration of the load."""
    made: bytes
    """Identifies this entry among the entries of its key."""
    value: Any = None
    """The value where an entry needs no payload."""


def rest(payload: bytes | None, fresh_ms: int, kept_ms: int, load_s: float) -> bytes:
    """The bytes that a fill sends."""
    head = _REST.pack(_ABSENT if payload is None else 0, fresh_ms, kept_ms, min(int(load_s * 1_000), 1 << 31))
    return head if payload is None else head + payload


def found(entry: bytes, now_ms: float) -> Found:
    """Decode an entry; `now_ms` is the time of its Redis."""
    flags, fresh_ms, kept_ms, load_ms = _REST.unpack_from(entry, 54)
    made = entry[MADE]
    age_ms = max(0.0, now_ms - int(made))
    payload = None if flags & _ABSENT else entry[BODY:]
    return Found(payload, (fresh_ms - age_ms) / 1e3, (kept_ms - age_ms) / 1e3, load_ms / 1e3, made)

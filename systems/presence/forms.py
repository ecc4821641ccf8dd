"""The forms in which a message goes on that no device has: the body of a callback, and an entry of an inbox."""

import base64
from collections.abc import Iterable
from typing import Any, Final

from muster.clock import now_ms

WORST: Final = ("unknown", "expired", "not_online")
"""Outcomes of devices that do not have the message; the first that one has is told."""


def hook(user: str, text: str | None, data: str, encoding: str, outcome: str, sender: str = "") -> dict[str, Any]:
    """The body of a callback. `text`: that names the user; `sender`: the user that sent the message, if one did."""
    named = {} if text is None else {"text": text}
    by = {"sender": sender} if sender else {}
    said = {"data": data, "encoding": encoding, "outcome": outcome, "at": now_ms()}
    return {"user": user, **named, **by, **said}


def entry(kind: str, data: str, encoding: str, sender: str = "") -> dict[str, Any]:
    """The entry of an inbox."""
    said = {"text": data} if encoding == "utf-8" else {"data": data, "encoding": encoding}
    return {"kind": kind, "data": said, **({"actor": sender} if sender else {})}


def worst(outcomes: Iterable[str]) -> str:
    """Why no device has a message, by the outcomes of the devices."""
    found = set(outcomes)
    return next((each for each in WORST if each in found), "not_online")


def encoded(data: bytes) -> tuple[str, str]:
    """Data as text, and their encoding."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"

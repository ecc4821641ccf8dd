"""The format that both ends of a request share: its name and body, and refusals."""

from typing import Final

import msgspec

PASSING: Final = frozenset({"unavailable", "disk_full", "busy", "draining", "timeout"})
"""Codes of refusals after which another attempt can succeed."""


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request to a node of the system. `body`: of the type that the request has (`listener.Question.kind`)."""

    name: str
    body: msgspec.Raw


class Refusal(Exception):
    """A request was refused. `code` is one of `systems.messages.shapes.Refused`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

"""The format that both ends of a question share: refusals, and the separation of a stream's pieces."""

from typing import Final

LENGTH_BYTES: Final = 4
"""Size of the length before each piece of a stream, most significant byte first."""

PASSING: Final = frozenset({"unavailable", "disk_full", "busy", "draining", "timeout"})
"""Codes of refusals after which another attempt can succeed."""


class Refusal(Exception):
    """A question was refused. `code` is one of `systems.messages.shapes.Refused`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

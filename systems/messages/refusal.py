"""What both ends of a question know: how a refusal looks, and how the pieces of a stream are told apart."""

from typing import Final

LENGTH_BYTES: Final = 4
"""Of the length before each piece of a stream, most significant byte first."""


class Refusal(Exception):
    """A question is not answered. `code` is one of `systems.messages.shapes.Refused`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

"""What goes wrong, by who can mend it. Every error has a code, and says whether the same call may succeed later.

The codes that servers refuse with (`bad_credential`, `bad_room_name`, …) are those of the wire; the table is in
`docs/errors.md`.
"""

from collections.abc import Mapping
from typing import ClassVar, Final


class MusterError(Exception):
    """Base of all errors of this library. `code` is stable, the text is for people."""

    code: str = "error"
    retry: bool = False


class Unavailable(MusterError):
    """No instance runs where one was looked for, or it gave no address for what was asked."""

    code = "unavailable"
    retry = True


class TimedOut(MusterError, TimeoutError):
    """Nothing was refused, but the answer did not come in time. A message may still have been published."""

    code = "timeout"
    retry = True


class Refused(MusterError):
    """A server answered no. `code` is its reason."""

    WORDS: ClassVar[Mapping[str, str]] = {
        "bad_credential": "the token is wrong, or its time is over",
        "too_many_rooms": "one client is in at most 256 rooms at a time",
        "bad_room_name": "that is no room name",
        "name_collision": "another room has this name's number; choose another name",
        "not_allowed": "that is not allowed to this client, or not by its token",
        "busy": "the room's owner has no place for another publisher or room",
        "too_much_history": "more messages of history than the server gives; see history_max of its gateways",
        "rate_limited": "too many commands, or questions for members, of this user",
    }

    def __init__(self, what: str, code: str, retry_after: float | None = None) -> None:
        super().__init__(what, code)
        self.code = code
        self.retry = code in {"busy", "rate_limited"}
        self.retry_after = retry_after
        """Seconds, where the server said so."""

    def __str__(self) -> str:
        what, code = self.args
        words = self.WORDS.get(code)
        return f"{what}: {code}" if words is None else f"{what}: {words} ({code})"


class TooLong(MusterError, ValueError):
    """A message is longer than 65,536 bytes, or a command than 800. Nothing was sent."""

    code = "too_long"


class Invalid(MusterError, ValueError):
    """An argument, or the moment of a call, is wrong. Nothing was sent."""

    code = "invalid"


class BadRoomName(Invalid):
    """The name is none; the text says which rule it breaks."""

    code = "bad_room_name"


class Closed(MusterError):
    """The client is closed, or was closed while this call waited."""

    code = "closed"


SESSIONS: Final = ("gateway", "proxy")
"""The servers that a client has a session with, as the engine numbers them."""

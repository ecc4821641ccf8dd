"""The errors of the library, by guilt. Each has a code, and tells whether the same call may succeed later.

The codes with which servers refuse (`bad_credential`, `bad_room_name`, …) are those of the wire: see `docs/errors.md`.
"""

from collections.abc import Mapping
from typing import ClassVar, Final


class MusterError(Exception):
    """The base of all errors of this library. `code` is stable; the text is for people."""

    code: str = "error"
    retry: bool = False


class Unavailable(MusterError):
    """No instance runs here, its files cannot be read, or the client lacks the server that a call needs."""

    code = "unavailable"
    retry = True


class TimedOut(MusterError, TimeoutError):
    """No answer came in time. A message may still have been published."""

    code = "timeout"
    retry = True


class NothingListens(TimedOut):
    """No session was opened: the kernel of that host reports that nothing listens at the address."""

    code = "nothing_listens"


class WrongKey(TimedOut):
    """No session was opened: a server answers, but it does not have the public key that the client expects."""

    code = "wrong_key"
    retry = False


class OtherVersion(TimedOut):
    """No session was opened: server and library have no version of the protocol in common."""

    code = "other_version"
    retry = False


class Refused(MusterError):
    """A server refused. `code` is its reason."""

    WORDS: ClassVar[Mapping[str, str]] = {
        "bad_credential": "the token is wrong or has expired",
        "too_many_rooms": "the client is in 256 rooms, or the user in 1,024 at one gateway (limits unless "
        "user_rooms_max differs); leave a room, or use another client",
        "bad_room_name": "invalid room name",
        "name_collision": "another room has the same number; choose another name",
        "not_allowed": "the client's token does not allow this in this room, or at this server",
        "busy": "the room's owner accepts no further publisher or room now, or too many calls of this client wait",
        "too_much_history": "more history than the gateways allow (limit 1,024 messages unless their history_max differs)",
        "replaced": "a newer session of the same user has replaced this one; this client does not reconnect by itself; "
        "another client of this device needs a token with the claim take_over",
        "ended": "an operator has ended this session; this client does not reconnect by itself; open another client to come "
        "back",
        "too_many_devices": "the user has too many devices at this gateway (limit 32); end one of them",
        "bad_device": "invalid device name in the token (expected 1 to 23 printable ASCII characters without blanks and "
        "commas)",
        "rate_limited": "too many commands or requests for members of this user (limit 1 per second unless the proxies' "
        "command_rate differs)",
    }

    def __init__(self, what: str, code: str, retry_after: float | None = None) -> None:
        super().__init__(what, code)
        self.code = code
        self.retry = code in {"busy", "rate_limited"}
        self.retry_after = retry_after
        """Seconds until the next try, if the server named a time."""

    def __str__(self) -> str:
        what, code = self.args
        words = self.WORDS.get(code)
        said = f"{what}: {code}" if words is None else f"{what}: {words} ({code})"
        if self.retry_after:
            return f"{said}; try again in {max(self.retry_after, 0.1):.1f} s"
        return f"{said}; try again later" if self.retry else said


class NoResponders(MusterError):
    """The room has no responder now. The request went nowhere."""

    code = "no_responders"
    retry = True


class ResponderFailed(MusterError):
    """A responder took the request but has no reply. `reason`: `failed` (its handler raised), `busy`, `too_long` or
    `invalid` (its reply), `malformed`, or a word of a responder of your own."""

    code = "responder_failed"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.reason = reason
        self.retry = reason == "busy"

    def __str__(self) -> str:
        what, reason = self.args
        return f"{what} ({reason})"


class TooLong(MusterError, ValueError):
    """A message is longer than 65,536 bytes, a request than 48,000, or a command than 800. Nothing was sent."""

    code = "too_long"


class Invalid(MusterError, ValueError):
    """An argument is wrong, or the call came at a wrong time. Nothing was sent."""

    code = "invalid"


class BadRoomName(Invalid):
    """The room name is invalid; the text names the violated rule."""

    code = "bad_room_name"


class Closed(MusterError):
    """The client is closed, or was closed while this call waited."""

    code = "closed"


SESSIONS: Final = ("gateway", "proxy")
"""The servers of a client's two sessions, indexed by the engine's numbers."""

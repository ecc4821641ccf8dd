"""Identifies the clients of an edge: by a token of Muster, without one, or by a token for one room.

Owns the rules beyond those of every door (`plane/auth.py`). A token that has expired is told apart from a wrong one: SDKs
bring another one after the first, and stay away after the second.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from muster_server import _engines
from muster_server.plane.auth import (
    LEEWAY_S,
    NOTHING,
    ROOMS_MAX,
    Admitted,
    Denied,
    Patterns,
    Sends,
    TokenAuthenticator,
    token_number,
)
from muster_server.plane.jwks import NotYet
from muster_server.plane.trust import Trust
from muster_server.plane.users import EMBEDDED_USER, user_of

ROOM_RIGHTS: Final = ("read", "history", "members")
"""Rights of a token for one room that names none."""


class EdgeAuthenticator(TokenAuthenticator):
    """As at gateways, with any right: a client that only publishes is one too. `anonymous`: the rights of a client without a
    token; empty: it is refused."""

    expired: Denied = "expired"

    def __init__(
        self,
        token: bytes,
        trust: Trust = NOTHING,
        defaults: Patterns = (),
        anonymous: Sequence[str] = (),
        sends: Sends | None = None,
    ) -> None:
        """Raises `SpecError`."""
        super().__init__(token, "read", trust, defaults, sends)
        self._opens = list(_engines.RIGHTS)
        self._anonymous = _engines.Grant([("*", list(anonymous))]) if anonymous else None

    def authenticate(self, credential: bytes) -> Admitted | Denied:
        """The user of a connection."""
        if credential or self._anonymous is None:
            return super().authenticate(credential)
        return Admitted(EMBEDDED_USER, self._anonymous)

    def _rooms(self, claims: Mapping[str, Any], grant: _engines.Grant) -> tuple[str, ...]:
        """The claim `rooms`. Raises `ValueError` for a room that the token gives no right to read."""
        rooms = claims.get("rooms", [])
        if not isinstance(rooms, list) or len(rooms) > ROOMS_MAX or not all(isinstance(room, str) for room in rooms):
            raise ValueError(f"invalid rooms (expected a list of at most {ROOMS_MAX} names)")
        if any("read" not in grant.words(room) for room in rooms):
            raise ValueError("invalid rooms (a room that the token gives no right to read)")
        return tuple(rooms)

    def for_room(self, credential: bytes, room: str) -> Admitted | Denied:
        """The user and its rights in this room, by a token for the room alone: `sub`, `exp`, `channel`, perhaps `cap`.

        The engine refuses a token of another user than the connection's.
        """
        try:
            claims = self._claims(credential)
            name = claims.get("jti")
            user = user_of(str(claims["sub"]), self._trust.user_key)
            if claims.get("channel") != room or user in self._trust.users or name in self._trust.tokens:
                return "bad_credential"
            grant = self._grant(claims) if "cap" in claims else _engines.Grant([(room, list(ROOM_RIGHTS))])
            return Admitted(user, grant, claims["exp"] + LEEWAY_S, token_number(name))
        except NotYet:
            return "not_ready"
        except jwt.ExpiredSignatureError:
            return "expired"
        except Exception:  # as in `TokenAuthenticator.authenticate`
            return "bad_credential"

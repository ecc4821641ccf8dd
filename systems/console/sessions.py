"""Sessions of browsers, in memory: a restart of the console ends them. Time is passed in.

Owns ids, tokens against forged requests, and lifetimes. Knows no request.
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from muster_server.systems.console.users import Role

SESSIONS_MAX: Final = 10_000
"""Limit of sessions, about 500 bytes each; the one that was used longest ago ends first."""
Means = Literal["password", "key", "link", "proxy"]


@dataclass(slots=True)
class Session:
    """One login of one browser."""

    user: str
    role: Role
    means: Means
    """How its user logged in, so that the loss of this right ends it."""
    proof: str
    """The id of the key, or the hash of the password, at the login."""
    began: float
    used: float
    id: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    over: bool = False
    on_end: set[Callable[[], None]] = field(default_factory=set)
    """Called when it ends: open pages close."""

    def is_proved(self, token: str) -> bool:
        """Whether a request carries the token of this session, which no page of another site can read."""
        return hmac.compare_digest(self.csrf.encode(), token.encode(errors="replace"))


class Sessions:
    """All sessions of one console."""

    def __init__(self, session_s: float, idle_s: float) -> None:
        self.session_s, self.idle_s = session_s, idle_s
        self._by_id: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, user: str, role: Role, means: Means, proof: str, now: float) -> Session:
        """A new session, with an id that no browser has proposed."""
        session = Session(user, role, means, proof, now, now)
        self._by_id[session.id] = session
        while len(self._by_id) > SESSIONS_MAX:
            self.end(next(iter(self._by_id.values())))
        return session

    def all(self) -> list[Session]:
        """All sessions, the one that was used longest ago first."""
        return list(self._by_id.values())

    def find(self, id: str, now: float) -> Session | None:
        """The living session of this id; counts as a use of it."""
        session = self._by_id.get(id)
        if session is None:
            return None
        if self.is_late(session, now):
            self.end(session)
            return None
        session.used = now
        self._by_id.move_to_end(id)
        return session

    def is_late(self, session: Session, now: float) -> bool:
        """Whether it is too old, or was not used for too long."""
        return now - session.began > self.session_s or (now - session.used > self.idle_s and not session.on_end)

    def end(self, session: Session) -> None:
        """End it now."""
        session.over = True
        self._by_id.pop(session.id, None)
        for call in tuple(session.on_end):
            call()

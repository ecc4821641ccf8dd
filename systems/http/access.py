"""Authentication of callers, and their rights: an API key with scopes, or a user's token with the same rights as at
gateways.

Owns the check of credentials and the rates per caller. Knows no route; the actions are those of the systems.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from muster_server import _engines
from muster_server.plane.auth import (
    LEEWAY_S,
    OPENS,
    Admitted,
    Patterns,
    TokenAuthenticator,
    token_number,
)
from muster_server.plane.kind import Action, Right
from muster_server.plane.trust import Trust
from muster_server.plane.users import user_of
from muster_server.systems.http.keys import PREFIX, Key, Keyring
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.rates import Buckets

CREDENTIAL_CHARS_MAX: Final = 4_096
LOOK_AGAIN_S: Final = 0.1
"""Shortest time, in seconds, between two checks of the file because of an unknown key."""


class UserTokens(TokenAuthenticator):
    """Accepts every valid token of a user, whatever it allows: a user may always see and set its own status."""

    def __init__(self, trust: Trust) -> None:
        super().__init__(secrets.token_bytes(32), "read", trust)  # the shared token never leaves the cluster

    def _admits(self, grant: _engines.Grant, recipients: _engines.Recipients) -> bool:
        return True

    def _cap(self, claims: Mapping[str, Any]) -> Patterns:
        return tuple(claims.get("cap", {}).items())


class Cap:
    """The words of a token's claim `cap` that are no rights in rooms, such as `watch` at `presence:7`.

    Patterns are judged as those of rooms are: the most specific one that matches decides.
    """

    def __init__(self, patterns: Patterns = ()) -> None:
        self._patterns = patterns
        self._grants: dict[tuple[str, str, bool], _engines.Grant] = {}

    def allows(self, word: str, action: str, name: str, *, whole: bool) -> bool:
        """Return whether the word stands at the pattern of `ACTION:NAME`. `whole`: as in `keys.covers`."""
        key = (word, action, whole)
        if key not in self._grants:
            self._grants[key] = _engines.Grant(
                [
                    (
                        pattern,
                        ["read"] if word in words else [],
                    )  # `read` stands for the word, which engines do not know
                    for pattern, words in self._patterns
                    if not (whole and pattern.endswith("*") and pattern not in {"*", f"{action}:*"})
                ]
            )
        try:
            return "read" in self._grants[key].words(f"{action}:{name}")
        except ValueError:  # no pattern can have such a name
            return False


NO_CAP: Final = Cap()


@dataclass(frozen=True, slots=True)
class Caller:
    """One authenticated caller. `name` is for logs and rates; `token` is a user's, None for an API key."""

    name: str
    token: bytes | None
    until: float | None
    """End of a user's token, in seconds since 1970."""
    key: Key | None
    rights: frozenset[Right]
    access: "Access"
    user: int | None = None
    """The number of the token's user; None for an API key."""
    cap: Cap = NO_CAP
    token_number: int = 0
    """By which the token can be revoked; 0: none."""

    def may(self, action: str, room: str, *, whole: bool = False) -> bool:
        """Whether this is allowed now: the key may have been revoked since. `whole`: as in `keys.covers`."""
        return self.access.allows(self, action, room, whole=whole)

    def need(self, action: str, room: str, *, whole: bool = False) -> None:
        """Raise `Problem` unless this is allowed."""
        if not self.may(action, room, whole=whole):
            wanted = f"the scope {action}:{room}" if self.token is None else "the right to it"
            raise Problem("not_allowed", f"{self.name} does not have {wanted}"[:400])

    def may_stay(self) -> bool:
        """Return whether its credential is still valid."""
        return self.access.is_valid(self)

    def spend(self, messages: int) -> None:
        """Count messages towards the rate. Raises `Problem`."""
        self.access.spend(self, messages)

    def spend_at_most_all(self, samples: int) -> int:
        """Count samples towards the same rate, but at most a full bucket. Returns the count. Raises `Problem`."""
        count = min(samples, self.access.bucket)
        self.access.spend(self, count)
        return count

    def regain(self, messages: int) -> None:
        """Undo the count of messages: nothing was done."""
        self.access.regain(self, messages)


class Access:
    """Checks credentials. `trust`: secrets, keys and revocations of users' tokens; `look` reloads a changed file of
    keys."""

    def __init__(
        self,
        keyring: Keyring,
        trust: Trust,
        actions: Mapping[str, Action],
        *,
        requests_rate: int,
        messages_rate: int,
        look: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keyring, self._actions, self._look, self._clock = keyring, actions, look, clock
        self._looked = clock()
        self._tokens = UserTokens(trust)
        self._keep(trust)
        self._requests, self._messages = Buckets(requests_rate), Buckets(messages_rate)

    def take_trust(self, trust: Trust) -> None:
        """Use these secrets, keys and revocations for users' tokens from now on. Raises `SpecError`."""
        self._tokens.take_trust(trust)
        self._keep(trust)

    def _keep(self, trust: Trust) -> None:
        self._user_key = trust.user_key
        self._revoked_users = trust.users
        self._revoked_tokens = {token_number(token) for token in trust.tokens}

    def user_of(self, text: str) -> int:
        """The number of a user that is named by number or by text. Raises `ValueError`."""
        return user_of(text, self._user_key)

    def set_rates(self, requests: int, messages: int) -> None:
        """Use these rates per caller from now on."""
        self._requests.set_rate(requests)
        self._messages.set_rate(messages)

    def caller(self, authorization: str | None, api_key: str | None) -> Caller:
        """Identify the caller; counts the request against the rate. Raises `Problem`."""
        scheme, _, bearer = (authorization or "").strip().partition(" ")
        if scheme.lower() == "apikey":  # as clients of Centrifugo's server API say it
            api_key = api_key or bearer.strip()
        elif authorization and scheme.lower() != "bearer":
            raise Problem("bad_credential", "Authorization must use the scheme Bearer, or apikey for an API key")
        credential = api_key or bearer.strip()
        if not credential:
            raise Problem("no_credential", "send X-API-Key, or Authorization: Bearer with a key or a token")
        if len(credential) > CREDENTIAL_CHARS_MAX:
            raise Problem("bad_credential")
        found = self._key(credential) if credential.startswith(PREFIX) or api_key else self._user(credential)
        wait = self._requests.take(found.name, 1, self._clock())
        if wait:
            raise Problem("rate_limited", f"too many requests of {found.name}", retry_after=wait)
        return found

    def allows(self, caller: Caller, action: str, room: str, *, whole: bool = False) -> bool:
        """As `Caller.may`."""
        if caller.key is not None:
            key = self._keyring.current(caller.key.id)
            return key is not None and key.sha256 == caller.key.sha256 and key.allows(action, room, whole=whole)
        found = self._actions[action]
        if found.word:
            return self._is_own(caller, room) or caller.cap.allows(found.word, action, room, whole=whole)
        return found.right is not None and found.right in caller.rights

    def _is_own(self, caller: Caller, name: str) -> bool:
        try:
            return self.user_of(name) == caller.user
        except ValueError:
            return False

    def is_valid(self, caller: Caller) -> bool:
        """As `Caller.may_stay`."""
        if caller.key is not None:
            key = self._keyring.current(caller.key.id)
            return key is not None and key.sha256 == caller.key.sha256
        over = caller.until is not None and time.time() > caller.until + LEEWAY_S
        return not over and caller.user not in self._revoked_users and caller.token_number not in self._revoked_tokens

    def spend(self, caller: Caller, messages: int) -> None:
        """As `Caller.spend`."""
        wait = self._messages.take(caller.name, messages, self._clock())
        if wait:
            raise Problem("rate_limited", f"too many messages of {caller.name}", retry_after=wait)

    def regain(self, caller: Caller, messages: int) -> None:
        """As `Caller.regain`."""
        self._messages.give(caller.name, messages)

    @property
    def bucket(self) -> int:
        """Number of messages that a caller may send at once after a pause."""
        return self._messages.size

    def _key(self, credential: str) -> Caller:
        key = self._keyring.find(credential)
        if key is None and self._clock() - self._looked > LOOK_AGAIN_S:  # the key may have been created just now
            self._looked = self._clock()
            self._look()
            key = self._keyring.find(credential)
        if key is None:
            raise Problem("bad_credential")
        return Caller(f"key {key.name}", None, None, key, frozenset(), self)

    def _user(self, credential: str) -> Caller:
        try:
            token = credential.encode("ascii")
        except UnicodeEncodeError:
            raise Problem("bad_credential") from None
        found = self._tokens.authenticate(token)
        if not isinstance(found, Admitted):
            if found == "not_ready":
                raise Problem("unavailable", "the keys that sign users' tokens are not known yet; try again")
            raise Problem("bad_credential")
        rights = frozenset(right for right, words in OPENS.items() if found.grant.has_any(list(words)))
        until = None if found.until is None else found.until - LEEWAY_S
        return Caller(
            f"user {found.user}",
            token,
            until,
            None,
            rights,
            self,
            found.user,
            Cap(found.cap),
            found.token,
        )

"""Authentication of callers, and their rights: an API key with scopes, or a user's token with the same rights as at
gateways.

Owns the check of credentials and the rates per caller. Knows no route; the actions are those of the systems.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from muster_server.plane.auth import LEEWAY_S, Admitted, TokenAuthenticator
from muster_server.plane.kind import Action, Right
from muster_server.plane.trust import Trust
from muster_server.plane.users import user_of
from muster_server.systems.http.keys import PREFIX, Key, Keyring
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.rates import Buckets

CREDENTIAL_CHARS_MAX: Final = 4_096
LOOK_AGAIN_S: Final = 0.1
"""Shortest time, in seconds, between two checks of the file because of an unknown key."""


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

    def may(self, action: str, room: str, *, whole: bool = False) -> bool:
        """Whether this is allowed now: the key may have been revoked since. `whole`: as in `keys.covers`."""
        return self.access.allows(self, action, room, whole=whole)

    def need(self, action: str, room: str, *, whole: bool = False) -> None:
        """Raise `Problem` unless this is allowed."""
        if not self.may(action, room, whole=whole):
            wanted = f"the scope {action}:{room}" if self.token is None else "the right to it"
            raise Problem("not_allowed", f"{self.name} does not have {wanted}"[:400])

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
        self._user_key = trust.user_key
        nobody = secrets.token_bytes(32)  # the shared token is refused here: it never leaves the cluster
        rights: tuple[Right, ...] = ("read", "publish")
        self._users = {right: TokenAuthenticator(nobody, right, trust) for right in rights}
        self._requests, self._messages = Buckets(requests_rate), Buckets(messages_rate)

    def take_trust(self, trust: Trust) -> None:
        """Use these secrets, keys and revocations for users' tokens from now on. Raises `SpecError`."""
        self._user_key = trust.user_key
        for each in self._users.values():
            each.take_trust(trust)

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
        right = self._actions[action].right
        return right is not None and right in caller.rights

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
        said = {right: each.authenticate(token) for right, each in self._users.items()}
        admitted = [each for each in said.values() if isinstance(each, Admitted)]
        if not admitted:
            if "not_ready" in said.values():
                raise Problem("unavailable", "the keys that sign users' tokens are not known yet; try again")
            raise Problem("not_allowed" if "not_allowed" in said.values() else "bad_credential")
        rights = frozenset(right for right, each in said.items() if isinstance(each, Admitted))
        until = None if admitted[0].until is None else admitted[0].until - LEEWAY_S
        return Caller(f"user {admitted[0].user}", token, until, None, rights, self, admitted[0].user)

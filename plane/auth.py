"""Decides which user may open a session, with which rights. Gateway and proxy ask once per session, and again for each
renewed token.

There are three credentials: the shared token, which `muster up` writes to a file; the prober's, which is derived from
it; and users' tokens, signed with a secret of the cluster or with a key that the cluster knows. `plane/trust.py` reads
the secrets and keys.
"""

import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

import jwt

from muster_server import _engines
from muster_server.plane.engine import DoorEngine
from muster_server.plane.jwks import FetchedKeys, KeptKeys, NotYet
from muster_server.plane.kind import Right
from muster_server.plane.role import Handler
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.trust import PROBES, Trust, probe_token, shared_token, trust_of
from muster_server.plane.users import EMBEDDED_USER, HASHED, Texts, recipient_of, user_of

ALGORITHM: Final = "HS256"
LEEWAY_S: Final = 5.0
"""Allowed difference between the clocks of the signer and the checker, in seconds."""
VALID_S_MAX: Final = 366 * 86_400
"""Limit of a token's remaining validity, in seconds. An end beyond it is a mistake, for example a time in milliseconds."""
ROOMS_MAX: Final = 64
"""Limit of rooms that one token subscribes its client to, as in the engine of an edge."""

Words = Sequence[str]
"""Rights in a room, of `_engines.RIGHTS`; other words grant nothing."""
Patterns = Sequence[tuple[str, Words]]
"""Rights by pattern of room names: a name, a prefix with `*`, or `*`. The most specific pattern decides."""
Sends = Sequence[tuple[int, int, Words]]
"""For each range of users (first, last): patterns of the users to whom these may send, each a number, its first digits
with `*`, or `*`. The first range that contains the user decides."""
EVERYTHING: Final[Patterns] = (("*", tuple(_engines.RIGHTS)),)
MEANT: Final[Mapping[str, Words]] = {"read": ("read", "history"), "publish": ("publish", "command", "members")}
"""The rights in a room for each word of the claim `rights`."""
OPENS: Final[Mapping[Right, Words]] = {"read": ("read",), "publish": ("publish", "command", "members")}
"""For each right that a door requires: a session opens if the token has one of these rights in a room."""

NOTHING: Final = Trust()
"""Accepts no user's token."""

Denied = Literal["bad_credential", "expired", "not_allowed", "not_ready"]
"""The reason why a credential opens nothing. `bad_credential`: unknown; `expired`: its time is over; `not_allowed`: the user
lacks the right; `not_ready`: the key set that may verify it is still being fetched."""


NOBODY: Final = _engines.Recipients([])
EVERYBODY: Final = _engines.Recipients(["*"])


@dataclass(frozen=True, slots=True)
class Admitted:
    """The user and the rights of a valid credential."""

    user: int
    grant: _engines.Grant
    """The user's rights in each room."""
    until: float | None = None
    """End of the credential, in seconds since 1970; None: never."""
    token: int = 0
    """The number by which the credential can be revoked; 0: none."""
    device: bytes = b""
    """Name of the user's device; empty: none."""
    takes_over: bool = False
    """The user wants this device here, also where another one has just replaced it."""
    text: str = ""
    """The user's name if it is text; else empty."""
    recipients: _engines.Recipients = NOBODY
    """The users to whom this user may send."""
    rooms: tuple[str, ...] = ()
    """The rooms that an edge subscribes the client to as it connects."""
    cap: Patterns = ()
    """The claim `cap`, at an HTTP face alone: it has words beyond the rights in rooms."""


class Authenticator(Protocol):
    """Checks credentials. Called on the control path with at most 256 pending questions; must not block."""

    def authenticate(self, credential: bytes) -> Admitted | Denied:
        """Return the user of a credential, or the code of its refusal."""

    def take_trust(self, trust: Trust) -> None:
        """Use these secrets, keys and revocations from now on. Open sessions stay. Raises `SpecError` and changes
        nothing."""


class TokenAuthenticator:
    """Accepts the shared token, and users' tokens signed with one of the secrets or keys; without these it accepts no
    user's token.

    `defaults`: the rights of a token without `cap`, as far as its `rights` allow them. `sends`: to whom users without
    `send` may send; None: nobody sends here, whatever a token grants.
    """

    expired: Denied = "bad_credential"
    """The answer to a token whose time is over. Clients over UDP know one code for every credential that is not good."""

    def __init__(
        self,
        token: bytes,
        right: Right,
        trust: Trust = NOTHING,
        defaults: Patterns = EVERYTHING,
        sends: Sends | None = None,
    ) -> None:
        """Raises `SpecError`, and `ValueError` for invalid patterns."""
        if not token:
            raise ValueError("an empty token would admit every client")
        self._token, self._opens, self._defaults = token, list(OPENS[right]), defaults
        self._sends = (
            None if sends is None else [(first, last, _engines.Recipients(list(to))) for first, last, to in sends]
        )
        self._everything = _engines.Grant(_listed(EVERYTHING))
        self._probe, self._probes = probe_token(token), _engines.Grant([(f"{PROBES}:*", list(_engines.RIGHTS))])
        self._keys: KeptKeys | FetchedKeys = KeptKeys("")
        self.take_trust(trust)

    def take_trust(self, trust: Trust) -> None:
        """The simplest form: uses no secrets, keys or revocations."""
        if not trust.keys_url:
            self._keys = KeptKeys(trust.keys)
        elif not isinstance(self._keys, FetchedKeys) or self._keys.url != trust.keys_url:
            self._keys = FetchedKeys(trust.keys_url)
        self._trust = trust

    def authenticate(self, credential: bytes) -> Admitted | Denied:
        """Compare with the shared token in constant time, else check the signature, the times, the user and the
        rights."""
        if hmac.compare_digest(credential, self._token):
            return Admitted(EMBEDDED_USER, self._everything, recipients=EVERYBODY)
        if hmac.compare_digest(credential, self._probe):
            return Admitted(EMBEDDED_USER, self._probes)
        try:
            claims = self._claims(credential)
            text, name = str(claims["sub"]), _name(claims)
            user = user_of(text, self._trust.user_key)
            if user in self._trust.users or name in self._trust.tokens:
                return "bad_credential"
            grant, recipients = self._grant(claims), self._recipients(user, claims)
            device, rooms = str(claims.get("device", "")).encode(), self._rooms(claims, grant)
        except NotYet:
            return "not_ready"
        except jwt.ExpiredSignatureError:  # after its signature was found right
            return self.expired
        except Exception:  # untrusted bytes may raise any exception in the library; they are refused
            return "bad_credential"
        if not self._admits(grant, recipients):
            return "not_allowed"
        until, takes_over = claims["exp"] + LEEWAY_S, claims.get("take_over") is True
        cap = self._cap(claims)
        return Admitted(user, grant, until, token_number(name), device, takes_over, text, recipients, rooms, cap)

    def _admits(self, grant: _engines.Grant, recipients: _engines.Recipients) -> bool:
        """Return whether a good token with these rights opens something here."""
        return grant.has_any(self._opens) or bool(recipients)

    def _cap(self, claims: Mapping[str, Any]) -> Patterns:
        """The claim `cap` for checks beyond rights in rooms: nothing, except at an HTTP face."""
        return ()

    def _rooms(self, claims: Mapping[str, Any], grant: _engines.Grant) -> tuple[str, ...]:
        """The rooms that the client is subscribed to as it connects: none, except at an edge. Raises `ValueError`."""
        return ()

    def _claims(self, credential: bytes) -> Mapping[str, Any]:
        header = jwt.get_unverified_header(credential)
        if header.get("alg") == ALGORITHM:
            return _checked(credential, ALGORITHM, self._trust.secrets)
        key = self._keys.find(header.get("kid"))
        if key is None:
            raise jwt.InvalidTokenError("unknown key id")
        return _checked(credential, key.algorithm_name, [key])

    def _grant(self, claims: Mapping[str, Any]) -> _engines.Grant:
        """Rights by `cap`; without it by `rights` and the defaults."""
        if "cap" in claims:
            cap = claims["cap"]
            if not isinstance(cap, dict):
                raise ValueError("invalid cap (expected an object of room patterns, each with a list of rights)")
            return _engines.Grant(_listed([(pattern, _words(words)) for pattern, words in cap.items()]))
        meant = {word for right in _words(claims.get("rights", ["read"])) for word in MEANT.get(right, ())}
        return _engines.Grant(
            [(pattern, [word for word in words if word in meant]) for pattern, words in self._defaults]
        )

    def _recipients(self, user: int, claims: Mapping[str, Any]) -> _engines.Recipients:
        """Recipients by `send`; without it by the range of the user."""
        key, words = self._trust.user_key, _words(claims.get("send", []))
        said = _engines.Recipients([recipient_of(word, key) for word in words])
        if self._sends is None:
            return NOBODY
        if "send" in claims:
            return said
        return next((to for first, last, to in self._sends if first <= user <= last), NOBODY)


def _checked(credential: bytes, algorithm: str, keys: Sequence[Any]) -> Mapping[str, Any]:
    """The claims, if one of these keys signed them and their times are valid. Raises the errors of the JWT library."""
    error: Exception = jwt.InvalidTokenError("no signing secret is configured")
    for key in keys:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                credential,
                key,
                algorithms=[algorithm],
                leeway=LEEWAY_S,
                options={"require": ["sub", "exp"]},
            )
        except jwt.InvalidSignatureError as wrong:
            error = wrong
        else:
            if claims["exp"] > time.time() + VALID_S_MAX + LEEWAY_S:
                raise jwt.InvalidTokenError("the token expires too far in the future")
            return claims
    raise error


def token_number(name: str | None) -> int:
    """The number of a token's id (`jti`) for engines; 0: the token has no id."""
    if name is None:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1


def _name(claims: Mapping[str, Any]) -> str | None:
    name = claims.get("jti")
    if not isinstance(name, str | None):
        raise ValueError("invalid jti (expected text)")
    return name


def _words(words: Any) -> Words:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("invalid rights (expected a list of words)")
    return words


def _listed(patterns: Patterns) -> list[tuple[str, list[str]]]:
    return [(pattern, list(words)) for pattern, words in patterns]


def mint(
    secret: bytes,
    user: int | str,
    rights: Sequence[Right],
    now: float,
    seconds: float,
    cap: Patterns | None = None,
    token_id: str | None = None,
    device: str | None = None,
    send: Words | None = None,
    take_over: bool = False,
    rooms: Words = (),
) -> str:
    """Make a token for a user, and optionally a device, that ends `seconds` after `now` (seconds since 1970).

    `cap` replaces `rights`. `send`: patterns of the users to whom it may send; None: as the cluster's configuration
    allows.
    `take_over`: the device may come although another one has just replaced it. `rooms`: an edge subscribes the client to
    these as it connects.
    """
    claims: dict[str, Any] = {"sub": str(user), "exp": int(now + seconds)}
    claims |= {"rights": list(rights)} if cap is None else {"cap": dict(_listed(cap))}
    claims |= {} if token_id is None else {"jti": token_id}
    claims |= {} if device is None else {"device": device}
    claims |= {} if send is None else {"send": list(send)}
    claims |= {"take_over": True} if take_over else {}
    claims |= {"rooms": list(rooms)} if rooms else {}
    return jwt.encode(claims, secret, algorithm=ALGORITHM)


def embedded(spec: Spec, right: Right | None, defaults: Patterns, sends: Sends | None = None) -> TokenAuthenticator:
    """The authenticator of a door. `right`: required of a token; None: the token must have users to send to. Raises
    `SpecError`."""
    if spec.token_file is None or right is None:
        raise SpecError(f"the spec of this {spec.role} names no token_file")
    token, trust = shared_token(spec.token_file), trust_of(spec)
    try:
        return TokenAuthenticator(token, right, trust, defaults, sends)
    except ValueError as error:
        raise SpecError(f"presence.send: {error}") from None


def answering(engine: DoorEngine, authenticator: Authenticator, texts: Texts) -> Handler:
    """The handler of an engine's `authenticate` events. It remembers names of users that are text."""

    def authenticate(question: int, credential: bytes) -> None:
        answer(engine, question, authenticator.authenticate(credential), texts)

    return authenticate


def answer(engine: DoorEngine, question: int, said: Admitted | Denied, texts: Texts) -> None:
    """Answer a question of an engine. Users that are text are kept among the texts."""
    if not isinstance(said, Admitted):
        engine.answer(question, None, said)
        return
    if said.user >= HASHED:
        texts.keep(said.user, said.text)
    left = None if said.until is None else max(0, int((said.until - time.time()) * 1_000))
    at_edge: dict[str, Any] = {"rooms": list(said.rooms)} if said.rooms else {}
    engine.answer(
        question,
        said.user,
        grant=said.grant,
        left_ms=left,
        token=said.token,
        device=said.device,
        recipients=said.recipients,
        takes_over=said.takes_over,
        **at_edge,
    )


def taking(engine: DoorEngine, authenticator: Authenticator, trust: Trust) -> None:
    """Use new secrets, keys and revocations, and end the sessions of revoked users and tokens. Raises `SpecError`."""
    authenticator.take_trust(trust)
    engine.revoke(trust.users, {token_number(token) for token in trust.tokens})

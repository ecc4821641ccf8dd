"""Decides which user may open a session, with which rights: gateway and proxy ask once per session, and for each further
token of it.

There are three credentials: the shared token, which `muster up` writes to a file; the prober's, which follows from it;
and users' tokens, signed with a secret of the cluster or with a key that the cluster knows. What is trusted stands in
`plane/trust.py`.
"""

import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

import jwt

from muster import _core
from muster_server.plane.engine import DoorEngine
from muster_server.plane.jwks import FetchedKeys, KeptKeys, NotYet
from muster_server.plane.kind import Right
from muster_server.plane.role import Handler
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.trust import PROBES, Trust, probe_token, shared_token, trust_of
from muster_server.plane.users import EMBEDDED_USER, HASHED, Texts, recipient_of, user_of

ALGORITHM: Final = "HS256"
LEEWAY_S: Final = 5.0
"""Allowed difference between the clocks of the signer and the checker."""
VALID_S_MAX: Final = 366 * 86_400
"""Longest validity from now on. An end beyond it is a mistake, as one in milliseconds, and would never come."""

Words = Sequence[str]
"""Rights in a room, of `_core.RIGHTS`; other words mean nothing."""
Patterns = Sequence[tuple[str, Words]]
"""Rights by pattern of room names: a name, the beginning of one with `*`, or `*`. The most specific one decides."""
Sends = Sequence[tuple[int, int, Words]]
"""By range of users, first and last: patterns of the users to whom these may send, each a number, its first digits with
`*`, or `*`. The first range that has a user decides."""
EVERYTHING: Final[Patterns] = (("*", tuple(_core.RIGHTS)),)
MEANT: Final[Mapping[str, Words]] = {"read": ("read", "history"), "publish": ("publish", "command", "members")}
"""The rights in a room that a word of the claim `rights` stands for."""
OPENS: Final[Mapping[Right, Words]] = {"read": ("read",), "publish": ("publish", "command", "members")}
"""By the right that a door asks for: the rights in a room of which one opens a session there."""

NOTHING: Final = Trust()
"""No token of a user is good."""

Denied = Literal["bad_credential", "expired", "not_allowed", "not_ready"]
"""Why a credential opens nothing: it stands for nobody, its time is over, its user lacks the right, or the key that may have
signed it is on its way."""


NOBODY: Final = _core.Recipients([])
EVERYBODY: Final = _core.Recipients(["*"])


@dataclass(frozen=True, slots=True)
class Admitted:
    """A user whom a credential stands for."""

    user: int
    grant: _core.Grant
    """Its rights, room by room."""
    until: float | None = None
    """When the credential ends, seconds since 1970; None: never."""
    token: int = 0
    """The number by which it can be revoked; 0: none."""
    device: bytes = b""
    """The name of the user's device; empty: none."""
    text: str = ""
    """The user as its token says it; empty: none does."""
    recipients: _core.Recipients = NOBODY
    """The users to whom it may send."""


class Authenticator(Protocol):
    """Checks credentials. Called on the control path with at most 256 waiting questions; must not block."""

    def authenticate(self, credential: bytes) -> Admitted | Denied:
        """Return the user of a credential, or the code of its refusal."""

    def take_trust(self, trust: Trust) -> None:
        """Judge by this from now on. Open sessions stay. Raises `SpecError` and changes nothing."""


class TokenAuthenticator:
    """The shared token, and users' tokens signed with one of the secrets or keys; without these, no user's token is
    accepted.

    `defaults`: the rights of a token without `cap`, as far as its `rights` say the same. `sends`: to whom users without
    `send` may send; None: nobody sends here, whatever a token says.
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
        """Raises `SpecError`, and `ValueError` for patterns that are none."""
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token, self._opens, self._defaults = token, list(OPENS[right]), defaults
        self._sends = (
            None if sends is None else [(first, last, _core.Recipients(list(to))) for first, last, to in sends]
        )
        self._everything = _core.Grant(_listed(EVERYTHING))
        self._probe, self._probes = probe_token(token), _core.Grant([(f"{PROBES}:*", list(_core.RIGHTS))])
        self._keys: KeptKeys | FetchedKeys = KeptKeys("")
        self.take_trust(trust)

    def take_trust(self, trust: Trust) -> None:
        """In its simplest form."""
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
            device = str(claims.get("device", "")).encode()
        except NotYet:
            return "not_ready"
        except jwt.ExpiredSignatureError:  # after its signature was found right
            return self.expired
        except Exception:  # a stranger's bytes may raise anything in the library; they open nothing
            return "bad_credential"
        if not grant.has_any(self._opens) and not recipients:
            return "not_allowed"
        return Admitted(user, grant, claims["exp"] + LEEWAY_S, token_number(name), device, text, recipients=recipients)

    def _claims(self, credential: bytes) -> Mapping[str, Any]:
        header = jwt.get_unverified_header(credential)
        if header.get("alg") == ALGORITHM:
            return _checked(credential, ALGORITHM, self._trust.secrets)
        key = self._keys.find(header.get("kid"))
        if key is None:
            raise jwt.InvalidTokenError("no key of this name is known")
        return _checked(credential, key.algorithm_name, [key])

    def _grant(self, claims: Mapping[str, Any]) -> _core.Grant:
        """By `cap`; without it by `rights` and the defaults."""
        if "cap" in claims:
            cap = claims["cap"]
            if not isinstance(cap, dict):
                raise ValueError("cap is an object: patterns of rooms and lists of words")
            return _core.Grant(_listed([(pattern, _words(words)) for pattern, words in cap.items()]))
        meant = {word for right in _words(claims.get("rights", ["read"])) for word in MEANT.get(right, ())}
        return _core.Grant([(pattern, [word for word in words if word in meant]) for pattern, words in self._defaults])

    def _recipients(self, user: int, claims: Mapping[str, Any]) -> _core.Recipients:
        """By `send`; without it by the range of the user."""
        key, words = self._trust.user_key, _words(claims.get("send", []))
        said = _core.Recipients([recipient_of(word, key) for word in words])
        if self._sends is None:
            return NOBODY
        if "send" in claims:
            return said
        return next((to for first, last, to in self._sends if first <= user <= last), NOBODY)


def _checked(credential: bytes, algorithm: str, keys: Sequence[Any]) -> Mapping[str, Any]:
    """The claims, if one of these keys signed them and their times are right. Raises what the library raises."""
    error: Exception = jwt.InvalidTokenError("no secret is known")
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
                raise jwt.InvalidTokenError("ends later than any token may")
            return claims
    raise error


def token_number(name: str | None) -> int:
    """The number of a token's id (`jti`) for engines; 0: it has none."""
    if name is None:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1


def _name(claims: Mapping[str, Any]) -> str | None:
    name = claims.get("jti")
    if not isinstance(name, str | None):
        raise ValueError("jti is text")
    return name


def _words(words: Any) -> Words:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("rights are a list of words")
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
) -> str:
    """Make a token for a user, and perhaps a device, that ends this many seconds after `now`, a time since 1970.

    `cap` replaces `rights`. `send`: patterns of the users to whom it may send; None: as the cluster's configuration says.
    """
    claims: dict[str, Any] = {"sub": str(user), "exp": int(now + seconds)}
    claims |= {"rights": list(rights)} if cap is None else {"cap": dict(_listed(cap))}
    claims |= {} if token_id is None else {"jti": token_id}
    claims |= {} if device is None else {"device": device}
    claims |= {} if send is None else {"send": list(send)}
    return jwt.encode(claims, secret, algorithm=ALGORITHM)


def embedded(spec: Spec, right: Right | None, defaults: Patterns, sends: Sends | None = None) -> TokenAuthenticator:
    """The authenticator of a door, for tokens with this right, or with users to send to. Raises `SpecError`."""
    if spec.token_file is None or right is None:
        raise SpecError(f"a {spec.role} needs token_file")
    token, trust = shared_token(spec.token_file), trust_of(spec)
    try:
        return TokenAuthenticator(token, right, trust, defaults, sends)
    except ValueError as error:
        raise SpecError(f"presence.send: {error}") from None


def answering(engine: DoorEngine, authenticator: Authenticator, texts: Texts) -> Handler:
    """The handler of an engine's questions who a client is. Users that are text are kept among the texts."""

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
    engine.answer(
        question,
        said.user,
        grant=said.grant,
        left_ms=left,
        token=said.token,
        device=said.device,
        recipients=said.recipients,
    )


def taking(engine: DoorEngine, authenticator: Authenticator, trust: Trust) -> None:
    """Judge by this from now on, and end the sessions that it revokes. Raises `SpecError`."""
    authenticator.take_trust(trust)
    engine.revoke(trust.users, {token_number(token) for token in trust.tokens})

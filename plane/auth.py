"""Decides which user may open a session with which right: gateway and proxy ask once per session.

There are two credentials: the shared token, which `muster up` writes to a file, and users' tokens, signed with a secret
of the cluster. The length of a session is not decided here.
"""

import codecs
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import jwt

from muster import _core
from plane.engine import DoorEngine
from plane.kind import Right
from plane.role import Handler
from plane.spec import Spec, SpecError

EMBEDDED_USER: Final = _core.SHARED_USER
"""The user of the shared token. No signed token can be for it."""
USER_MAX: Final = 2**64 - 1
ALGORITHM: Final = "HS256"
SECRET_BYTES_MIN: Final = 32
SECRETS_MAX: Final = 2
LEEWAY_S: Final = 5.0
"""Allowed difference between the clocks of the signer and the checker."""
VALID_S_MAX: Final = 366 * 86_400
"""Longest validity from now on. An end beyond it is a mistake, as one in milliseconds, and would never come."""

Denied = Literal["bad_credential", "not_allowed"]
"""The code for the client: the credential stands for nobody (any more), or its user lacks the right."""


class Authenticator(Protocol):
    """Checks credentials. Called on the control path with at most 256 waiting questions; must not block."""

    def authenticate(self, credential: bytes) -> int | Denied:
        """Return the user of a credential, or the code of its refusal."""

    def take_secrets(self, secrets: Sequence[bytes]) -> None:
        """Use these secrets from now on. Open sessions stay."""


class TokenAuthenticator:
    """The shared token, and users' tokens signed with one of the secrets; without secrets, no user's token is
    accepted."""

    def __init__(self, token: bytes, right: Right, secrets: Sequence[bytes] = ()) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token, self._right, self._secrets = token, right, secrets

    def take_secrets(self, secrets: Sequence[bytes]) -> None:
        """In its simplest form."""
        self._secrets = secrets

    def authenticate(self, credential: bytes) -> int | Denied:
        """Compare with the shared token in constant time, else check the signature, the times, the user and the
        rights."""
        if hmac.compare_digest(credential, self._token):
            return EMBEDDED_USER
        try:
            claims = _claims(credential, self._secrets)
            user, rights = _user(claims), _rights(claims)
        except Exception:  # a stranger's bytes may raise anything in the library; they open nothing
            return "bad_credential"
        return user if self._right in rights else "not_allowed"


def _claims(credential: bytes, secrets: Sequence[bytes]) -> Mapping[str, Any]:
    error: Exception = jwt.InvalidTokenError("no secret is known")
    for secret in secrets:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                credential,
                secret,
                algorithms=[ALGORITHM],
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


def _user(claims: Mapping[str, Any]) -> int:
    return user_of(str(claims["sub"]))


def user_of(text: str) -> int:
    """The user of a token, a decimal number. Raises `ValueError`."""
    if not re.fullmatch(r"[1-9][0-9]{0,19}", text) or int(text) > USER_MAX:
        raise ValueError(f"a user is a decimal number from 2 to {USER_MAX}, not {text!r:.40}")
    if int(text) == EMBEDDED_USER:
        raise ValueError(f"user {EMBEDDED_USER} is whoever has the shared token: no other token can be for it")
    return int(text)


def _rights(claims: Mapping[str, Any]) -> Sequence[str]:
    rights = claims.get("rights", ["read"])
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise ValueError("rights is a list of words")
    return rights


def mint(secret: bytes, user: int, rights: Sequence[Right], now: float, seconds: float) -> str:
    """Make a token for a user that ends this many seconds after `now`, a time since 1970."""
    claims = {"sub": str(user), "exp": int(now + seconds), "rights": list(rights)}
    return jwt.encode(claims, secret, algorithm=ALGORITHM)


def signing_secrets(file: str) -> tuple[bytes, ...]:
    """Read the secrets of users' tokens, one a line: the first signs, both are valid. Raises `SpecError`.

    Without a file there is none.
    """
    if not file:
        return ()
    try:
        lines = [line.strip() for line in Path(file).read_bytes().splitlines()]
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    secrets = tuple(line for line in lines if line)
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise SpecError(f"{file}: has {len(secrets)} secrets, not one or two, a line each")
    if short := [at for at, secret in enumerate(secrets, 1) if len(secret) < SECRET_BYTES_MIN]:
        raise SpecError(
            f"{file}: secret {short[0]} has fewer than {SECRET_BYTES_MIN} bytes; openssl rand -hex 32 makes one"
        )
    return secrets


def shared_token(file: str) -> bytes:
    """Read the shared token: one line of text, which may begin with a byte order mark. Raises `SpecError`."""
    try:
        token = Path(file).read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    if not token:
        raise SpecError(f"{file}: is empty, which would let everybody in")
    return token


def embedded(spec: Spec, right: Right | None) -> TokenAuthenticator:
    """What opens sessions with a door, for tokens with this right. Raises `SpecError`."""
    if spec.token_file is None or right is None:
        raise SpecError(f"a {spec.role} needs token_file")
    return TokenAuthenticator(shared_token(spec.token_file), right, signing_secrets(spec.jwt_secret_file))


def answering(engine: DoorEngine, authenticator: Authenticator) -> Handler:
    """The handler of an engine's questions who a client is."""

    def authenticate(question: int, credential: bytes) -> None:
        said = authenticator.authenticate(credential)
        if isinstance(said, int):
            engine.answer(question, said)
        else:
            engine.answer(question, None, said)

    return authenticate

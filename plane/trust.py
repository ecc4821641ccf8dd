"""The basis on which credentials are judged: the shared token, the secrets and keys of users' tokens, and what is
revoked.

Owns the reading of these files. Knows no token and no signature: see `plane/auth.py`.
"""

import codecs
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_server.plane.spec import Spec, SpecError, secret
from muster_server.plane.users import user_of

SECRET_BYTES_MIN: Final = 32
SECRETS_MAX: Final = 2
REVOKED_MAX: Final = 100_000
"""Limit of lines in the file of revoked users and tokens: about 10 MB, and one pass over all sessions per reload."""
PROBES: Final = "muster-probe"
"""The namespace of the prober's rooms."""
PROBE_TOKEN: Final = "probe.token"
"""Name of the file with the prober's token, in the folder of an instance."""
URLS: Final = ("https://", "http://")


@dataclass(frozen=True, slots=True)
class Trust:
    """The secrets, keys and revocations of users' tokens, as the files have them now."""

    secrets: tuple[bytes, ...] = ()
    """Secrets for HS256: the first one signs, both are valid."""
    keys: str = ""
    """A JSON Web Key Set."""
    keys_url: str = ""
    """The URL of a JSON Web Key Set, to be fetched."""
    users: frozenset[int] = frozenset()
    """Revoked users."""
    tokens: frozenset[str] = frozenset()
    """The ids (`jti`) of revoked tokens."""
    user_key: bytes = b""
    """The key of the hash of users that are text; empty: users must be numbers."""


def probe_token(token: bytes) -> bytes:
    """The prober's own token. It opens only the rooms of probes, and does not reveal the shared token, from which
    servers derive it. The prober reads it from a file."""
    return hmac.digest(token, b"muster prober", "sha256").hex().encode()


def trust_of(spec: Spec) -> Trust:
    """Read the files that a spec names. Raises `SpecError`."""
    key = secret(spec.name_key_file, 16) if os.access(spec.name_key_file, os.R_OK) else b""
    users, tokens = revoked(spec.revoked_file, key)
    address = spec.jwks.startswith(URLS)
    return Trust(
        secrets=signing_secrets(spec.jwt_secret_file),
        keys="" if address else _text(spec.jwks),
        keys_url=spec.jwks if address else "",
        users=users,
        tokens=tokens,
        user_key=key,
    )


def revoked(file: str, key: bytes) -> tuple[frozenset[int], frozenset[str]]:
    """Read the revoked users and token ids: each line is `user USER` or `token ID`. `key`: for users that are text.
    Raises `SpecError`."""
    users, tokens = set[int](), set[str]()
    lines = _text(file).splitlines()
    if len(lines) > REVOKED_MAX:
        raise SpecError(f"{file}: too many lines (limit {REVOKED_MAX}); remove tokens that have expired")
    for number, line in enumerate(lines, 1):
        kind, _, rest = line.strip().partition(" ")
        name = rest.strip()
        if kind.startswith("#"):
            continue
        if kind == "user" and name:
            try:
                users.add(user_of(name, key))
            except ValueError as error:
                raise SpecError(f"{file}:{number}: {error}") from None
        elif kind == "token" and name:
            tokens.add(name)
        elif kind:
            raise SpecError(f"{file}:{number}: invalid line (expected `user USER` or `token ID`)")
    return frozenset(users), frozenset(tokens)


def _text(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{file}: not a text file in UTF-8") from None


def signing_secrets(file: str) -> tuple[bytes, ...]:
    """Read the secrets of users' tokens, one per line: the first signs, both are valid. Raises `SpecError`.

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
        raise SpecError(f"{file}: {len(secrets)} secrets (expected one or two, one per line)")
    if short := [at for at, secret in enumerate(secrets, 1) if len(secret) < SECRET_BYTES_MIN]:
        raise SpecError(
            f"{file}: secret {short[0]} has fewer than {SECRET_BYTES_MIN} bytes; make one with openssl rand -hex 32"
        )
    return secrets


def shared_token(file: str) -> bytes:
    """Read the shared token: one line of text, which may begin with a byte order mark. Raises `SpecError`."""
    try:
        token = Path(file).read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    if not token:
        raise SpecError(f"{file} is empty, which would admit every client; write the token into it")
    return token

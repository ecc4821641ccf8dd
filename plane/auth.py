"""Who may open a session: the question that gateway and proxy ask once per session."""

import hmac
from pathlib import Path
from typing import Final, Protocol

from plane.engine import Engine
from plane.role import Role
from plane.spec import Spec, SpecError

EMBEDDED_USER: Final = 1
"""The one user that the embedded token stands for."""


class Authenticator(Protocol):
    """Decides on credentials. Asked on the control path, at most 256 questions wait; must not block."""

    def authenticate(self, credential: bytes) -> int | None:
        """Return the user of a credential, or None to refuse."""


class TokenAuthenticator:
    """One token for everybody, as `muster up` writes it to a file."""

    def __init__(self, token: bytes) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token

    def authenticate(self, credential: bytes) -> int | None:
        """Compare in constant time."""
        return EMBEDDED_USER if hmac.compare_digest(credential, self._token) else None


def embedded(spec: Spec) -> Authenticator:
    """The token that `muster up` wrote."""
    if spec.token_file is None:
        raise SpecError(f"a {spec.role} needs token_file")
    try:
        return TokenAuthenticator(Path(spec.token_file).read_bytes().strip())
    except OSError as error:
        raise SpecError(f"{spec.token_file}: cannot be read: {error.strerror}") from None


def answering(engine: Engine, authenticator: Authenticator) -> Role:
    """A role whose engine asks who a client is."""

    def authenticate(question: int, credential: bytes) -> None:
        engine.answer(question, authenticator.authenticate(credential))

    return Role(engine, {"authenticate": authenticate})
